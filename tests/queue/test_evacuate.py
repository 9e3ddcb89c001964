"""Evacuation: a few jobs that wait do not keep a slot, stay what they were, and come back in their turn."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.errors import InvalidArgument, TransactionOpen
from parkkeeper.migrations import migrate
from parkkeeper.queue import EvacuateOutcome, QueueStorage, UniqueConflict, evacuate, jobs
from ringside import SOON, differences, end_jobs, on_statement, prune_all, query, snapshot, turn, until

Connect = Callable[..., psycopg.Connection[Any]]
NOTHING = EvacuateOutcome("noop")


def _enqueue(storage: QueueStorage, numbers: range, **options: Any) -> list[int]:
    return storage.enqueue_many("q", "work", [{"n": n} for n in numbers], **options)


def _numbers(claims: list[Any]) -> list[int]:
    return [claim.args["n"] for claim in claims]


def _outside(storage: QueueStorage) -> list[int]:
    return [
        row[0]
        for row in query(
            storage, "SELECT job_id FROM {ns}.deferred_jobs WHERE state = 'available' ORDER BY evacuated_seq"
        )
    ]


def _straggle(storage: QueueStorage, jobs: int = 1, **options: Any) -> list[int]:
    """Leave jobs waiting in a slot that was sealed before the last rotate."""
    ids = _enqueue(storage, range(jobs), **options)
    turn(storage)
    end_jobs(storage, state="completed", queue="r")
    turn(storage)
    return ids


def test_a_job_of_a_paused_queue_keeps_no_slot_and_moves_once_out_and_once_back(
    storage: QueueStorage,
) -> None:
    [job_id] = _enqueue(storage, range(1))
    storage.pause("q")
    moved, reclaimed = [], []
    for _ in range(5 * 4):
        end_jobs(storage, 3, state="completed", queue="r")
        moved.append(storage.evacuate().waiting)
        assert storage.rotate().outcome == "rotated"
        while (outcome := storage.prune_oldest()).outcome == "pruned":
            reclaimed.append(outcome.slot)
    # The slot it stood in leaves it behind as soon as that is sealed; every other one is reclaimed when it is sealed.
    assert moved == [0, 1, *[0] * 18]
    assert sorted(reclaimed[:2]) == [0, 1]
    assert reclaimed[2:] == [(2 + n) % 4 for n in range(18)]
    assert storage.queue_counts("q").available == 1
    assert query(storage, "SELECT count(*) FROM {ns}.ready_entries WHERE job_id = %s", job_id) == [(0,)]

    storage.resume("q")
    [claim] = storage.claim("q", 10)
    assert (claim.job_id, claim.args, claim.attempt) == (job_id, {"n": 0}, 1)
    assert query(storage, "SELECT count(*) FROM {ns}.ready_entries WHERE job_id = %s", job_id) == [(1,)]
    assert storage.complete([claim]) == 1
    assert differences(storage) == []


def test_a_job_that_runs_for_laps_keeps_no_slot_and_ends_as_it_would_have(storage: QueueStorage) -> None:
    storage.enqueue("q", "work")
    [claim] = storage.claim("q", lease=timedelta(hours=1))
    moved = []
    for _ in range(3 * 4):
        end_jobs(storage, 3, state="completed", queue="r")
        moved.append(storage.evacuate().running)
        assert storage.rotate().outcome == "rotated"
        while storage.prune_oldest().outcome == "pruned":
            pass
    # Once the ring has turned since its slot was sealed.
    assert moved == [0, 0, 1, *[0] * 9]
    assert storage.queue_counts("q").running == 1
    assert query(storage, "SELECT count(*) FROM {ns}.ready_entries WHERE job_id = %s", claim.job_id) == [(0,)]
    assert storage.extend([claim], timedelta(hours=1)) == 1
    assert storage.complete([claim]) == 1
    assert storage.queue_counts("q").terminal == 1
    assert differences(storage) == []


def test_jobs_that_run_stay_while_a_backlog_pins_their_slot(
    storage: QueueStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evacuate, "MOST_WAITING", 2)
    _enqueue(storage, range(4))
    storage.claim("q")
    turn(storage)
    end_jobs(storage, state="completed", queue="r")
    turn(storage)
    assert storage.evacuate() == EvacuateOutcome("noop", backlogs=(0,))
    storage.claim("q")
    assert storage.evacuate() == EvacuateOutcome("evacuated", waiting=2, running=2, slots=(0,))
    assert differences(storage) == []


def test_who_only_rotates_and_prunes_is_not_stalled_by_a_job_in_each_slot(storage: QueueStorage) -> None:
    for n in range(12):
        _enqueue(storage, range(n, n + 1))
        end_jobs(storage, state="completed", queue="r")
        assert storage.rotate().outcome == "rotated"
        while storage.prune_oldest().outcome == "pruned":
            pass
    assert _numbers(storage.claim("q", 100)) == list(range(12))
    assert differences(storage) == []


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize("moved", [1, 3, 4, 6])
def test_jobs_keep_their_place_by_age_however_many_were_moved(
    storage: QueueStorage, moved: int, limit: int
) -> None:
    for start in (0, 3, 6, 9):
        _enqueue(storage, range(start, start + 3))
        turn(storage)
    assert storage.evacuate(moved).waiting == moved
    taken: list[int] = []
    while claims := storage.claim("q", limit):
        taken += _numbers(claims)
    assert taken == list(range(12))
    assert differences(storage) == []


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_older_slots_that_hold_a_backlog_come_first(
    connection: psycopg.Connection[Any], namespace: str, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(evacuate, "MOST_WAITING", 2)
    migrate(connection, namespace, "queue", queue_slots=8)
    storage = QueueStorage(connection, namespace)
    first = 0
    for size in (2, 3, 2, 3, 1):
        _enqueue(storage, range(first, first + size))
        first += size
        turn(storage)
    _enqueue(storage, range(first, first + 2))

    outcome = storage.evacuate()

    assert outcome == EvacuateOutcome("evacuated", waiting=4, slots=(0, 2), backlogs=(1, 3))
    taken: list[int] = []
    while claims := storage.claim("q", limit):
        taken += _numbers(claims)
    assert taken == list(range(first + 2))
    assert differences(storage) == []


def test_priority_comes_before_age(storage: QueueStorage) -> None:
    _straggle(storage, 2, priority=3)
    assert storage.evacuate().waiting == 2
    _enqueue(storage, range(10, 12), priority=1)
    assert _numbers(storage.claim("q", 3)) == [10, 11, 0]


def test_a_claim_brings_back_no_more_than_it_takes(storage: QueueStorage) -> None:
    ids = _straggle(storage, 5)
    storage.evacuate()
    assert _outside(storage) == ids
    assert [claim.job_id for claim in storage.claim("q", 2)] == ids[:2]
    assert _outside(storage) == ids[2:]
    with storage.connection.transaction(force_rollback=True):
        assert [claim.job_id for claim in storage.claim("q", 2)] == ids[2:4]
    assert _outside(storage) == ids[2:]
    assert differences(storage) == []


@pytest.mark.parametrize("pruned", [False, True])
def test_jobs_that_are_due_come_after_those_that_were_evacuated(storage: QueueStorage, pruned: bool) -> None:
    _straggle(storage, 2)
    storage.evacuate()
    if pruned:
        prune_all(storage)
    _enqueue(storage, range(10, 12), run_at=datetime.now(UTC) + timedelta(hours=1))
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = run_at - interval '2 h' WHERE state = 'scheduled'")
    assert _numbers(storage.claim("q", 3)) == [0, 1, 10]
    assert storage.queue_counts("q").deferred == 1
    assert _numbers(storage.claim("q", 3)) == [11]


def test_jobs_stay_what_they_were(storage: QueueStorage) -> None:
    storage.enqueue("q", "work", {"n": 0}, max_attempts=3)
    assert storage.fail(storage.claim("q")[0], "no such file") == "retryable"
    # It becomes available for its second attempt, and waits: the claim that brought it in is undone.
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")
    other = storage.enqueue("q", "other", {"n": 1}, run_at=datetime(2020, 1, 1, tzinfo=UTC))
    query(storage, "SELECT {ns}.promote_due_jobs(1, 0, 0, 10)")
    kept = "SELECT job_id, run_at, created_at, lane_id, attempt, max_attempts, kind, args FROM {ns}."
    before = query(storage, kept + "ready_entries WHERE attempt = 1 OR job_id = %s ORDER BY 1", other)
    assert len(before) == 2
    turn(storage)
    end_jobs(storage, state="completed", queue="r")
    turn(storage)

    assert storage.evacuate().waiting == 2

    assert query(storage, kept + "deferred_jobs ORDER BY 1") == before
    assert storage.queue_counts("q").available == 2
    for state in ("scheduled", "retryable"):
        assert jobs.list_jobs(storage.connection, storage.namespace, state) == []
    assert sorted(claim.attempt for claim in storage.claim("q", 10)) == [1, 2]


def test_a_unique_key_stays_held(storage: QueueStorage) -> None:
    job_id = storage.enqueue("q", "work", unique_key="one")
    turn(storage)
    end_jobs(storage, state="completed", queue="r")
    turn(storage)
    assert storage.evacuate().waiting == 1
    with pytest.raises(UniqueConflict, match=f"held by job {job_id}"):
        storage.enqueue("q", "work", unique_key="one")
    claims = storage.claim("q")
    with pytest.raises(UniqueConflict):
        storage.enqueue("q", "work", unique_key="one")
    storage.complete(claims)
    assert storage.enqueue("q", "work", unique_key="one") > job_id


def test_a_job_is_cancelled_wherever_it_stands(storage: QueueStorage) -> None:
    out, back, stays = _straggle(storage, 3)
    storage.evacuate(2)
    assert storage.cancel(out)
    assert [claim.job_id for claim in storage.claim("q")] == [back]
    assert storage.cancel(back)
    assert storage.cancel(stays)
    assert not any(storage.cancel(job_id) for job_id in (out, back, stays))
    assert storage.claim("q", 10) == []
    assert storage.queue_counts("q").terminal == 3
    assert differences(storage) == []
    storage.rotate()
    prune_all(storage)
    assert differences(storage) == []


def test_a_cancel_that_waits_for_an_evacuation_finds_the_job_where_it_went(
    storage: QueueStorage, connect: Connect
) -> None:
    [job_id] = _straggle(storage)
    other = QueueStorage(connect(), storage.namespace)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = %s"
    with ThreadPoolExecutor(1) as pool:
        with storage.connection.transaction():
            assert query(storage, "SELECT {ns}.evacuate_waiting(0, 10)") == [(1,)]
            cancelled = pool.submit(other.cancel, job_id)
            until(lambda: query(storage, waiting, other.connection.info.backend_pid) == [(1,)])
        assert cancelled.result(SOON)
    assert storage.queue_counts("q").available == 0
    assert differences(storage) == []


def test_a_lane_that_is_being_claimed_is_left_alone(storage: QueueStorage, connect: Connect) -> None:
    _straggle(storage, 3)
    other = QueueStorage(connect(), storage.namespace)
    with other.connection.transaction():
        assert len(other.claim("q")) == 1
        assert storage.evacuate() == NOTHING
    assert storage.evacuate().waiting == 2
    assert differences(storage) == []


def test_a_job_that_is_committed_late_is_neither_lost_nor_doubled(
    storage: QueueStorage, connect: Connect
) -> None:
    storage.enqueue("q", "work", {"n": 0})
    claims, evacuated = connect(), connect()
    producers = [QueueStorage(session, storage.namespace) for session in (claims, evacuated)]
    for n, producer in enumerate(producers, 1):
        producer.connection.execute("BEGIN")
        producer.enqueue("q", "work", {"n": n})
    storage.enqueue("q", "work", {"n": 3})
    turn(storage)
    end_jobs(storage, state="completed", queue="r")
    turn(storage)

    assert storage.evacuate().waiting == 2  # the cursor has passed both of them
    producers[0].connection.execute("COMMIT")
    assert _numbers(storage.claim("q", 2)) == [0, 3]
    assert _numbers(storage.claim("q", 10)) == [1]
    producers[1].connection.execute("COMMIT")
    assert storage.queue_counts("q").available == 1
    assert storage.evacuate().waiting == 1
    assert storage.evacuate() == NOTHING
    assert _numbers(storage.claim("q", 10)) == [2]
    assert differences(storage) == []


def test_stragglers_are_moved_while_there_is_room_and_others_are_not(
    connection: psycopg.Connection[Any], namespace: str
) -> None:
    migrate(connection, namespace, "queue", queue_slots=8)
    storage = QueueStorage(connection, namespace)
    for done in (2, 3):  # two of four wait, then one
        _enqueue(storage, range(4))
        storage.complete(storage.claim("q", done if done == 2 else 5))
        turn(storage)
    waiting = query(storage, "SELECT sum(waiting)::int FROM {ns}.queue_waiting_rows(1)")
    assert waiting == [(1,)]

    assert storage.evacuate() == EvacuateOutcome("evacuated", waiting=1, slots=(1,))
    assert storage.rotate().outcome == "rotated"
    assert storage.evacuate() == NOTHING


def test_a_slot_that_was_only_just_sealed_is_left_to_its_claims(storage: QueueStorage) -> None:
    end_jobs(storage, state="completed")
    turn(storage)
    _enqueue(storage, range(3))
    turn(storage)
    assert storage.evacuate() == NOTHING
    end_jobs(storage, state="completed", queue="r")
    turn(storage)
    assert storage.evacuate().slots == (1,)


def test_no_more_than_the_limit_is_moved(storage: QueueStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evacuate, "CHUNK", 2)
    ids = _straggle(storage, 7)
    assert storage.evacuate(5).waiting == 5
    assert _outside(storage) == ids[:5]
    assert storage.evacuate(5).waiting == 2


def test_bodies_that_were_cancelled_are_stepped_over(storage: QueueStorage) -> None:
    ids = _straggle(storage, 6)
    for job_id in (*ids[:4], ids[5]):
        assert storage.cancel(job_id)
    assert storage.evacuate(1).waiting == 1
    assert _outside(storage) == [ids[4]]
    assert differences(storage) == []


def test_a_ring_with_nothing_to_move_is_not_written_to(storage: QueueStorage) -> None:
    end_jobs(storage, 3)
    turn(storage)
    _enqueue(storage, range(3))
    before, xids = snapshot(storage), set()

    def look(name: str) -> None:
        cursor = psycopg.Cursor(storage.connection)
        xids.update(cursor.execute("SELECT pg_current_xact_id_if_assigned()").fetchall())

    on_statement(storage, "queue/evacuate", after=look)
    assert storage.evacuate() == NOTHING
    assert xids == {(None,)}
    assert snapshot(storage) == before


def test_counters_are_rebuilt_with_what_was_evacuated(storage: QueueStorage) -> None:
    _straggle(storage, 3)
    storage.evacuate()
    prune_all(storage)
    query(storage, "UPDATE {ns}.queue_terminal_count_deltas SET delta = 9 WHERE state = 'available'")
    storage.rebuild_terminal_counters()
    assert storage.queue_counts("q").available == 3
    assert differences(storage) == []
    assert len(storage.claim("q", 10)) == 3
    assert differences(storage) == []


def test_nothing_is_moved_after_a_restore_until_a_claim_has_begun_the_lanes_anew(
    storage: QueueStorage,
) -> None:
    _straggle(storage, 3)
    query(storage, "UPDATE {ns}.queue_ring_state SET table_oid = 1")
    assert storage.evacuate() == NOTHING
    assert _numbers(storage.claim("q")) == [0]
    assert storage.evacuate().waiting == 2
    assert differences(storage) == []


def test_a_prune_at_work_makes_it_blocked(storage: QueueStorage, connect: Connect) -> None:
    _straggle(storage)
    other = QueueStorage(connect(), storage.namespace)
    with other.connection.transaction():
        query(other, "LOCK TABLE {ns}.ready_tombstones_0 IN SHARE ROW EXCLUSIVE MODE")
        assert storage.evacuate() == EvacuateOutcome("blocked")
    assert storage.evacuate().waiting == 1


def test_it_is_no_part_of_the_caller_s_transaction(storage: QueueStorage) -> None:
    with (
        storage.connection.transaction(),
        pytest.raises(TransactionOpen, match="evacuate is a transaction of its own"),
    ):
        storage.evacuate()
    for limit in (0, 2**31, True, None, 1.5):
        with pytest.raises(InvalidArgument, match=r"limit .* is refused"):
            storage.evacuate(limit)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="lock_timeout"):
        storage.rotate(lock_timeout=timedelta(0))
