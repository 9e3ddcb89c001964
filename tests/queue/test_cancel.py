"""Cancelling: in each state that exists, once, and against whoever moves the job meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import QueueStorage
from ringside import SOON, differences, prune_all, query, until

Connect = Callable[..., psycopg.Connection[Any]]
LATER = timedelta(hours=1)


@pytest.fixture
def other(storage: QueueStorage, connect: Connect) -> QueueStorage:
    """The same queue in a second session."""
    return QueueStorage(connect(), storage.namespace)


def make_due(storage: QueueStorage) -> None:
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")


def waits(storage: QueueStorage, session: QueueStorage) -> bool:
    pid = session.connection.info.backend_pid
    return bool(query(storage, "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s", pid)[0][0])


def ended(storage: QueueStorage) -> list[tuple[Any, ...]]:
    """Return the terminal jobs, with whether their rows stand alone."""
    return query(
        storage,
        "SELECT job_id, job.state::text, job.args, attempt, done.args IS NOT NULL"
        " FROM {ns}.terminal_jobs AS job JOIN {ns}.done_entries AS done USING (job_id, attempt) ORDER BY job_id",
    )


def test_a_waiting_job_is_cancelled_where_it_stands(storage: QueueStorage) -> None:
    job_id, kept = storage.enqueue_many("q", "k", [{"n": 1}, {"n": 2}])
    assert storage.rotate().outcome == "rotated"
    assert storage.cancel(job_id)
    assert not storage.cancel(job_id)
    assert ended(storage) == [(job_id, "cancelled", {"n": 1}, 0, True)]
    assert query(storage, "SELECT ready_slot FROM {ns}.done_entries") == [(0,)]
    assert [claim.job_id for claim in storage.claim("q", 9)] == [kept]
    counts = storage.queue_counts("q")
    assert (counts.available, counts.running, counts.terminal) == (0, 1, 1)
    assert differences(storage) == []


def test_a_scheduled_job_is_cancelled(storage: QueueStorage) -> None:
    job_id = storage.enqueue("q", "k", {"n": 1}, run_at=datetime.now(UTC) + LATER)
    assert storage.rotate().outcome == "skipped_idle"
    assert storage.cancel(job_id)
    assert not storage.cancel(job_id)
    make_due(storage)
    assert storage.claim("q") == []
    assert ended(storage) == [(job_id, "cancelled", {"n": 1}, 0, True)]
    assert storage.queue_counts("q").deferred == 0
    assert differences(storage) == []


def test_a_running_job_is_cancelled_and_its_worker_is_told(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "k", [{"n": n} for n in range(3)])
    claims = storage.claim("q", 3)
    assert storage.cancel(claims[1].job_id)
    assert not storage.cancel(claims[1].job_id)
    assert storage.fail(claims[1], "no") is None
    assert storage.complete(claims) == 2
    assert ended(storage)[1] == (claims[1].job_id, "cancelled", {"n": 1}, 1, False)
    counts = storage.queue_counts("q")
    assert (counts.running, counts.terminal) == (0, 3)
    assert differences(storage) == []


def test_a_retryable_job_is_cancelled_and_keeps_its_history(storage: QueueStorage) -> None:
    job_id = storage.enqueue("q", "k", {"n": 1})
    [claim] = storage.claim("q")
    assert storage.fail(claim, "why") == "retryable"
    assert storage.cancel(job_id)
    assert not storage.cancel(job_id)
    assert ended(storage) == [(job_id, "cancelled", {"n": 1}, 1, True)]
    assert query(storage, "SELECT error, attempted_at IS NOT NULL FROM {ns}.done_entries") == [("why", True)]
    assert differences(storage) == []


@pytest.mark.parametrize("again", ["waiting", "running"])
def test_a_job_that_was_tried_before_is_cancelled_where_it_stands_now(
    storage: QueueStorage, again: str
) -> None:
    job_id = storage.enqueue("q", "k", {"n": 1}, unique_key="key")
    for _ in range(2):
        assert storage.rotate().outcome == "rotated"
        [claim] = storage.claim("q")
        assert storage.fail(claim, "again") == "retryable"
        make_due(storage)
    if again == "running":
        assert storage.claim("q")[0].attempt == 3
    else:
        query(storage, "SELECT {ns}.promote_due_jobs(lane_id, 2, 2, 9) FROM {ns}.queue_lanes")
        assert storage.queue_counts("q").available == 1
    assert storage.cancel(job_id)
    assert not storage.cancel(job_id)
    assert storage.claim("q") == []
    assert storage.enqueue("q", "k", unique_key="key") > job_id
    assert differences(storage) == []


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "carried", "pruned", "never was"])
def test_a_job_that_has_ended_stays_as_it_is(storage: QueueStorage, state: str) -> None:
    job_id = storage.enqueue("q", "k") if state != "never was" else 4711
    if state == "cancelled":
        assert storage.cancel(job_id)
    elif state in ("failed", "carried"):
        assert storage.fail(storage.claim("q")[0], "no", terminal=True) == "failed"
    else:
        storage.complete(storage.claim("q"))
    if state in ("carried", "pruned"):
        assert storage.rotate().outcome == "rotated"
        assert len(prune_all(storage)) == 1
    before = ended(storage)
    assert not storage.cancel(job_id)
    assert ended(storage) == before
    assert differences(storage) == []


def test_what_is_cancelled_and_rolled_back_is_as_before(storage: QueueStorage) -> None:
    jobs = storage.enqueue_many("q", "k", [{}] * 2)
    [claim] = storage.claim("q")
    scheduled = storage.enqueue("q", "k", run_at=datetime.now(UTC) + LATER)
    with storage.connection.transaction(force_rollback=True):
        assert all(storage.cancel(job_id) for job_id in (*jobs, scheduled))
    assert differences(storage) == []
    assert storage.complete([claim, *storage.claim("q", 9)]) == 2
    assert storage.cancel(scheduled)


def test_a_job_is_cancelled_in_the_transaction_that_enqueued_it(storage: QueueStorage) -> None:
    with storage.connection.transaction():
        assert storage.cancel(storage.enqueue("q", "k"))
    assert storage.claim("q") == []
    assert differences(storage) == []


def test_a_job_that_is_claimed_meanwhile_is_cancelled_as_a_running_one(
    storage: QueueStorage, other: QueueStorage, connect: Connect
) -> None:
    job_id = storage.enqueue("q", "k")
    observer = QueueStorage(connect(), storage.namespace)
    with ThreadPoolExecutor(1) as pool:
        with storage.connection.transaction():
            claims = storage.claim("q")
            cancelled = pool.submit(other.cancel, job_id)
            until(lambda: waits(observer, other))
        assert cancelled.result(SOON)
    assert storage.complete(claims) == 0
    assert differences(storage) == []


@pytest.mark.parametrize(("outcome", "cancelled"), [("complete", False), ("fail", True), ("promote", True)])
def test_a_job_that_moves_on_meanwhile_is_looked_for_where_it_went(
    storage: QueueStorage, other: QueueStorage, connect: Connect, outcome: str, cancelled: bool
) -> None:
    job_id = storage.enqueue("q", "k", run_at=datetime.now(UTC) + LATER if outcome == "promote" else None)
    observer = QueueStorage(connect(), storage.namespace)
    make_due(storage)
    claims = storage.claim("q") if outcome != "promote" else []
    with ThreadPoolExecutor(1) as pool:
        with storage.connection.transaction():
            if outcome == "complete":
                assert storage.complete(claims) == 1
            elif outcome == "fail":
                assert storage.fail(claims[0], "again") == "retryable"
            else:
                assert [claim.job_id for claim in storage.claim("q")] == [job_id]
            theirs = pool.submit(other.cancel, job_id)
            until(lambda: waits(observer, other))
        assert theirs.result(SOON) is cancelled
    assert storage.queue_counts("q").deferred == 0
    assert differences(storage) == []


def test_two_sessions_that_cancel_one_job_have_one_winner(
    storage: QueueStorage, other: QueueStorage, connect: Connect
) -> None:
    waiting = storage.enqueue("q", "k")
    running = [storage.enqueue("q", "k", priority=1), storage.claim("q")][0]
    scheduled = storage.enqueue("q", "k", run_at=datetime.now(UTC) + LATER)
    observer = QueueStorage(connect(), storage.namespace)
    for job_id in (waiting, running, scheduled):
        with ThreadPoolExecutor(1) as pool:
            with storage.connection.transaction():
                assert storage.cancel(job_id)
                theirs = pool.submit(other.cancel, job_id)
                until(lambda: waits(observer, other))
            assert theirs.result(SOON) is False
    assert [row[1] for row in ended(storage)] == ["cancelled"] * 3
    assert differences(storage) == []
