"""Looking at the ring and at jobs: what stands where, in one snapshot, and nothing of what a job carries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.errors import InvalidArgument, TransactionOpen
from parkkeeper.queue import QueueStorage, UnknownJob
from parkkeeper.queue.jobs import list_jobs
from parkkeeper.queue.settings import NamespaceSettings
from parkkeeper.queue.status import JobStatus
from ringside import age, end_jobs, on_statement, prune_all, query

Connect = Callable[..., psycopg.Connection[Any]]
HOUR = timedelta(hours=1)


def test_the_ring_shows_what_stands_in_each_slot_and_what_pins_it(storage: QueueStorage) -> None:
    end_jobs(storage, 3)
    end_jobs(storage, 2, state="completed")
    waiting = storage.enqueue("letters", "print")
    storage.rotate()
    storage.enqueue_many("q", "work", [{}] * 3)
    storage.complete(storage.claim("q", 1))
    running, _ = storage.claim("q", 2)
    storage.rotate()
    storage.enqueue("q", "work")

    found = storage.ring_status()

    assert (found.current_slot, found.generation, found.slot_count, found.trusted) == (2, 2, 4, True)
    assert [
        (slot.slot, slot.generation, slot.state, slot.waiting, slot.running, slot.terminal, slot.failed)
        for slot in found.slots
    ] == [
        (0, 0, "sealed", 1, 0, 5, 3),
        (1, 1, "sealed", 0, 2, 1, 0),
        (2, 2, "current", 1, 0, 0, 0),
        (3, None, "empty", 0, 0, 0, 0),
    ]
    first, second, *others = [slot.pinned_by for slot in found.slots]
    assert others == [None, None]
    assert first is not None and second is not None
    assert (first.job_id, first.queue, first.kind, first.state) == (waiting, "letters", "print", "available")
    assert (second.job_id, second.queue, second.state) == (running.job_id, "q", "running")
    assert first.attempted_at is None and second.attempted_at is not None
    assert all(slot.bytes > 0 for slot in found.slots)


def test_the_job_that_pins_for_longest_is_the_oldest_that_is_still_open(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "work", [{}] * 6)
    claims = storage.claim("q", 2) + storage.claim("q", 2) + storage.claim("q", 2)
    storage.complete(claims[:3])
    storage.rotate()
    pinned_by = storage.ring_status().slots[0].pinned_by
    assert pinned_by is not None
    assert pinned_by.job_id == claims[3].job_id


def test_ended_jobs_of_a_slot_are_counted_from_rows_while_the_counters_are_not_believed(
    storage: QueueStorage,
) -> None:
    end_jobs(storage, 2)
    query(storage, "UPDATE {ns}.queue_terminal_count_deltas SET delta = -5 WHERE state = 'failed'")
    assert not storage.roll_up().trusted
    found = storage.ring_status()
    assert (found.trusted, found.slots[0].terminal, found.slots[0].failed) == (False, 2, 2)


def test_the_claim_and_the_lease_ring_show_what_is_needed_still(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "work", [{}] * 3)
    ended, *held = storage.claim("q", 3)
    storage.extend(held, HOUR)
    storage.complete([ended])
    assert storage.rotate(ring="claim").outcome == "rotated"
    before = query(storage, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")

    claims, leases = storage.held_ring_status("claim"), storage.held_ring_status("lease")

    assert (claims.ring, claims.current_slot, claims.generation, claims.slot_count) == ("claim", 1, 1, 8)
    assert [(slot.slot, slot.state, slot.held, slot.needed) for slot in claims.slots[:3]] == [
        (0, "sealed", 3, 2),
        (1, "current", 0, 0),
        (2, "empty", 0, 0),
    ]
    assert (leases.current_slot, leases.slots[0].state) == (0, "current")
    assert leases.slots[0].held == leases.slots[0].needed > 0
    assert query(storage, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text") == before

    storage.complete(held)
    assert storage.held_ring_status("claim").slots[0].needed == 0
    assert storage.held_ring_status("lease").slots[0].needed == 0
    with pytest.raises(InvalidArgument, match="ring 'queue' is refused"):
        storage.held_ring_status("queue")


def test_looking_writes_nothing_and_prune_cannot_come_in_between(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    failed = end_jobs(storage, 2)
    storage.rotate()
    storage.enqueue("q", "work")
    other, xids, outcomes = QueueStorage(connect(), namespace), set(), set()

    def look(name: str) -> None:
        cursor = psycopg.Cursor(storage.connection)
        if name not in ("one_snapshot", ""):
            xids.update(cursor.execute("SELECT pg_current_xact_id_if_assigned()").fetchall())
            outcomes.add(other.prune_oldest().outcome)

    on_statement(storage, "queue/status", after=look)
    assert storage.ring_status().slots[0].failed == 2
    assert storage.job(failed[0]).state == "failed"
    assert (xids, outcomes) == ({(None,)}, {"blocked"})
    assert other.prune_oldest().carried_failed_rows == 2


def test_a_look_is_no_part_of_the_callers_transaction(storage: QueueStorage) -> None:
    with storage.connection.transaction(), pytest.raises(TransactionOpen):
        storage.ring_status()


def test_a_job_is_found_wherever_it_stands(storage: QueueStorage) -> None:
    later = datetime.now(UTC) + HOUR
    job_id = storage.enqueue("letters", "print", {"to": "ada"}, priority=5, run_at=later, max_attempts=3)
    found = storage.job(job_id)
    assert (found.queue, found.kind, found.state, found.priority) == ("letters", "print", "scheduled", 5)
    assert (found.run_at, found.attempt, found.max_attempts, found.slot) == (later, 0, 3, None)

    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now()")
    [claim] = storage.claim("letters", lease=HOUR)
    found = storage.job(job_id)
    assert (found.state, found.attempt, found.slot) == ("running", 1, 0)
    assert (found.run_lease, found.lease_until) == (claim.run_lease, claim.lease_until)
    assert storage.extend([claim], 3 * HOUR) == 1
    extended = storage.job(job_id).lease_until
    assert extended is not None and extended > claim.lease_until + HOUR

    assert storage.fail(claim, "no paper") == "retryable"
    assert (storage.job(job_id).state, storage.job(job_id).attempt) == ("retryable", 1)
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now()")
    [claim] = storage.claim("letters")
    assert (storage.job(job_id).state, storage.job(job_id).attempt) == ("running", 2)
    assert storage.fail(claim, "no paper", terminal=True) == "failed"
    found = storage.job(job_id)
    assert (found.state, found.attempt, found.slot) == ("failed", 2, 0)
    assert found.finalized_at is not None and found.lease_until is None

    storage.rotate()
    assert [outcome.carried_failed_rows for outcome in prune_all(storage)] == [1]
    carried = storage.job(job_id)
    assert (carried.state, carried.slot in range(-24, 0)) == ("failed", True)
    assert storage.retry_failed_by_queue("letters").retried == [job_id]
    found = storage.job(job_id)
    assert (found.state, found.attempt, found.slot, found.finalized_at) == ("available", 0, 1, None)
    assert storage.cancel(job_id)
    assert storage.job(job_id).state == "cancelled"
    storage.rotate()
    prune_all(storage)
    with pytest.raises(UnknownJob, match=f"job {job_id} is unknown in namespace test_"):
        storage.job(job_id)


def test_a_job_that_was_cancelled_after_a_failure_is_found_without_its_body(storage: QueueStorage) -> None:
    job_id = storage.enqueue("q", "work")
    [claim] = storage.claim("q")
    assert storage.fail(claim, "no such file") == "retryable"
    assert storage.cancel(job_id)
    found = storage.job(job_id)
    assert (found.state, found.attempt, found.run_lease) == ("cancelled", 1, None)


def test_a_dead_letter_is_found(storage: QueueStorage) -> None:
    storage.set_queue("q", dead_letter=True)
    job_id = storage.enqueue("q", "work")
    storage.fail(storage.claim("q")[0], "no such file", terminal=True)
    found = storage.job(job_id)
    assert (found.state, found.slot, found.finalized_at is None) == ("dead_lettered", None, False)


def test_what_a_job_carries_is_not_shown(storage: QueueStorage) -> None:
    assert not {"args", "error", "unique_key"} & {field.name for field in fields(JobStatus)}


@pytest.mark.parametrize("job_id", [0, -1, 2**63, True, "7"])
def test_an_id_that_is_none_is_refused(storage: QueueStorage, job_id: Any) -> None:
    with pytest.raises(InvalidArgument, match="job_id"):
        storage.job(job_id)


def test_waiting_and_running_jobs_are_listed_over_all_slots_oldest_first(
    storage: QueueStorage,
) -> None:
    ids = []
    for _ in range(3):
        ids += storage.enqueue_many("q", "work", [{}] * 4)
        storage.rotate()
    other = storage.enqueue("other", "work")
    claims = storage.claim("q", 2) + storage.claim("q", 4)
    storage.complete(claims[1:2])
    storage.cancel(ids[7])

    def listed(state: str, **options: Any) -> list[int]:
        return [job.job_id for job in list_jobs(storage.connection, storage.namespace, state, **options)]

    assert listed("running") == [ids[0], *ids[2:6]]
    assert listed("running", limit=2) == [ids[0], ids[2]]
    assert listed("available", queue="q") == [ids[6], *ids[8:]]
    assert listed("available") == [ids[6], *ids[8:], other]
    assert listed("available", limit=3) == [ids[6], *ids[8:10]]


def test_a_queues_retention_is_taken_back_and_the_namespaces_own_is_set(storage: QueueStorage) -> None:
    assert (
        storage.set_queue("q", failed_retention=60, dead_letter_retention=90).failed_retention_seconds == 60
    )
    assert storage.set_queue("q").failed_retention_seconds == 60
    found = storage.set_queue("q", failed_retention="default", dead_letter_retention="default")
    assert (found.failed_retention_seconds, found.dead_letter_retention_seconds) == (None, None)
    with pytest.raises(InvalidArgument, match="failed_retention"):
        storage.set_queue("q", failed_retention="never")  # type: ignore[arg-type]

    jobs = end_jobs(storage, 2)
    age(storage, jobs, HOUR)
    storage.rotate()
    assert storage.set_namespace(failed_retention=HOUR / 2).failed_retention_seconds == 1800
    assert storage.prune_oldest().pruned_failed == 2
    for refused in (-1, timedelta(days=36), 1.5, "default"):
        with pytest.raises(InvalidArgument, match="failed_retention"):
            storage.set_namespace(failed_retention=refused)  # type: ignore[arg-type]
    assert storage.set_namespace(carry_to="live") == NamespaceSettings(1800, "live")
    with pytest.raises(InvalidArgument, match="carry_to"):
        storage.set_namespace(carry_to="table")
