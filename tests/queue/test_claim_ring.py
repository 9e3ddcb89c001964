"""The claim ring turns by itself, and no claim is lost, doubled or miscounted by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import ClaimedJob, InvalidArgument, QueueStorage, RescueOutcome
from parkkeeper.queue.outcomes import PruneOutcome
from ringside import (
    SOON,
    Gate,
    differences,
    end_jobs,
    held,
    keep_claims,
    on_statement,
    query,
    run_out,
    until,
)

Connect = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def storage(storage: QueueStorage) -> QueueStorage:
    keep_claims(storage)
    return storage


@pytest.fixture
def other(storage: QueueStorage, connect: Connect, namespace: str) -> QueueStorage:
    """The same queue from another session."""
    return QueueStorage(connect(), namespace)


def turn(storage: QueueStorage) -> PruneOutcome:
    """Seal the current slot of the claim ring and reclaim it."""
    assert storage.rotate(ring="claim").outcome == "rotated"
    return storage.prune_oldest(ring="claim")


def batches(storage: QueueStorage) -> list[tuple[int, int, int]]:
    """Return where batches stand: claim slot, run_lease, number of jobs."""
    return query(
        storage, "SELECT claim_slot, run_lease, job_count FROM {ns}.lease_claim_batches ORDER BY run_lease"
    )


def claim_all(storage: QueueStorage) -> list[ClaimedJob]:
    claims: list[ClaimedJob] = []
    while more := storage.claim("q", 2):
        claims += more
    return claims


@contextmanager
def lane_held(session: QueueStorage) -> Iterator[None]:
    """Hold the lane, as a claim does, in a transaction that the test ends."""
    with session.connection.transaction():
        query(session, "SELECT {ns}.lock_lane(lane_id) FROM {ns}.queue_lanes")
        yield


def waits(session: QueueStorage, backend: int) -> bool:
    return query(session, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", backend) == [("Lock",)]


@pytest.fixture
def begin_claim(
    storage: QueueStorage, connect: Connect, namespace: str
) -> Iterator[Callable[[], Future[list[ClaimedJob]]]]:
    """Begin a claim in a session of its own, up to where it waits for its lane: it has read which slot is current."""
    session = QueueStorage(connect(), namespace)
    with ThreadPoolExecutor(1) as pool:

        def begin() -> Future[list[ClaimedJob]]:
            future = pool.submit(session.claim, "q", 2)
            until(lambda: waits(storage, session.connection.info.backend_pid))
            return future

        yield begin


def test_a_sealed_slot_leaves_when_all_its_claims_have_ended(storage: QueueStorage) -> None:
    end_jobs(storage, 3, state="completed")
    end_jobs(storage, 2, state="failed")
    before = storage.queue_counts("q")

    outcome = turn(storage)

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
    assert turn(storage).outcome == "pruned"
    storage.rotate()
    storage.enqueue("q", "work")
    [claim] = storage.claim("q")  # pins slot 1 of the claim ring, and slot 1 of the queue ring
    storage.rotate(ring="claim")
    storage.rotate()
    end_jobs(storage, 2, state="failed", queue="r")
    storage.rotate()
    assert storage.prune_oldest().slot == 2
    assert turn(storage).slot == 2
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
    assert turn(storage).outcome == "pruned"
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
        assert turn(storage).outcome == "pruned"
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
        assert turn(storage).outcome == "pruned"
        assert storage.claim("q", 10) == []
        assert storage.rotate(ring="claim").outcome == "skipped_idle"
    [claim] = storage.claim("q", 10)
    assert claim.job_id == late_id
    assert storage.claim("q", 10) == []
    assert storage.prune_oldest().outcome == "noop"
    assert differences(storage) == []


def test_a_claim_that_was_told_of_an_older_slot_does_not_hide_behind_a_newer_one(
    storage: QueueStorage, other: QueueStorage, begin_claim: Callable[[], Future[list[ClaimedJob]]]
) -> None:
    end_jobs(storage, state="completed")
    ids = storage.enqueue_many("q", "work", [{}] * 6)
    with lane_held(other):
        slow = begin_claim()
        assert storage.rotate(ring="claim").outcome == "rotated"
        quick = other.claim("q", 2)
    taken = [claim.job_id for claim in quick + slow.result(SOON)]
    assert taken == ids[:4]
    assert [(slot, jobs) for slot, _, jobs in batches(storage)] == [(0, 1), (1, 2), (0, 2)]

    assert [claim.job_id for claim in claim_all(storage)] == ids[4:]
    assert differences(storage) == []


def test_a_claim_that_comes_to_a_slot_after_its_prune_is_found_there(
    storage: QueueStorage, other: QueueStorage, begin_claim: Callable[[], Future[list[ClaimedJob]]]
) -> None:
    end_jobs(storage, 2, state="completed")
    ids = storage.enqueue_many("q", "work", [{}] * 4)
    with lane_held(other):
        slow = begin_claim()
        assert turn(storage).slot == 0
    claims = slow.result(SOON)
    assert [claim.job_id for claim in claims] == ids[:2]
    assert [(slot, jobs) for slot, _, jobs in batches(storage)] == [(1, 0), (0, 2)]
    outcome = storage.prune_oldest(ring="claim")
    assert (outcome.slot, outcome.reason, outcome.count) == (0, "open_claims", 2)
    storage.complete(claims)
    assert storage.prune_oldest(ring="claim").slot == 0

    assert [claim.job_id for claim in claim_all(storage)] == ids[2:]
    assert differences(storage) == []


def test_a_claim_in_hand_blocks_the_prune_and_keeps_its_cursor(
    storage: QueueStorage, other: QueueStorage
) -> None:
    end_jobs(storage, 2, state="completed")
    ids = storage.enqueue_many("q", "work", [{}] * 2)
    storage.rotate(ring="claim")
    with other.connection.transaction():
        assert [claim.job_id for claim in other.claim("q")] == ids[:1]
        before = batches(storage)
        outcome = storage.prune_oldest(ring="claim", lock_timeout=timedelta(milliseconds=20))
        assert (outcome.outcome, outcome.slot, outcome.reason) == ("blocked", 0, "slot")
        assert batches(storage) == before
    assert storage.prune_oldest(ring="claim").outcome == "pruned"
    assert [claim.job_id for claim in claim_all(storage)] == ids[1:]
    assert differences(storage) == []


@pytest.mark.parametrize("statement", ["lock_state", "carry", "hold_all"])
def test_claims_and_ends_go_on_while_a_slot_is_pruned(
    storage: QueueStorage, other: QueueStorage, statement: str
) -> None:
    end_jobs(storage, 2, state="completed")
    storage.rotate(ring="claim")
    ids = storage.enqueue_many("q", "work", [{}] * 3)

    with held(lambda: storage.prune_oldest(ring="claim"), Gate(storage, "queue/claim_ring", statement)) as prune:
        claims = other.claim("q", 2)
        assert [claim.job_id for claim in claims] == ids[:2]
        assert other.complete(claims) == 2

    assert prune.result(SOON).outcome == "pruned"
    assert [claim.job_id for claim in claim_all(other)] == ids[2:]
    assert differences(other) == []


def test_a_second_prune_of_the_ring_says_blocked_at_once_and_one_of_another_ring_does_not(
    storage: QueueStorage, other: QueueStorage
) -> None:
    end_jobs(storage, 2, state="completed")
    storage.rotate(ring="claim")
    storage.rotate()

    with held(lambda: storage.prune_oldest(ring="claim"), Gate(storage, "queue/claim_ring", "carry")) as prune:
        outcome = other.prune_oldest(ring="claim", lock_timeout=timedelta(seconds=5))
        assert (outcome.outcome, outcome.reason) == ("blocked", "prune")
        assert other.rotate(ring="claim").outcome == "skipped_idle"
        assert other.prune_oldest().outcome == "pruned"
        assert other.rotate().outcome == "skipped_idle"

    assert prune.result(SOON).outcome == "pruned"
    assert differences(storage) == []


def test_the_queue_ring_reads_no_cursor_while_a_prune_carries_it(
    storage: QueueStorage, other: QueueStorage
) -> None:
    end_jobs(storage, 2, state="completed")
    storage.rotate(ring="claim")
    storage.rotate()

    # The locks on the claim ring come before the snapshot by which jobs that wait are told from claimed ones.
    with held(storage.prune_oldest, Gate(storage, "queue/prune", "proofs")) as prune:
        assert other.prune_oldest(ring="claim").reason == "slot"

    assert prune.result(SOON).outcome == "pruned"
    assert other.prune_oldest(ring="claim").outcome == "pruned"


def test_a_carry_of_the_queue_ring_does_not_hold_up_the_claim_ring(
    storage: QueueStorage, other: QueueStorage
) -> None:
    end_jobs(storage, 2, state="failed")
    storage.rotate(ring="claim")
    storage.rotate()

    with held(storage.prune_oldest, Gate(storage, "queue/prune", "carry")) as prune:
        assert other.prune_oldest(ring="claim").outcome == "pruned"

    assert prune.result(SOON).carried_failed_rows == 2
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
    assert turn(storage).outcome == "pruned"
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
    assert turn(storage).outcome == "pruned"  # before any rescue has passed them
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
    assert turn(storage).outcome == "pruned"
    [claim] = storage.claim("q")
    before = storage.queue_counts("q")
    assert (before.available, before.running, before.terminal, before.deferred) == (1, 1, 2, 1)
    query(storage, "INSERT INTO {ns}.queue_terminal_live_counts VALUES (0, 1, 'running', 0, 5)")

    storage.rebuild_terminal_counters()

    assert storage.queue_counts("q") == before
    assert differences(storage) == []
    assert storage.complete([claim]) == 1


def test_a_job_that_runs_is_cancelled_though_its_former_attempt_stands_in_a_newer_slot(
    storage: QueueStorage, other: QueueStorage, begin_claim: Callable[[], Future[list[ClaimedJob]]]
) -> None:
    end_jobs(storage, state="completed")
    job_id = storage.enqueue("q", "work")
    with lane_held(other):
        slow = begin_claim()
        assert storage.rotate(ring="claim").outcome == "rotated"
        [former] = other.claim("q")
        assert other.fail(former, "no such file") == "retryable"
        query(other, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")
    [claim] = slow.result(SOON)
    assert (claim.job_id, claim.attempt, claim.claim_slot) == (job_id, 2, 0)

    assert storage.cancel(job_id)

    assert storage.complete([claim]) == 0
    assert storage.queue_counts("q").running == 0
    assert differences(storage) == []


def test_a_worker_that_ends_a_claim_after_it_has_left_is_told_so(storage: QueueStorage) -> None:
    storage.enqueue("q", "work")
    [claim] = storage.claim("q")
    assert storage.cancel(claim.job_id)
    assert turn(storage).outcome == "pruned"
    assert storage.complete([claim]) == 0
    assert storage.fail(claim, "no such file") is None
    assert storage.extend([claim], timedelta(hours=1)) == 0
    assert not storage.cancel(claim.job_id)
    assert differences(storage) == []


def test_a_restore_finds_what_waits_though_claims_have_left(storage: QueueStorage) -> None:
    end_jobs(storage, 3, state="completed")
    waiting = storage.enqueue_many("q", "work", [{}] * 2)
    assert turn(storage).outcome == "pruned"
    # As after a restore into a cluster that counts its transactions from lower on.
    query(storage, "UPDATE {ns}.lease_claim_batches SET cursor_xid = '9000000000'::xid8")
    query(storage, "UPDATE {ns}.queue_ring_state SET table_oid = 1")

    claims = claim_all(storage)

    assert [claim.job_id for claim in claims] == waiting
    assert storage.complete(claims) == 2
    assert turn(storage).outcome == "pruned"
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


def test_producers_workers_and_maintenance_at_once_do_each_job_once(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    sessions = [QueueStorage(connect(), namespace) for _ in range(4)]
    wanted = [storage.enqueue_many("q", "work", [{}] * 5) for _ in range(40)]
    total = sum(map(len, wanted))
    storage.claim("q", 1)  # the lane's first cursor; this one stays open

    def work(session: QueueStorage) -> list[int]:
        done: list[int] = []
        while claims := session.claim("q", 3):
            assert session.complete(claims) == len(claims)
            done += [claim.job_id for claim in claims]
        return done

    with ThreadPoolExecutor(3) as pool:
        working = [pool.submit(work, session) for session in sessions[:3]]
        while not all(future.done() for future in working):
            assert sessions[3].rotate(ring="claim").outcome != "skipped_busy"
            sessions[3].prune_oldest(ring="claim")
        done = [job_id for future in working for job_id in future.result(SOON)]

    assert len(done) == len(set(done)) == total - 1
    assert differences(storage) == []
