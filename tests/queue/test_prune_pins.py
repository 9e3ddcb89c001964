"""What keeps a slot from being pruned, seen before the locks and seen again under them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import QueueStorage
from ringside import differences, end_jobs, on_statement, query, snapshot, terminal

Connect = Callable[..., psycopg.Connection[Any]]


def test_jobs_that_wait_pin_their_slot(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "work", [{}] * 3)
    storage.enqueue_many("r", "work", [{}] * 2)
    storage.rotate()
    before = snapshot(storage)

    outcome = storage.prune_oldest()

    assert (outcome.outcome, outcome.slot, outcome.generation) == ("skipped_active", 0, 0)
    assert (outcome.reason, outcome.count) == ("ready_rows", 5)
    assert snapshot(storage) == before


def test_jobs_of_a_transaction_that_commits_late_pin_their_slot(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    end_jobs(storage, state="completed")  # The lane is known to both.
    late = connect()
    with late.transaction():
        QueueStorage(late, namespace).enqueue_many("q", "work", [{}] * 2)
        # The cursor passes the open transaction.
        end_jobs(storage, 2, state="completed")
    assert query(storage, "SELECT max(cardinality(late_xids)) FROM {ns}.lease_claim_batches") == [(1,)]
    storage.rotate()

    outcome = storage.prune_oldest()

    assert (outcome.outcome, outcome.reason, outcome.count) == ("skipped_active", "ready_rows", 2)
    assert len(storage.claim("q", 1)) == 1
    assert storage.prune_oldest().count == 1


def test_claims_that_are_open_pin_their_slot(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "work", [{}] * 3)
    claims = storage.claim("q", 3)
    storage.complete(claims[:1])
    storage.rotate()

    outcome = storage.prune_oldest()

    assert (outcome.outcome, outcome.reason, outcome.count) == ("skipped_active", "open_claims", 2)
    assert storage.complete(claims[1:]) == 2
    assert storage.prune_oldest().outcome == "pruned"
    assert storage.queue_counts("q").terminal == 3


def test_jobs_that_were_cancelled_while_they_waited_do_not_pin_their_slot(storage: QueueStorage) -> None:
    end_jobs(storage, 3, state="cancelled")
    storage.rotate()

    assert storage.prune_oldest().outcome == "pruned"
    assert storage.queue_counts("q").terminal == 3
    assert query(storage, "SELECT count(*) FROM {ns}.ready_tombstones") == [(0,)]


def test_jobs_to_be_tried_again_do_not_pin_their_slot(storage: QueueStorage) -> None:
    storage.enqueue("q", "work", {"n": 1})
    [claim] = storage.claim("q")
    assert storage.fail(claim, "no such file") == "retryable"
    storage.rotate()

    assert storage.prune_oldest().outcome == "pruned"
    assert storage.queue_counts("q").deferred == 1
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 second'")
    assert [again.args for again in storage.claim("q")] == [{"n": 1}]


def test_a_pinned_slot_is_passed_over_for_the_next(storage: QueueStorage) -> None:
    storage.enqueue("q", "work")
    storage.rotate()
    end_jobs(storage, 2, state="completed", queue="r")
    storage.rotate()

    outcome = storage.prune_oldest()

    assert (outcome.outcome, outcome.slot, outcome.pruned_completed) == ("pruned", 1, 2)
    assert storage.prune_oldest().outcome == "skipped_active"
    assert differences(storage) == []


def test_the_oldest_of_several_pinned_slots_is_reported(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "work", [{}] * 2)
    claims = storage.claim("q", 2)
    storage.rotate()
    storage.enqueue("q", "work")
    storage.rotate()

    outcome = storage.prune_oldest()

    assert (outcome.slot, outcome.reason, outcome.count) == (0, "open_claims", 2)
    storage.complete(claims)
    assert storage.prune_oldest().slot == 0
    outcome = storage.prune_oldest()
    assert (outcome.slot, outcome.reason, outcome.count) == (1, "ready_rows", 1)


def test_a_slot_pinned_by_one_lap_is_not_pinned_by_the_closed_claims_of_earlier_ones(
    storage: QueueStorage,
) -> None:
    for _ in range(5):
        end_jobs(storage, 2, state="completed")
        storage.rotate()
        assert storage.prune_oldest().outcome == "pruned"
    assert query(storage, "SELECT count(*) FROM {ns}.queue_ring_slots WHERE settled_batch_id > 0") == [(4,)]
    storage.enqueue("q", "work")
    [claim] = storage.claim("q")
    storage.rotate()
    assert storage.prune_oldest().reason == "open_claims"
    storage.complete([claim])
    assert storage.prune_oldest().outcome == "pruned"


def test_a_claim_before_any_prune_pins_its_slot_although_the_sequence_was_never_used(
    storage: QueueStorage,
) -> None:
    # A slot that was pruned before the first claim of all must not take that claim for settled.
    for _ in range(4):
        storage.cancel(storage.enqueue("q", "work"))
        storage.rotate()
        assert storage.prune_oldest().outcome == "pruned"
    storage.enqueue("q", "work")
    [claim] = storage.claim("q")
    assert claim.run_lease == 1
    storage.rotate()

    assert storage.prune_oldest().reason == "open_claims"


@pytest.mark.parametrize("claimed", [False, True], ids=["enqueue", "claim"])
def test_what_commits_between_the_first_look_and_the_locks_is_seen(
    storage: QueueStorage, connect: Connect, namespace: str, claimed: bool
) -> None:
    failed = end_jobs(storage)
    producer = connect()
    producer.execute("BEGIN")
    QueueStorage(producer, namespace).enqueue("q", "work")
    other = QueueStorage(connect(), namespace)
    assert storage.rotate().outcome == "rotated"
    claims = []

    def commit(name: str) -> None:
        if name == "lock_state":
            producer.execute("COMMIT")
            claims.extend(other.claim("q") if claimed else [])

    on_statement(storage, "queue/ring", before=commit)
    outcome = storage.prune_oldest()

    assert (outcome.outcome, outcome.count) == ("skipped_active", 1)
    assert outcome.reason == ("open_claims" if claimed else "ready_rows")
    assert len(claims) == claimed
    assert terminal(storage) == {failed[0]: ("failed", 0, False)}
    assert differences(storage) == []


def test_a_producer_that_has_not_committed_blocks_the_prune_of_its_slot(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    end_jobs(storage)
    producer = connect()
    producer.execute("BEGIN")
    QueueStorage(producer, namespace).enqueue("q", "work")
    storage.rotate()
    before = snapshot(storage)

    outcome = storage.prune_oldest(lock_timeout=timedelta(milliseconds=20))

    assert (outcome.outcome, outcome.slot, outcome.reason) == ("blocked", 0, "slot")
    assert snapshot(storage) == before
    producer.execute("COMMIT")
    assert storage.prune_oldest().reason == "ready_rows"
    assert len(storage.claim("q")) == 1


def test_a_restore_pins_what_was_claimed_until_a_claim_has_set_the_cursors_anew(
    storage: QueueStorage,
) -> None:
    end_jobs(storage, 2, state="completed")
    storage.enqueue("q", "work")
    # As after a restore into a cluster that counts its transactions from lower on.
    query(storage, "UPDATE {ns}.lease_claim_batches SET cursor_xid = '9000000000'::xid8")
    query(storage, "UPDATE {ns}.queue_ring_state SET table_oid = 1")
    storage.rotate()

    outcome = storage.prune_oldest()

    assert (outcome.outcome, outcome.reason) == ("skipped_active", "ready_rows")
    assert outcome.count >= 1
    claims = storage.claim("q", 10)
    assert len(claims) == 1
    storage.complete(claims)
    assert storage.prune_oldest().outcome == "pruned"
    assert storage.queue_counts("q").terminal == 3
