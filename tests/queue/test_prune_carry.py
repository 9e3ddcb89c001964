"""The failed-retention floor: what a prune carries, what it folds, and that nothing falls between."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import QueueStorage
from ringside import Gate, age, differences, end_jobs, held, prune_all, pruned, query, terminal

FLOOR = timedelta(hours=72)

pytestmark = pytest.mark.usefixtures("carry_to")


def home(storage: QueueStorage, carry_to: str, slot: int) -> bool:
    """Whether `slot` is where a job is carried now."""
    if carry_to == "floor":
        return -24 <= slot <= -1
    return [(slot,)] == query(storage, "SELECT current_slot FROM {ns}.queue_ring_state")


def test_a_failed_job_inside_the_floor_stands_alone_where_it_was_carried_and_is_retryable(
    storage: QueueStorage, carry_to: str
) -> None:
    [job_id] = end_jobs(storage)
    storage.rotate()

    outcome = storage.prune_oldest(FLOOR)

    assert (outcome.outcome, outcome.slot, outcome.generation) == ("pruned", 0, 0)
    assert (outcome.carried_failed_rows, outcome.pruned_failed, outcome.pruned_completed) == (1, 0, 0)
    [(state, slot, wide)] = terminal(storage).values()
    assert (state, home(storage, carry_to, slot), wide) == ("failed", True, True)
    assert query(storage, "SELECT count(*) FROM {ns}.ready_entries") == [(0,)]
    assert storage.retry_failed_by_queue("q").retried == [job_id]
    assert [claim.args for claim in storage.claim("q")] == [{"n": 0}]


def test_a_carried_job_reads_as_it_did_before(storage: QueueStorage, carry_to: str) -> None:
    states = ["scheduled", "available", "failed"]
    storage.enqueue("q", "work", {"n": 1}, priority=1, max_attempts=7, unique_key="k", unique_states=states)
    [claim] = storage.claim("q")
    storage.fail(claim, "no such file", terminal=True)
    columns = (
        "SELECT job_id, queue, kind, state, priority, attempt, max_attempts, lane_seq, args, run_at, attempted_at,"
        " finalized_at, created_at, unique_key FROM {ns}.terminal_jobs"
    )
    error = "SELECT error, run_lease FROM {ns}.done_entries"
    before = query(storage, columns), query(storage, error)
    assert before[0][0][8] == {"n": 1}
    storage.rotate()

    storage.prune_oldest(FLOOR)

    assert (query(storage, columns), query(storage, error)) == before
    [(slot, generation)] = query(storage, "SELECT slot, generation FROM {ns}.terminal_jobs")
    assert home(storage, carry_to, slot)
    assert generation == (0 if carry_to == "floor" else 1)
    assert query(storage, "SELECT unique_states::text[] FROM {ns}.done_entries") == [(states,)]


def test_two_failed_jobs_survive_thirty_laps_and_all_counts_hold(storage: QueueStorage) -> None:
    failed = end_jobs(storage, 2)
    total = 2
    for _ in range(30):
        end_jobs(storage, 3, state="completed")
        total += 3
        assert storage.rotate().outcome == "rotated"
        assert differences(storage) == []
        prune_all(storage, failed_retention=FLOOR)
        assert differences(storage) == []
        counts = storage.queue_counts("q")
        assert (counts.terminal, counts.failed, counts.pruned_failed) == (total, 2, 0)
        assert len(terminal(storage)) + sum(pruned(storage)) == total
    kept = terminal(storage)
    assert [kept[job_id][2] for job_id in failed] == [True, True]

    outcome = storage.retry_failed_by_queue("q")

    assert (outcome.retried, outcome.matched, outcome.pruned_failed_count) == (failed, 2, 0)
    assert sorted(claim.args["n"] for claim in storage.claim("q", 10)) == [0, 1]
    assert differences(storage) == []


def test_a_failed_job_past_the_floor_is_dropped_and_counted_as_such(storage: QueueStorage) -> None:
    old, young = end_jobs(storage, 1), end_jobs(storage, 1)
    age(storage, old, FLOOR + timedelta(seconds=1))
    age(storage, young, FLOOR - timedelta(minutes=1))
    storage.rotate()

    outcome = storage.prune_oldest(FLOOR)

    assert (outcome.carried_failed_rows, outcome.pruned_failed, outcome.pruned_completed) == (1, 1, 0)
    assert list(terminal(storage)) == young
    assert pruned(storage) == (0, 1)
    counts = storage.queue_counts("q")
    assert (counts.terminal, counts.failed, counts.pruned_failed) == (2, 1, 1)
    assert storage.retry_failed_by_queue("q").pruned_failed_count == 1
    assert differences(storage) == []


def test_a_carried_job_is_dropped_once_its_time_is_over(storage: QueueStorage) -> None:
    job_ids = end_jobs(storage)
    storage.rotate()
    prune_all(storage, failed_retention=FLOOR)
    [(_, home, _)] = terminal(storage).values()
    age(storage, job_ids, FLOOR)
    storage.rotate()

    outcome = storage.prune_oldest(FLOOR)

    assert (outcome.slot, outcome.carried_failed_rows, outcome.pruned_failed) == (home, 0, 1)
    assert terminal(storage) == {}
    assert storage.queue_counts("q").pruned_failed == 1


def test_a_cancelled_job_is_never_carried(storage: QueueStorage) -> None:
    end_jobs(storage, 2, state="cancelled")
    storage.rotate()

    outcome = storage.prune_oldest(FLOOR)

    assert (outcome.carried_failed_rows, outcome.pruned_failed, outcome.pruned_completed) == (0, 0, 2)
    assert terminal(storage) == {}
    assert pruned(storage) == (2, 0)
    assert differences(storage) == []


def test_zero_disables_the_floor(storage: QueueStorage) -> None:
    job_ids = end_jobs(storage)
    # Not even a job that failed "later" than the prune's own transaction began is kept.
    age(storage, job_ids, timedelta(hours=-1))
    storage.rotate()

    outcome = storage.prune_oldest(timedelta(0))

    assert (outcome.carried_failed_rows, outcome.pruned_failed) == (0, 1)
    assert storage.queue_counts("q").pruned_failed == 1


def test_the_floor_defaults_to_what_the_namespace_has_stored(storage: QueueStorage) -> None:
    job_ids = end_jobs(storage)
    age(storage, job_ids, timedelta(hours=71))
    storage.rotate()
    assert storage.prune_oldest(dry_run=True).carried_failed_rows == 1

    query(storage, "UPDATE {ns}.settings SET value = '3600' WHERE name = 'failed_retention'")

    assert storage.prune_oldest().pruned_failed == 1


def test_completed_jobs_go_with_the_lap_and_failed_ones_stay_as_their_queue_says(
    storage: QueueStorage,
) -> None:
    storage.set_queue("days", failed_retention=timedelta(days=3))
    storage.set_queue("hours", failed_retention=timedelta(hours=1))
    storage.set_queue("never", failed_retention=timedelta(0))
    jobs = {queue: end_jobs(storage, queue=queue) for queue in ("days", "hours", "never", "plain")}
    completed = end_jobs(storage, state="completed", queue="days")
    age(storage, sum(jobs.values(), completed), timedelta(hours=2))
    storage.rotate()

    outcome = storage.prune_oldest(timedelta(hours=3))

    assert sorted(terminal(storage)) == sorted(jobs["days"] + jobs["plain"])
    assert (outcome.carried_failed_rows, outcome.pruned_failed, outcome.pruned_completed) == (2, 2, 1)
    assert {queue: storage.queue_counts(queue).pruned_failed for queue in jobs} == {
        "days": 0,
        "hours": 1,
        "never": 1,
        "plain": 0,
    }
    assert storage.queue_counts("days").terminal == 2


def test_a_queue_s_own_retention_is_left_alone_when_none_is_given(storage: QueueStorage) -> None:
    storage.set_queue("q", failed_retention=timedelta(0))
    storage.set_queue("q")
    end_jobs(storage)
    storage.rotate()

    assert storage.prune_oldest(FLOOR).pruned_failed == 1


@pytest.mark.parametrize("state", ["failed", "completed", "cancelled"])
def test_a_row_of_another_generation_in_the_slot_is_conserved(storage: QueueStorage, state: str) -> None:
    end_jobs(storage, 2, state=state)
    query(storage, "UPDATE {ns}.done_entries SET ready_generation = 99 WHERE lane_seq % 2 = 0")
    query(storage, "UPDATE {ns}.ready_entries SET ready_generation = 99 WHERE lane_seq % 2 = 0")
    storage.rotate()

    outcome = storage.prune_oldest(FLOOR)

    assert outcome.outcome == "pruned"
    assert len(terminal(storage)) + sum(pruned(storage)) == 2
    assert storage.queue_counts("q").terminal == 2
    assert query(storage, "SELECT count(*) FROM {ns}.done_entries_0") == [(0,)]
    assert differences(storage) == []


def test_a_slot_is_ready_for_the_next_lap_after_its_prune(storage: QueueStorage) -> None:
    for lap in range(3):
        for slot in (0, 1, 2, 3):
            ring = query(storage, "SELECT current_slot, generation FROM {ns}.queue_ring_state")
            assert ring == [(slot, lap * 4 + slot)]
            end_jobs(storage, 2, state="completed")
            storage.rotate()
            [outcome] = prune_all(storage)
            assert (outcome.slot, outcome.generation) == (slot, lap * 4 + slot)
            assert differences(storage) == []
    assert storage.queue_counts("q").terminal == 24


def test_nothing_stands_outside_the_namespace(storage: QueueStorage) -> None:
    outside = (
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace IN"
        " (SELECT oid FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema|test_)')"
    )
    before = query(storage, outside)
    end_jobs(storage)
    storage.rotate()
    storage.prune_oldest(FLOOR)
    storage.retry_failed_by_queue("q")
    assert query(storage, outside) == before


def test_a_retention_that_is_changed_while_a_slot_is_pruned_counts_for_the_next_one(
    storage: QueueStorage, connect: Callable[..., psycopg.Connection[Any]]
) -> None:
    end_jobs(storage, 2)
    storage.rotate()
    pruner = QueueStorage(connect(), storage.namespace)
    with held(lambda: pruner.prune_oldest(3600), Gate(pruner, "queue/carry", "carry")) as pruning:
        storage.set_queue("q", failed_retention=0)
    outcome = pruning.result()
    assert (outcome.outcome, outcome.carried_failed_rows, outcome.pruned_failed) == ("pruned", 2, 0)
    assert differences(storage) == []
