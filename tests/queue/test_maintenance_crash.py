"""A rotate, a retry and a rescue that are cut off anywhere: what was begun is undone, and the next call does it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import QueueStorage, retry
from ringside import (
    SOON,
    CutOff,
    differences,
    end_jobs,
    on_statement,
    query,
    run_out,
    snapshot,
    terminal,
    until,
)

pytestmark = pytest.mark.attack

Connect = Callable[..., psycopg.Connection[Any]]


def _statements(storage: QueueStorage, path: str, action: Callable[[], Any]) -> list[str]:
    """Return the statements of an action, in their order; those of the file at `path` have their names."""
    names: list[str] = []
    on_statement(storage, path, before=names.append)
    action()
    return names


def test_a_rotate_that_is_cut_off_has_not_been(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    end_jobs(storage)
    first = QueueStorage(connect(), namespace)
    names = _statements(first, "queue/ring", first.rotate)
    assert names[-3:] == ["seal", "open", "advance"]
    end_jobs(storage)

    # Before the first statement, and after each: the last one is before the commit.
    for place in range(len(names) + 1):
        before = snapshot(storage)
        victim = QueueStorage(connect(), namespace)
        CutOff(victim, "queue/ring", place, connect())
        with pytest.raises(psycopg.OperationalError):
            victim.rotate()
        assert snapshot(storage) == before, f"changed by a crash after {place} statements"
    assert storage.rotate().outcome == "rotated"


def test_a_retry_that_is_cut_off_has_put_back_whole_chunks_and_the_next_one_the_rest(
    storage: QueueStorage, connect: Connect, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "CHUNK", 2)
    end_jobs(storage, 5)
    first = QueueStorage(connect(), namespace)
    names = _statements(first, "queue/retry", lambda: first.retry_failed_by_queue("q"))
    assert names.count("retry") == 3
    # The last statement of the scan and of each chunk; those that begin a transaction have no name there.
    _, *chunks = [place for place, name in enumerate(names[:-1]) if name and not names[place + 1]]

    for place in range(chunks[-1] + 2):
        failed = end_jobs(storage, 5, queue=f"q{place}")
        victim = QueueStorage(connect(), namespace)
        seen = CutOff(victim, "queue/retry", place, connect()).seen
        with pytest.raises(psycopg.OperationalError):
            victim.retry_failed_by_queue(f"q{place}")

        # What was begun in the chunk that was cut off is undone; the chunks before it stand.
        assert seen == names[:place]
        left = set(failed) & terminal(storage).keys()
        assert len(left) == 5 - 2 * sum(chunk + 1 < place for chunk in chunks)
        assert differences(storage) == []
        outcome = storage.retry_failed_by_queue(f"q{place}")
        assert set(outcome.retried) == left
        claimed = [claim.job_id for claim in storage.claim(f"q{place}", 10)]
        assert sorted(claimed) == sorted(failed)


@pytest.mark.parametrize(
    "table",
    ["lease_claim_closures", "leases", "done_entries", "deferred_jobs", "queue_terminal_count_deltas"],
)
def test_a_rescue_that_is_cut_off_where_it_writes_is_done_by_the_next_one(
    storage: QueueStorage, connect: Connect, namespace: str, table: str
) -> None:
    for attempts in (1, 2):
        storage.enqueue_many("q", "work", [{}] * 3, max_attempts=attempts)
    jobs = {claim.job_id for claim in storage.claim("q", 10)}
    run_out(storage)
    before = snapshot(storage)
    holder, victim = QueueStorage(connect(), namespace), QueueStorage(connect(), namespace)
    pid = [victim.connection.info.backend_pid]
    with ThreadPoolExecutor(1) as pool, holder.connection.transaction():
        query(holder, f"LOCK TABLE {{ns}}.{table} IN EXCLUSIVE MODE")
        rescue = pool.submit(victim.rescue)
        waiting = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"
        until(lambda: storage.connection.execute(waiting, pid).rowcount)
        assert holder.connection.execute("SELECT pg_terminate_backend(%s, 10000)", pid).fetchone() == (True,)
        with pytest.raises(psycopg.OperationalError):
            rescue.result(SOON)

    assert snapshot(storage) == before
    assert storage.queue_counts("q").running == 6
    outcome = storage.rescue()
    assert (outcome.rescued, outcome.failed) == (3, 3)
    counts = storage.queue_counts("q")
    assert (counts.running, counts.deferred, counts.failed) == (0, 3, 3)
    assert {job_id for [job_id] in query(storage, "SELECT job_id FROM {ns}.deferred_jobs")} | set(
        terminal(storage)
    ) == jobs
    assert differences(storage) == []
