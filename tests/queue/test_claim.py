"""Claiming: the order, what a claim leaves behind, and what becomes of it when it is undone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import ClaimedJob, IsolationRefused, QueueStorage
from ringside import SOON, differences, prune_all, query, until

Connect = Callable[..., psycopg.Connection[Any]]


def ids(claims: list[ClaimedJob]) -> list[int]:
    return [claim.job_id for claim in claims]


def make_due(storage: QueueStorage) -> None:
    """Let time pass for all deferred jobs."""
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")


def waits(storage: QueueStorage, session: psycopg.Connection[Any]) -> bool:
    """Tell whether a session waits for a lock."""
    pid = session.info.backend_pid
    return bool(query(storage, "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s", pid)[0][0])


def test_a_lower_priority_number_goes_first_and_within_one_the_older_job(storage: QueueStorage) -> None:
    usual = [storage.enqueue("q", "k") for _ in range(3)]
    last = storage.enqueue("q", "k", priority=9)
    first = [storage.enqueue("q", "k", priority=-1) for _ in range(2)]
    usual.append(storage.enqueue("q", "k"))
    assert ids(storage.claim("q", 3)) == [*first, usual[0]]
    assert ids(storage.claim("q", 10)) == [*usual[1:], last]


def test_an_older_slot_goes_before_a_newer_one_whatever_their_numbers(storage: QueueStorage) -> None:
    for _ in range(3):
        storage.enqueue("q", "k")
        assert storage.complete(storage.claim("q")) == 1
        assert storage.rotate().outcome == "rotated"
        prune_all(storage)
    expected = []
    for slot in (3, 0, 1):
        assert query(storage, "SELECT current_slot FROM {ns}.queue_ring_state") == [(slot,)]
        expected += storage.enqueue_many("q", "k", [{}] * 2)
        assert storage.rotate().outcome == "rotated"
    assert ids(storage.claim("q", 5)) == expected[:5]
    assert ids(storage.claim("q", 5)) == expected[5:]


def test_a_claim_says_all_about_the_job(storage: QueueStorage) -> None:
    job_id = storage.enqueue("q", "k", {"text": "a customer's words"}, priority=3, max_attempts=7)
    before = query(storage, "SELECT clock_timestamp()")[0][0]
    [claim] = storage.claim("q", lease=timedelta(minutes=1))
    after = query(storage, "SELECT clock_timestamp()")[0][0]
    assert (claim.job_id, claim.queue, claim.kind, claim.args) == (
        job_id,
        "q",
        "k",
        {"text": "a customer's words"},
    )
    assert (claim.priority, claim.attempt, claim.max_attempts) == (3, 1, 7)
    assert before + timedelta(minutes=1) <= claim.lease_until <= after + timedelta(minutes=1)
    assert "customer" not in repr(claim)


def test_jobs_of_one_batch_may_differ_in_everything(storage: QueueStorage) -> None:
    expected = []
    for n in range(6):
        kind, most = f"kind {n % 3}", 1 + n % 2
        expected.append((storage.enqueue("q", kind, {"n": n}, max_attempts=most), kind, {"n": n}, most))
    claims = storage.claim("q", 10)
    assert [(c.job_id, c.kind, c.args, c.max_attempts) for c in claims] == expected
    assert len({c.run_lease for c in claims}) == 1
    assert storage.complete(claims) == 6
    assert query(storage, "SELECT job_id, kind FROM {ns}.terminal_jobs ORDER BY job_id") == [
        e[:2] for e in expected
    ]


def test_nothing_to_claim_is_an_empty_list_and_writes_nothing(storage: QueueStorage) -> None:
    storage.enqueue("q", "later", run_at=datetime.now(UTC) + timedelta(hours=1))
    storage.complete(storage.claim("other"))
    for queue in ("q", "never heard of"):
        with storage.connection.transaction():
            assert storage.claim(queue, 10) == []
            assert query(storage, "SELECT pg_current_xact_id_if_assigned()") == [(None,)]


def test_no_job_goes_to_two_claims(storage: QueueStorage, connect: Connect) -> None:
    jobs = storage.enqueue_many("q", "k", [{}] * 6)
    second = QueueStorage(connect(), storage.namespace)
    with ThreadPoolExecutor(1) as pool:
        with storage.connection.transaction():
            mine = storage.claim("q", 4)
            theirs = pool.submit(second.claim, "q", 4)
            observer = QueueStorage(connect(), storage.namespace)
            until(lambda: waits(observer, second.connection))
        assert ids(mine) + ids(theirs.result(SOON)) == jobs
    assert storage.claim("q") == []


def test_a_claim_that_is_rolled_back_loses_nothing(storage: QueueStorage) -> None:
    jobs = storage.enqueue_many("q", "k", [{}] * 3)
    with storage.connection.transaction(force_rollback=True):
        assert ids(storage.claim("q", 2)) == jobs[:2]
        assert ids(storage.claim("q", 2)) == jobs[2:]
    assert differences(storage) == []
    assert ids(storage.claim("q", 10)) == jobs


def test_a_claim_in_a_savepoint_is_undone_with_it(storage: QueueStorage, connect: Connect) -> None:
    jobs = storage.enqueue_many("q", "k", [{}] * 4)
    with storage.connection.transaction():
        assert ids(storage.claim("q")) == jobs[:1]
        with storage.connection.transaction(force_rollback=True):
            assert ids(storage.claim("q", 2)) == jobs[1:3]
        with storage.connection.transaction():
            again = storage.claim("q")
    assert ids(again) == jobs[1:2]
    assert ids(storage.claim("q", 10)) == jobs[2:]
    assert differences(storage) == []


def test_a_promotion_that_is_rolled_back_loses_nothing(storage: QueueStorage) -> None:
    job_id = storage.enqueue("q", "k", run_at=datetime.now(UTC) + timedelta(hours=1))
    make_due(storage)
    with storage.connection.transaction(force_rollback=True):
        assert ids(storage.claim("q")) == [job_id]
    assert storage.queue_counts("q").deferred == 1
    assert ids(storage.claim("q")) == [job_id]
    assert differences(storage) == []


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_a_transaction_that_keeps_a_snapshot_is_refused(
    storage: QueueStorage, connect: Connect, level: str
) -> None:
    [claim] = [storage.enqueue("q", "k"), *storage.claim("q")][1:]
    session = connect()
    session.isolation_level = psycopg.IsolationLevel[level]
    theirs = QueueStorage(session, storage.namespace)
    for call in (
        lambda: theirs.claim("q"),
        lambda: theirs.complete([claim]),
        lambda: theirs.fail(claim, "no"),
        lambda: theirs.cancel(claim.job_id),
    ):
        with (
            pytest.raises(IsolationRefused, match=r"is refused in a transaction .* use READ COMMITTED$"),
            session.transaction(),
        ):
            call()
    assert storage.complete([claim]) == 1


def test_due_jobs_are_claimed_with_the_others_by_priority_and_no_more_than_asked(
    storage: QueueStorage,
) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    urgent = storage.enqueue_many("q", "k", [{}] * 2, run_at=later, priority=1)
    usual = storage.enqueue_many("q", "k", [{}] * 2, run_at=later)
    not_due = storage.enqueue("q", "k", run_at=later, priority=0)
    waiting = storage.enqueue("q", "k")
    assert ids(storage.claim("q")) == [waiting]
    waiting = storage.enqueue("q", "k")
    query(
        storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s' WHERE job_id <> %s", not_due
    )
    assert ids(storage.claim("q", 1)) == urgent[:1]
    assert storage.queue_counts("q").deferred == 4
    # Those that are brought in stand before what was enqueued meanwhile: their time came first.
    assert ids(storage.claim("q", 9)) == [urgent[1], *usual, waiting]
    counts = storage.queue_counts("q")
    assert (counts.available, counts.running, counts.deferred) == (0, 6, 1)
    assert differences(storage) == []


def test_a_due_job_that_another_session_holds_is_passed_over(storage: QueueStorage, connect: Connect) -> None:
    held, free = storage.enqueue_many("q", "k", [{}] * 2, run_at=datetime.now(UTC) + timedelta(hours=1))
    make_due(storage)
    other = QueueStorage(connect(), storage.namespace)
    with other.connection.transaction(force_rollback=True):
        assert other.cancel(held)
        assert ids(storage.claim("q", 10)) == [free]
    assert ids(storage.claim("q", 10)) == [held]


def test_cancelled_jobs_are_passed_over_for_good(storage: QueueStorage) -> None:
    jobs = storage.enqueue_many("q", "k", [{}] * 30)
    for job_id in [*jobs[:25], jobs[27]]:
        assert storage.cancel(job_id)
    # More of them in a row than are asked for: the claim goes on to one that can be had.
    assert ids(storage.claim("q", 3)) == [jobs[25], jobs[26]]
    assert ids(storage.claim("q", 3)) == jobs[28:]
    assert storage.claim("q", 3) == []
    with storage.connection.transaction():
        assert storage.claim("q", 3) == []
        assert query(storage, "SELECT pg_current_xact_id_if_assigned()") == [(None,)]
    assert differences(storage) == []


def test_queues_do_not_wait_for_each_other(storage: QueueStorage, connect: Connect) -> None:
    for queue in ("a", "b"):
        storage.enqueue_many(queue, "k", [{}] * 2)
    other = QueueStorage(connect(lock_timeout=timedelta(seconds=3)), storage.namespace)
    with storage.connection.transaction():
        assert len(storage.claim("a")) == 1
        assert len(other.claim("b")) == 1
