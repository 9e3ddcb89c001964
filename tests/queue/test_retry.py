"""Putting failed jobs back: as new, each accounted for, found wherever a prune has carried it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.database import statements
from parkkeeper.errors import InvalidArgument, InvalidName
from parkkeeper.queue import ConservationBroken, QueueStorage, UnknownQueue
from parkkeeper.queue.outcomes import RetryFailedOutcome
from parkkeeper.queue.retry import CHUNK
from ringside import (
    SOON,
    Gate,
    age,
    differences,
    end_jobs,
    held,
    on_statement,
    prune_all,
    query,
    terminal,
    until,
)

Connect = Callable[..., psycopg.Connection[Any]]

pytestmark = pytest.mark.usefixtures("carry_to")


@pytest.fixture
def other(storage: QueueStorage, connect: Connect, namespace: str) -> QueueStorage:
    """The same queue from another session."""
    return QueueStorage(connect(), namespace)


def test_a_job_that_used_all_its_attempts_begins_anew(storage: QueueStorage) -> None:
    job_id = storage.enqueue("q", "work", {"n": 1}, max_attempts=1, priority=1)
    [first] = storage.claim("q")
    assert storage.fail(first, "no such file") == "failed"
    age(storage, [job_id], timedelta(hours=5))
    query(
        storage,
        "UPDATE {ns}.ready_entries SET created_at = created_at - interval '6 h', run_at = run_at - interval '6 h'",
    )
    [created] = query(storage, "SELECT created_at FROM {ns}.terminal_jobs")

    assert storage.retry_failed_by_queue("q").retried == [job_id]

    [row] = query(
        storage,
        "SELECT attempt, max_attempts, created_at, run_at > now() - interval '1 minute', lane_seq > %s"
        " FROM {ns}.ready_entries ORDER BY lane_seq DESC LIMIT 1",
        query(storage, "SELECT min(lane_seq) FROM {ns}.ready_entries")[0][0],
    )
    assert row == (0, 1, created[0], True, True)
    [second] = storage.claim("q")
    assert (second.job_id, second.args, second.attempt, second.priority) == (job_id, {"n": 1}, 1, 1)
    # Not dead at once: it is an attempt like the first, and it ends like one.
    assert storage.complete([second]) == 1
    assert terminal(storage)[job_id][0] == "completed"
    assert differences(storage) == []


def test_only_the_failed_jobs_of_the_queue_are_put_back(storage: QueueStorage) -> None:
    failed = end_jobs(storage, 2)
    end_jobs(storage, 1, state="completed")
    end_jobs(storage, 1, state="cancelled")
    end_jobs(storage, 1, queue="r")

    outcome = storage.retry_failed_by_queue("q")

    assert outcome == RetryFailedOutcome(failed, 2, 0, [], 0)
    assert storage.queue_counts("r").failed == 1
    assert storage.queue_counts("q").available == 2
    assert storage.retry_failed_by_queue("q") == RetryFailedOutcome([], 0, 0, [], 0)


def test_by_kind_all_queues_are_searched_and_no_pruned_figure_is_made_up(storage: QueueStorage) -> None:
    mail = end_jobs(storage, 1, kind="mail") + end_jobs(storage, 1, queue="r", kind="mail")
    end_jobs(storage, 1, kind="hash")
    age(storage, end_jobs(storage, 1, kind="mail", queue="s"), timedelta(days=4))
    storage.rotate()
    prune_all(storage)

    outcome = storage.retry_failed_by_kind("mail")

    assert outcome == RetryFailedOutcome(mail, 2, None, [], 0)
    assert storage.retry_failed_by_queue("s").pruned_failed_count == 1
    assert storage.retry_failed_by_kind("no such kind").matched == 0


def test_by_id_those_that_are_failed_are_put_back_wherever_they_stand(storage: QueueStorage) -> None:
    carried = end_jobs(storage, 2)
    storage.rotate()
    prune_all(storage)
    narrow = end_jobs(storage, 2, queue="r")
    completed = end_jobs(storage, 1, state="completed")
    storage.set_queue("s", dead_letter=True)
    letter = storage.enqueue("s", "work")
    storage.fail(storage.claim("s")[0], "no such file", terminal=True)
    ids = [narrow[0], *completed, letter, 10**12, carried[1], narrow[0]]

    outcome = storage.retry_failed(ids)

    assert outcome == RetryFailedOutcome([carried[1], narrow[0]], 2, None, [], 0)
    assert storage.retry_failed(ids) == storage.retry_failed([]) == RetryFailedOutcome([], 0, None, [], 0)
    assert [storage.queue_counts(queue).failed for queue in "qr"] == [1, 1]
    assert differences(storage) == []


def test_by_id_a_carry_in_between_loses_nothing_and_a_job_that_is_gone_is_raced(
    storage: QueueStorage, other: QueueStorage
) -> None:
    jobs = end_jobs(storage, 3)
    age(storage, jobs[:1], timedelta(days=4))
    storage.rotate()
    with held(lambda: storage.retry_failed(jobs), Gate(storage, "queue/retry", "hold_pruners")) as retry:
        assert other.prune_oldest().carried_failed_rows == 2
    assert retry.result() == RetryFailedOutcome(jobs[1:], 3, None, [], 1)
    assert differences(other) == []


def test_by_id_history_is_not_scanned(storage: QueueStorage) -> None:
    end_jobs(storage, 200, state="completed")
    values = {"queue": None, "kind": None, "finalized_from": None, "finalized_before": None, "limit": None}
    with storage.connection.transaction(force_rollback=True):
        texts = statements("queue/retry")
        storage.connection.execute(texts.render("probe_by_key", storage.namespace))
        lines = texts.render("matching", storage.namespace).split(b"\n")
        statement = b"\n".join(line for line in lines if not line.startswith(b"--"))
        plan = storage.connection.execute(b"EXPLAIN " + statement, values | {"job_ids": [1, 2]}).fetchall()
    text = "\n".join(row[0] for row in plan)
    assert "Index Scan using done_entries_0_lane_id_finalized_at_idx" in text
    assert "Seq Scan on done_entries" not in text


def test_a_window_takes_jobs_from_its_first_moment_up_to_its_last(storage: QueueStorage) -> None:
    jobs = end_jobs(storage, 4)
    [(now,)] = query(storage, "SELECT date_trunc('second', now())")
    for hours, job_id in enumerate(jobs):
        query(
            storage,
            "UPDATE {ns}.done_entries SET finalized_at = %s WHERE job_id = %s",
            now - timedelta(hours=hours),
            job_id,
        )

    window = {"finalized_from": now - timedelta(hours=2), "finalized_before": now}
    assert storage.retry_failed_by_queue("q", **window).retried == [jobs[2], jobs[1]]
    assert storage.retry_failed_by_queue("q", finalized_from=now).retried == [jobs[0]]
    assert storage.retry_failed_by_kind("work", finalized_before=now).retried == [jobs[3]]


def test_a_limit_takes_those_that_failed_first(storage: QueueStorage) -> None:
    jobs = end_jobs(storage, 3)
    age(storage, jobs[2:], timedelta(hours=1))

    outcome = storage.retry_failed_by_queue("q", limit=1)

    assert (outcome.retried, outcome.matched) == ([jobs[2]], 1)
    assert storage.queue_counts("q").failed == 2


def test_more_jobs_than_a_chunk_holds_are_put_back_in_several_transactions(storage: QueueStorage) -> None:
    jobs = end_jobs(storage, CHUNK + 1)
    storage.rotate()
    prune_all(storage)
    chunks: list[str] = []
    on_statement(
        storage, "queue/retry", before=lambda name: chunks.append(name) if name == "hold_pruners" else None
    )

    outcome = storage.retry_failed_by_queue("q")

    assert (sorted(outcome.retried), outcome.matched, outcome.raced) == (jobs, len(jobs), 0)
    assert len(chunks) == 2
    assert len(storage.claim("q", 2 * CHUNK)) == len(jobs)
    assert differences(storage) == []


def test_a_job_that_a_prune_carries_meanwhile_is_found_again(
    storage: QueueStorage, other: QueueStorage
) -> None:
    jobs = end_jobs(storage, 3)
    storage.rotate()

    # Scanned in slot 0, and then the slot is pruned.
    with held(
        lambda: storage.retry_failed_by_queue("q"), Gate(storage, "queue/retry", "hold_pruners")
    ) as retry:
        assert other.prune_oldest().carried_failed_rows == 3

    outcome = retry.result()
    assert (outcome.retried, outcome.matched, outcome.raced) == (jobs, 3, 0)
    assert len(other.claim("q", 10)) == 3
    assert differences(other) == []


def test_jobs_that_are_gone_when_their_turn_comes_are_counted_as_raced(
    storage: QueueStorage, other: QueueStorage
) -> None:
    jobs = end_jobs(storage, 3)
    age(storage, jobs[:1], timedelta(days=4))
    storage.rotate()

    # One is dropped, one is put back by another session, one is left.
    with held(
        lambda: storage.retry_failed_by_queue("q"), Gate(storage, "queue/retry", "hold_pruners")
    ) as retry:
        assert other.prune_oldest().pruned_failed == 1
        assert other.retry_failed_by_queue("q", limit=1).matched == 1

    outcome = retry.result()
    assert (outcome.retried, outcome.matched, outcome.conflicts, outcome.raced) == (jobs[2:], 3, [], 2)
    assert outcome.pruned_failed_count == 1
    assert [claim.job_id for claim in other.claim("q", 10)] == jobs[1:]
    assert differences(other) == []


def test_a_retry_waits_for_a_prune_before_it_holds_what_the_prune_needs(
    storage: QueueStorage, other: QueueStorage, connect: Connect
) -> None:
    end_jobs(storage, 2)
    storage.rotate()
    watcher = connect()
    waiting = [other.connection.info.backend_pid]

    with ThreadPoolExecutor(1) as pool:
        with held(storage.prune_oldest, Gate(storage, "queue/carry", "carry")) as prune:
            retry = pool.submit(other.retry_failed_by_queue, "q")
            until(
                lambda: (
                    watcher.execute("SELECT FROM pg_locks WHERE pid = %s AND NOT granted", waiting).rowcount
                )
            )
        assert prune.result(SOON).outcome == "pruned"
        assert len(retry.result(SOON).retried) == 2

    assert differences(storage) == []


def test_a_key_that_another_job_holds_now_is_a_conflict_and_the_job_stays_failed(
    storage: QueueStorage,
) -> None:
    storage.enqueue("q", "work", {"n": 1}, unique_key="invoice")
    plain = storage.enqueue("q", "work")
    claims = storage.claim("q", 2)
    storage.fail_many([(claim, "no such file") for claim in claims], terminal=True)
    first = claims[0].job_id
    second = storage.enqueue("q", "work", {"n": 2}, unique_key="invoice")

    outcome = storage.retry_failed_by_queue("q")

    assert outcome == RetryFailedOutcome([plain], 2, 0, [first], 0)
    assert list(terminal(storage)) == [first]
    assert query(storage, "SELECT job_id FROM {ns}.job_unique_claims") == [(second,)]
    storage.complete(storage.claim("q", 10))
    assert storage.retry_failed_by_queue("q").retried == [first]
    assert query(storage, "SELECT job_id FROM {ns}.job_unique_claims") == [(first,)]
    assert differences(storage) == []


def test_of_two_failed_jobs_with_one_key_one_is_put_back(storage: QueueStorage) -> None:
    jobs = []
    for _ in range(2):
        jobs.append(storage.enqueue("q", "work", unique_key="invoice"))
        storage.fail(storage.claim("q")[0], "no such file", terminal=True)

    outcome = storage.retry_failed_by_queue("q")

    assert (outcome.retried, outcome.conflicts) == ([jobs[0]], [jobs[1]])
    assert query(storage, "SELECT job_id FROM {ns}.job_unique_claims") == [(jobs[0],)]


def test_a_failed_job_that_kept_its_key_is_put_back_with_it(storage: QueueStorage) -> None:
    states = ("scheduled", "available", "running", "retryable", "failed")
    job_id = storage.enqueue("q", "work", unique_key="invoice", unique_states=states)
    storage.fail(storage.claim("q")[0], "no such file", terminal=True)
    storage.rotate()
    prune_all(storage)

    assert storage.retry_failed_by_queue("q").retried == [job_id]
    assert query(storage, "SELECT job_id FROM {ns}.job_unique_claims") == [(job_id,)]


@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "statistics of an empty ring"])
def test_each_job_is_a_probe_of_a_primary_key_whatever_the_statistics_say(
    storage: QueueStorage, analyzed: bool
) -> None:
    if analyzed:
        query(storage, "ANALYZE {ns}.done_entries, {ns}.ready_entries")
    end_jobs(storage, 200)
    keys = {"slots": [0], "lane_ids": [1], "lane_seqs": [1]}
    plans = {}
    with storage.connection.transaction(force_rollback=True):
        texts = statements("queue/retry")
        storage.connection.execute(texts.render("probe_by_key", storage.namespace))
        for name, values in (("retry", keys), ("locate", {**keys, "slots": None})):
            lines = texts.render(name, storage.namespace).split(b"\n")
            statement = b"\n".join(line for line in lines if not line.startswith(b"--"))
            plan = storage.connection.execute(b"EXPLAIN " + statement, values).fetchall()
            plans[name] = "\n".join(row[0] for row in plan)
    for name, plan in plans.items():
        assert "done_entries_0_pkey" in plan, name
        assert "finalized_at_idx" not in plan, name
        assert "Seq Scan on done_entries" not in plan, name
        assert "Seq Scan on ready_entries" not in plan, name


def test_a_job_whose_body_is_gone_stops_the_retry_loudly_and_tells_no_content(storage: QueueStorage) -> None:
    end_jobs(storage)
    query(storage, "DELETE FROM {ns}.ready_entries")

    with pytest.raises(ConservationBroken, match=r"\(23502\): nothing of this chunk was changed") as error:
        storage.retry_failed_by_queue("q")

    assert error.value.__cause__ is None
    assert storage.queue_counts("q").failed == 1


def test_arguments_that_cannot_be_meant_are_refused_by_name(storage: QueueStorage) -> None:
    end_jobs(storage)
    with pytest.raises(UnknownQueue):
        storage.retry_failed_by_queue("mail")
    with pytest.raises(InvalidName, match="queue"):
        storage.retry_failed_by_queue("")
    with pytest.raises(InvalidName, match="kind"):
        storage.retry_failed_by_kind("a\x00b")
    for limit in (0, -1, 1.0, True, 2**63):
        with pytest.raises(InvalidArgument, match="limit"):
            storage.retry_failed_by_queue("q", limit=limit)  # type: ignore[arg-type]
    for job_ids in (7, "7", [0], [True], [2**63]):
        with pytest.raises(InvalidArgument, match="job_ids"):
            storage.retry_failed(job_ids)  # type: ignore[arg-type]
    for field in ("finalized_from", "finalized_before"):
        with pytest.raises(InvalidArgument, match=f"{field} .* with a time zone"):
            storage.retry_failed_by_queue("q", **{field: datetime(2026, 1, 1)})  # type: ignore[arg-type]
    assert storage.queue_counts("q").failed == 1
