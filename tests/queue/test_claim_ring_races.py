"""The claim ring turns while claims are made and ended, and while the other rings turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import ClaimedJob, QueueStorage
from ringside import SOON, Gate, batches, claim_all, differences, end_jobs, held, query, turn_claims, until

pytestmark = pytest.mark.usefixtures("claims_kept")

Connect = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def other(storage: QueueStorage, connect: Connect, namespace: str) -> QueueStorage:
    """The same queue from another session."""
    return QueueStorage(connect(), namespace)


@contextmanager
def lane_held(session: QueueStorage) -> Iterator[None]:
    """Hold the lane, as a claim does, in a transaction that the test ends."""
    with session.connection.transaction():
        query(session, "SELECT {ns}.lock_lane(lane_id) FROM {ns}.queue_lanes")
        yield


def waits(session: QueueStorage, backend: int) -> bool:
    return query(session, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", backend) == [
        ("Lock",)
    ]


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
        assert turn_claims(storage).slot == 0
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

    with held(
        lambda: storage.prune_oldest(ring="claim"), Gate(storage, "queue/claim_ring", statement)
    ) as prune:
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

    with held(
        lambda: storage.prune_oldest(ring="claim"), Gate(storage, "queue/claim_ring", "carry")
    ) as prune:
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

    with held(storage.prune_oldest, Gate(storage, "queue/carry", "carry")) as prune:
        assert other.prune_oldest(ring="claim").outcome == "pruned"

    assert prune.result(SOON).carried_failed_rows == 2
    assert differences(storage) == []


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
