"""The claim ring turns by itself, and no claim is lost, doubled or miscounted by it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import InvalidArgument, QueueStorage, RescueOutcome
from parkkeeper.queue.outcomes import PruneOutcome
from ringside import (
    batches,
    claim_all,
    differences,
    end_jobs,
    on_statement,
    query,
    run_out,
    turn,
    turn_claims,
)

pytestmark = pytest.mark.usefixtures("claims_kept")

Connect = Callable[..., psycopg.Connection[Any]]


def test_a_sealed_slot_leaves_when_all_its_claims_have_ended(storage: QueueStorage) -> None:
    end_jobs(storage, 3, state="completed")
    end_jobs(storage, 2, state="failed")
    before = storage.queue_counts("q")

    outcome = turn_claims(storage)

    assert (outcome.outcome, outcome.slot, outcome.generation) == ("pruned", 0, 0)
    assert (outcome.carried_failed_rows, outcome.pruned_failed, outcome.pruned_completed) == (0, 0, 0)
    assert outcome.truncate_ms > 0
    assert [row for row in batches(storage) if row[2]] == []
    assert query(storage, "SELECT count(*) FROM {ns}.lease_claim_closures") == [(0,)]
    assert storage.queue_counts("q") == before
    assert differences(storage) == []
    assert storage.claim("q", 10) == []
    assert storage.prune_oldest(ring="claim") == PruneOutcome("noop")


def test_claims_that_are_open_pin_their_slot_and_no_other(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "work", [{}] * 3)
    claims = storage.claim("q", 3)
    storage.complete(claims[:1])
    assert storage.rotate(ring="claim").slot == 1
    end_jobs(storage, 2, state="completed")
    assert storage.rotate(ring="claim").slot == 2
    dry = storage.prune_oldest(ring="claim", dry_run=True)
    assert (dry.outcome, dry.slot) == ("pruned", 1)
    assert storage.prune_oldest(ring="claim").slot == 1

    outcome = storage.prune_oldest(ring="claim")

    assert (outcome.outcome, outcome.slot, outcome.reason, outcome.count) == (
        "skipped_active",
        0,
        "open_claims",
        2,
    )
    assert storage.complete(claims[1:]) == 2
    assert storage.prune_oldest(ring="claim").slot == 0
    assert differences(storage) == []


def test_no_ring_holds_up_another(storage: QueueStorage) -> None:
    storage.enqueue("stuck", "work")  # pins slot 0 of the queue ring
    end_jobs(storage, 2, state="completed")
    assert turn_claims(storage).outcome == "pruned"
    turn(storage)
    storage.enqueue("q", "work")
    [claim] = storage.claim("q")  # pins slot 1 of the claim ring, and slot 1 of the queue ring
    storage.rotate(ring="claim")
    turn(storage)
    end_jobs(storage, 2, state="failed", queue="r")
    turn(storage)
    assert storage.prune_oldest().slot == 2
    assert turn_claims(storage).slot == 2
    assert storage.complete([claim]) == 1
    assert storage.prune_oldest().slot == 1
    assert differences(storage) == []


def test_an_idle_ring_writes_nothing(storage: QueueStorage) -> None:
    xids = set()

    def look(name: str) -> None:
        cursor = psycopg.Cursor(storage.connection)
        xids.update(cursor.execute("SELECT pg_current_xact_id_if_assigned()").fetchall())

    def idle() -> None:
        assert storage.rotate(ring="claim").outcome == "skipped_idle"
        assert storage.prune_oldest(ring="claim").outcome == "noop"

    storage.enqueue("q", "work")
    on_statement(storage, "queue/claim_ring", after=look)
    idle()
    # A cursor in force is all that is left: to carry it on and on would be no idleness.
    storage.connection.cursor_factory = psycopg.Cursor
    storage.complete(storage.claim("q"))
    assert turn_claims(storage).outcome == "pruned"
    assert batches(storage) == [(1, 1, 0)]
    on_statement(storage, "queue/claim_ring", after=look)
    idle()
    assert xids == {(None,)}


def test_cursors_alone_leave_a_slot_free_to_be_opened(storage: QueueStorage) -> None:
    waiting = storage.enqueue_many("q", "work", [{}] * 40)
    seen: list[int] = []
    for _ in range(20):
        claims = storage.claim("q", 2)
        seen += [claim.job_id for claim in claims]
        storage.complete(claims)
        assert turn_claims(storage).outcome == "pruned"
        assert len(batches(storage)) <= 2
    assert seen == waiting
    assert differences(storage) == []


def test_the_ring_is_busy_when_claims_hold_every_slot(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "work", [{}] * 8)
    for _ in range(7):
        assert len(storage.claim("q")) == 1
        assert storage.rotate(ring="claim").outcome == "rotated"
    assert len(storage.claim("q")) == 1
    taken: list[str] = []
    on_statement(storage, "queue/ring", before=taken.append)

    outcome = storage.rotate(ring="claim")

    assert (outcome.outcome, outcome.slot, outcome.generation) == ("skipped_busy", 7, 7)
    assert "try_action" not in taken, "that it is busy was to be seen without a lock"


def test_the_cursor_is_carried_with_its_late_list(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    first = storage.enqueue("q", "work")
    late = connect()
    with late.transaction():
        [late_id] = QueueStorage(late, namespace).enqueue_many("q", "work", [{}])
        second = storage.enqueue("q", "work")
        claims = claim_all(storage)
        assert [claim.job_id for claim in claims] == [first, second]
        storage.complete(claims)
        assert turn_claims(storage).outcome == "pruned"
        assert storage.claim("q", 10) == []
        assert storage.rotate(ring="claim").outcome == "skipped_idle"
    [claim] = storage.claim("q", 10)
    assert claim.job_id == late_id
    assert storage.claim("q", 10) == []
    assert storage.prune_oldest().outcome == "noop"
    assert differences(storage) == []


def test_a_cursor_of_a_slot_that_was_reclaimed_since_is_dropped_and_what_comes_late_is_claimed_once(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    producer = connect()
    producer.execute("BEGIN")
    producer.execute("SELECT pg_current_xact_id()")
    end_jobs(storage, 3, state="completed")
    storage.rotate()
    assert storage.prune_oldest().outcome == "pruned"
    assert turn_claims(storage).outcome == "pruned"
    assert batches(storage) == []

    # As a producer does that read which slot is current long ago: its transaction is older than the cursor was.
    lane_id = query(storage, "SELECT lane_id FROM {ns}.queue_lanes")[0][0]
    late = QueueStorage(producer, namespace)
    query(
        late,
        "INSERT INTO {ns}.ready_entries (ready_slot, ready_generation, lane_id, max_attempts, kind, args)"
        " VALUES (0, 0, %s, 3, 'late', '{{}}')",
        lane_id,
    )
    query(late, "SELECT {ns}.add_count_delta(0, 0, %s, 1, 'available', 1)", lane_id)
    ids = storage.enqueue_many("q", "work", [{}] * 2)
    assert [claim.job_id for claim in storage.claim("q", 1)] == ids[:1]
    producer.execute("COMMIT")

    claims = claim_all(storage)
    assert sorted(claim.kind for claim in claims) == ["late", "work"]
    assert storage.claim("q", 10) == []
    assert differences(storage) == []


def test_leases_of_claims_that_left_are_dropped(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "work", [{}] * 4)
    gone, kept = storage.claim("q", 2), storage.claim("q", 2)
    storage.extend(gone + kept, timedelta(hours=1))
    storage.complete(gone)
    storage.rescue()
    storage.rotate(ring="claim")
    assert storage.prune_oldest(ring="claim").reason == "open_claims"
    assert query(storage, "SELECT count(DISTINCT run_lease) FROM {ns}.leases") == [(2,)]
    storage.complete(kept)

    assert storage.prune_oldest(ring="claim").outcome == "pruned"

    assert query(storage, "SELECT count(*) FROM {ns}.leases") == [(0,)]


def test_claims_are_rescued_after_others_have_left(storage: QueueStorage) -> None:
    end_jobs(storage, 2, state="completed")
    assert turn_claims(storage).outcome == "pruned"  # before any rescue has passed them
    storage.enqueue_many("q", "work", [{}] * 2)
    claims = storage.claim("q", 2)
    run_out(storage)
    assert storage.rescue() == RescueOutcome(rescued=2, failed=0)
    assert storage.complete(claims) == 0
    assert storage.rescue() == RescueOutcome(rescued=0, failed=0)
    assert query(storage, "SELECT count(*) FROM {ns}.leases") == [(0,)]
    assert differences(storage) == []


def test_counters_are_rebuilt_when_claims_have_left(storage: QueueStorage) -> None:
    end_jobs(storage, 2, state="completed")
    storage.enqueue_many("q", "work", [{}] * 3)
    storage.fail(storage.claim("q")[0], "no such file")
    assert turn_claims(storage).outcome == "pruned"
    [claim] = storage.claim("q")
    before = storage.queue_counts("q")
    assert (before.available, before.running, before.terminal, before.deferred) == (1, 1, 2, 1)
    query(storage, "INSERT INTO {ns}.queue_terminal_live_counts VALUES (0, 1, 'running', 0, 5)")

    storage.rebuild_terminal_counters()

    assert storage.queue_counts("q") == before
    assert differences(storage) == []
    assert storage.complete([claim]) == 1


def test_a_worker_that_ends_a_claim_after_it_has_left_is_told_so(storage: QueueStorage) -> None:
    storage.enqueue("q", "work")
    [claim] = storage.claim("q")
    assert storage.cancel(claim.job_id)
    assert turn_claims(storage).outcome == "pruned"
    assert storage.complete([claim]) == 0
    assert storage.fail(claim, "no such file") is None
    assert storage.extend([claim], timedelta(hours=1)) == 0
    assert not storage.cancel(claim.job_id)
    assert differences(storage) == []


def test_a_restore_finds_what_waits_though_claims_have_left(storage: QueueStorage) -> None:
    end_jobs(storage, 3, state="completed")
    waiting = storage.enqueue_many("q", "work", [{}] * 2)
    assert turn_claims(storage).outcome == "pruned"
    # As after a restore into a cluster that counts its transactions from lower on.
    query(storage, "UPDATE {ns}.lease_claim_batches SET cursor_xid = '9000000000'::xid8")
    query(storage, "UPDATE {ns}.queue_ring_state SET table_oid = 1")

    claims = claim_all(storage)

    assert [claim.job_id for claim in claims] == waiting
    assert storage.complete(claims) == 2
    assert turn_claims(storage).outcome == "pruned"
    assert storage.claim("q", 10) == []


@pytest.mark.parametrize(
    "arguments", [{"failed_retention": 0}, {"carry_to": "live"}, {"max_pruned_failed": 1}], ids=str
)
def test_what_is_said_of_failed_jobs_is_refused(storage: QueueStorage, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"{next(iter(arguments))}.*claim ring"):
        storage.prune_oldest(ring="claim", **arguments)


@pytest.mark.parametrize("action", ["rotate", "prune_oldest"])
def test_a_ring_that_there_is_not_is_refused(storage: QueueStorage, action: str) -> None:
    with pytest.raises(InvalidArgument, match="ring 'claims' is refused: any of queue, lease, claim"):
        getattr(storage, action)(ring="claims")


def test_a_job_that_was_let_out_of_its_slot_does_not_pin_its_claim_either(storage: QueueStorage) -> None:
    storage.enqueue("q", "work")
    [claim] = storage.claim("q")
    storage.rotate(ring="claim")
    storage.rotate()
    assert storage.prune_oldest(ring="claim").reason == "open_claims"
    assert query(storage, "SELECT {ns}.evacuate_running(0, 10)") == [(1,)]

    assert storage.prune_oldest(ring="claim").outcome == "pruned"

    assert storage.extend([claim], timedelta(hours=1)) == 1
    assert storage.complete([claim]) == 1
    assert storage.queue_counts("q").terminal == 1
