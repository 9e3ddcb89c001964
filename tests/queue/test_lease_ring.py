"""The lease ring turns by itself, and a lease that is needed is never lost by it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import QueueStorage, RescueOutcome
from parkkeeper.queue.outcomes import PruneOutcome
from ringside import SOON, Gate, differences, held, on_statement, query, run_out

Connect = Callable[..., psycopg.Connection[Any]]
HOUR = timedelta(hours=1)


@pytest.fixture
def other(storage: QueueStorage, connect: Connect, namespace: str) -> QueueStorage:
    """The same queue from another session."""
    return QueueStorage(connect(), namespace)


def leases(storage: QueueStorage) -> list[tuple[int, int]]:
    """Return where leases stand: slot, run_lease."""
    return query(storage, "SELECT lease_slot, run_lease FROM {ns}.leases ORDER BY 2, 1")


def take(storage: QueueStorage, count: int = 1) -> list[Any]:
    storage.enqueue_many("q", "work", [{}] * count)
    claims = storage.claim("q", count)
    assert len(claims) == count
    return claims


def test_leases_of_claims_that_have_ended_leave_with_their_slot(storage: QueueStorage) -> None:
    claims = take(storage, 3)
    storage.extend(claims, HOUR)
    storage.complete(claims)
    assert leases(storage) == [(0, 1)]
    assert storage.rotate(ring="lease").slot == 1

    outcome = storage.prune_oldest(ring="lease")

    assert (outcome.outcome, outcome.slot, outcome.generation) == ("pruned", 0, 0)
    assert (outcome.carried_failed_rows, outcome.pruned_failed, outcome.pruned_completed) == (0, 0, 0)
    assert outcome.truncate_ms > 0
    assert leases(storage) == []
    assert storage.prune_oldest(ring="lease") == PruneOutcome("noop")
    assert differences(storage) == []


def test_a_long_job_pins_no_slot_and_is_rescued_when_its_lease_has_run_out(storage: QueueStorage) -> None:
    [long] = take(storage)
    storage.extend([long], HOUR)
    for lap in range(9):
        short = take(storage)
        storage.extend(short, HOUR)
        storage.complete(short)
        assert storage.rotate(ring="lease").slot == (lap + 1) % 8
        assert storage.prune_oldest(ring="lease").outcome == "pruned"
        assert leases(storage) == [((lap + 1) % 8, long.run_lease)]
    storage.rescue()  # passes the batch, which keeps its own lease as well
    run_out(storage)
    assert storage.rescue() == RescueOutcome(rescued=1, failed=0)
    assert storage.complete([long]) == 0
    assert leases(storage) == []
    assert differences(storage) == []


def test_leases_that_have_run_out_and_were_not_rescued_are_kept(storage: QueueStorage) -> None:
    claims = take(storage, 2)
    storage.rescue()
    storage.complete(claims[:1])
    done = take(storage)
    storage.extend(done, HOUR)
    storage.complete(done)
    run_out(storage)
    storage.rotate(ring="lease")
    assert storage.prune_oldest(ring="lease").outcome == "pruned"
    assert leases(storage) == [(1, claims[0].run_lease)]
    assert storage.rescue() == RescueOutcome(rescued=1, failed=0)


def test_an_extension_of_some_claims_of_a_batch_is_moved_as_it_is(storage: QueueStorage) -> None:
    claims = take(storage, 3)
    storage.extend(claims[1:2], HOUR)
    before = query(storage, "SELECT claim_slot, run_lease, lease_until, ordinals FROM {ns}.leases")
    done = take(storage)
    storage.extend(done, HOUR)
    storage.complete(done)
    storage.rotate(ring="lease")
    storage.prune_oldest(ring="lease")
    assert query(storage, "SELECT claim_slot, run_lease, lease_until, ordinals FROM {ns}.leases") == before


def test_an_idle_ring_and_one_of_needed_leases_write_nothing(storage: QueueStorage) -> None:
    xids = set()

    def look(name: str) -> None:
        cursor = psycopg.Cursor(storage.connection)
        xids.update(cursor.execute("SELECT pg_current_xact_id_if_assigned()").fetchall())

    def idle() -> None:
        on_statement(storage, "queue/lease_ring", after=look)
        assert storage.rotate(ring="lease").outcome == "skipped_idle"
        assert storage.prune_oldest(ring="lease").outcome == "noop"
        storage.connection.cursor_factory = psycopg.Cursor

    idle()
    storage.extend(take(storage), HOUR)
    assert len(leases(storage)) == 1
    idle()
    assert xids == {(None,)}


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(storage: QueueStorage) -> None:
    claims = take(storage)
    storage.extend(claims, HOUR)
    storage.complete(claims)
    storage.rotate(ring="lease")
    before = leases(storage)
    outcome = storage.prune_oldest(ring="lease", dry_run=True)
    assert (outcome.outcome, outcome.slot) == ("pruned", 0)
    assert leases(storage) == before


def test_a_reader_blocks_the_prune_and_nothing_changes(storage: QueueStorage, other: QueueStorage) -> None:
    claims = take(storage)
    storage.extend(claims, HOUR)
    storage.complete(claims)
    storage.rotate(ring="lease")
    with other.connection.transaction():
        before = leases(other)
        outcome = storage.prune_oldest(ring="lease", lock_timeout=timedelta(milliseconds=20))
        assert (outcome.outcome, outcome.slot, outcome.reason) == ("blocked", 0, "slot")
        assert leases(other) == before
    assert storage.prune_oldest(ring="lease").outcome == "pruned"


@pytest.mark.parametrize("statement", ["lock_state", "hold_all"])
def test_extensions_that_come_before_the_locks_are_moved_too(
    storage: QueueStorage, other: QueueStorage, statement: str
) -> None:
    claims = take(storage, 2)
    storage.extend(claims, HOUR)
    storage.complete(claims[:1])
    done = take(storage)
    storage.extend(done, HOUR)
    storage.complete(done)
    storage.rotate(ring="lease")

    with held(
        lambda: storage.prune_oldest(ring="lease"), Gate(storage, "queue/lease_ring", statement)
    ) as prune:
        assert other.extend(claims[1:], HOUR) == 1
        assert other.rescue() == RescueOutcome(0, 0)

    assert prune.result(SOON).outcome == "pruned"
    assert {lease for _, lease in leases(storage)} == {claims[0].run_lease}
    run_out(storage)
    assert storage.rescue() == RescueOutcome(rescued=1, failed=0)


def test_an_extension_that_waits_for_the_prune_is_not_lost(
    storage: QueueStorage, other: QueueStorage
) -> None:
    claims = take(storage)
    storage.extend(claims, HOUR)
    done = take(storage)
    storage.extend(done, HOUR)
    storage.complete(done)
    # As one that read which slot is current before the ring turned.
    with other.connection.transaction():
        query(
            other,
            "INSERT INTO {ns}.leases (lease_slot, claim_slot, run_lease, lease_until)"
            " VALUES (0, %s, %s, now() + interval '3 h')",
            claims[0].claim_slot,
            claims[0].run_lease,
        )
        storage.rotate(ring="lease")
        assert storage.prune_oldest(ring="lease").outcome == "blocked"
    assert storage.prune_oldest(ring="lease").outcome == "pruned"
    assert leases(storage) == [(1, claims[0].run_lease)] * 2


def test_the_lease_ring_and_the_claim_ring_are_pruned_at_once_without_a_deadlock(
    storage: QueueStorage, other: QueueStorage
) -> None:
    claims = take(storage)
    storage.extend(claims, HOUR)
    storage.complete(claims)
    for ring in ("lease", "claim"):
        assert storage.rotate(ring=ring).outcome == "rotated"

    # The locks on claims come first in both, so the one that is second waits with nothing that the first one wants.
    with held(
        lambda: storage.prune_oldest(ring="lease"), Gate(storage, "queue/lease_ring", "carry")
    ) as prune:
        assert other.prune_oldest(ring="claim").reason == "slot"

    assert prune.result(SOON).outcome == "pruned"
    with held(
        lambda: storage.prune_oldest(ring="claim"), Gate(storage, "queue/claim_ring", "drop_leases")
    ) as prune:
        query(other, "INSERT INTO {ns}.leases VALUES (now(), 1, 0, 0)")
        assert other.prune_oldest(ring="lease").reason == "slot"
    assert prune.result(SOON).outcome == "pruned"
    assert leases(storage) == []
