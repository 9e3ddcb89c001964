"""The invariants of the queue: nothing that the product does breaks one, and each that is broken by hand is named."""

from __future__ import annotations

from datetime import timedelta

import pytest

from parkkeeper.queue import QueueStorage, TransactionOpen
from ringside import age, claim_all, differences, end_jobs, prune_all, query, run_out, turn_claims


@pytest.fixture
def used(storage: QueueStorage) -> QueueStorage:
    """A queue in which jobs stand in every place that there is."""
    storage.set_queue("letters", dead_letter=True)
    end_jobs(storage, 1, queue="letters", state="completed")
    storage.enqueue("letters", "print")
    storage.fail(storage.claim("letters")[0], "no paper", terminal=True)
    old, kept = end_jobs(storage, 2), end_jobs(storage, 2)
    age(storage, old, timedelta(hours=73))
    end_jobs(storage, 1, state="cancelled")
    storage.rotate()
    assert prune_all(storage)
    end_jobs(storage, 2)
    assert len(storage.retry_failed(kept[:1]).retried) == 1
    storage.enqueue("q", "work", unique_key="one", unique_states=["scheduled", "available", "completed"])
    storage.enqueue("q", "work", run_at=query(storage, "SELECT now() + interval '1 h'")[0][0])
    storage.enqueue_many("parcels", "weigh", [{}] * 5)
    claims = storage.claim("parcels", 3, lease=timedelta(hours=1))
    assert storage.extend(claims[:1], timedelta(hours=2)) == 1
    storage.rescue()
    assert storage.complete(claims[2:]) == 1
    storage.fail(claims[1], "too heavy")
    return storage


def broken(storage: QueueStorage) -> dict[str, tuple[str, ...]]:
    """Return the examples of each invariant that does not hold."""
    return {found.invariant: found.examples for found in storage.broken_invariants()}


def test_nothing_that_a_queue_does_breaks_one(used: QueueStorage) -> None:
    assert broken(used) == {}
    assert differences(used) == []
    used.roll_up()
    assert broken(used) == {}
    claim_all(used)
    used.rescue()
    assert broken(used) == {}
    used.rotate()
    used.evacuate()
    assert broken(used) == {}
    run_out(used)
    used.rescue()
    prune_all(used)
    turn_claims(used)
    assert broken(used) == {}


DAMAGES = {
    "counts_equal_rows": (
        "INSERT INTO {ns}.queue_terminal_count_deltas SELECT ready_generation, 1, ready_slot, lane_id, state, bucket"
        " FROM {ns}.queue_terminal_count_deltas WHERE state = 'scheduled' LIMIT 1",
        "1 jobs, 2 counted",
    ),
    "job_in_one_place": (
        "INSERT INTO {ns}.deferred_jobs (job_id, run_at, created_at, lane_id, state, attempt, max_attempts, kind, args)"
        " SELECT job_id, now(), now(), lane_id, 'retryable', 1, 2, kind, '{{}}' FROM {ns}.done_entries"
        " WHERE ready_slot < 0 LIMIT 1",
        "failed in slot -",
    ),
    "claim_of_a_job": (
        "DELETE FROM {ns}.ready_entries WHERE job_id = (SELECT job_ids[1] FROM {ns}.lease_claim_batches"
        " WHERE job_count = 3)",
        "has no body of it",
    ),
    "claim_can_be_rescued": ("DELETE FROM {ns}.leases", "has no lease"),
    "ended_job_has_a_row": (
        "DELETE FROM {ns}.done_entries WHERE job_id = (SELECT job_ids[3] FROM {ns}.lease_claim_batches"
        " WHERE job_count = 3)",
        "has ended as completed",
    ),
    "key_held_by_a_job": ("UPDATE {ns}.job_unique_claims SET job_id = 4711", "job 4711"),
    "claim_ends_once": (
        "INSERT INTO {ns}.lease_claim_closures SELECT * FROM {ns}.lease_claim_closures",
        "2 ended",
    ),
    "row_of_a_lane": ("DELETE FROM {ns}.queue_lanes WHERE queue = 'letters'", "dlq_entries: 1 rows"),
    "ended_job_has_a_body": (
        "UPDATE {ns}.done_entries SET args = NULL WHERE ready_slot < 0",
        "failed in slot -",
    ),
    "floor_is_told": (
        "UPDATE {ns}.floor_segment_contents SET newest_finalized_at = newest_finalized_at - interval '1 s'",
        "one younger than told",
    ),
    "ring_is_whole": ("UPDATE {ns}.queue_ring_state SET generation = 77", "the ring of 77"),
    "setting_is_legal": ("UPDATE {ns}.settings SET value = 'attic' WHERE name = 'carry_to'", "attic"),
    "object_outside": ("CREATE SCHEMA parkkeeper_verify_1", "schema parkkeeper_verify_1"),
}


def test_each_that_is_broken_by_hand_is_named(used: QueueStorage) -> None:
    # The damages add up: each breaks one that held until then.
    for invariant, (damage, example) in DAMAGES.items():
        assert invariant not in broken(used)
        for statement in damage.split(";"):
            query(used, statement)
        found = broken(used)
        assert invariant in found
        assert any(example in one for one in found[invariant]), found[invariant]


def test_counts_that_are_not_believed_are_not_compared(used: QueueStorage) -> None:
    query(used, "DELETE FROM {ns}.queue_terminal_live_counts")
    query(used, "DELETE FROM {ns}.queue_terminal_count_deltas")
    assert set(broken(used)) == {"counts_equal_rows"}
    query(used, "UPDATE {ns}.queue_counter_state SET distrusted_at = now()")
    assert broken(used) == {}


def test_it_cannot_write_and_refuses_the_transaction_of_a_caller(used: QueueStorage) -> None:
    with used.connection.transaction(), pytest.raises(TransactionOpen):
        used.broken_invariants()
    query(used, "SET default_transaction_read_only = on")
    assert broken(used) == {}
