"""Floor segments: a failed job is moved once, stays for as long as it is promised, and leaves with its segment."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from parkkeeper.migrations import migrate, packaged
from parkkeeper.queue import PruneRefused, QueueStorage, UniqueConflict
from ringside import age, differences, end_jobs, on_statement, prune_all, pruned, query, snapshot, terminal

Connect = Callable[..., psycopg.Connection[Any]]
FLOOR = timedelta(hours=72)
HOUR = timedelta(hours=1)


def carried(storage: QueueStorage, count: int = 1, *, queue: str = "q", ago: timedelta = HOUR) -> list[int]:
    """Fail jobs some time ago, and let a prune carry them."""
    ids = end_jobs(storage, count, queue=queue)
    age(storage, ids, ago)
    assert storage.rotate().outcome == "rotated"
    [outcome] = prune_all(storage)
    assert (outcome.carried_failed_rows, outcome.pruned_failed) == (count, 0)
    return ids


def lap(storage: QueueStorage, turns: int = 4) -> None:
    """Turn the ring with traffic in it."""
    for _ in range(turns):
        end_jobs(storage, 2, queue="traffic", state="completed")
        assert storage.rotate().outcome == "rotated"
        prune_all(storage)


def let_pass(storage: QueueStorage, by: timedelta) -> None:
    """Let time pass for all that is in the floor segments."""
    query(storage, "UPDATE {ns}.done_entries SET finalized_at = finalized_at - %s WHERE ready_slot < 0", by)
    query(
        storage,
        "UPDATE {ns}.floor_segment_contents"
        "   SET newest_finalized_at = newest_finalized_at - %s, expected_until = expected_until - %s",
        by,
        by,
    )


def versions(storage: QueueStorage, job_ids: list[int]) -> list[tuple[Any, ...]]:
    """Return what changes when a row is written again: where it stands, and by which transaction."""
    return query(
        storage,
        "SELECT job_id, ready_slot, ctid::text, xmin::text FROM {ns}.done_entries WHERE job_id = ANY (%s) ORDER BY 1",
        job_ids,
    )


def test_a_failed_job_is_moved_once_however_often_the_ring_turns(storage: QueueStorage) -> None:
    job_ids = carried(storage, 3)
    moved = versions(storage, job_ids)
    assert all(slot < 0 for _, slot, *_ in moved)

    for _ in range(5):
        lap(storage)
        assert differences(storage) == []

    assert versions(storage, job_ids) == moved
    assert storage.queue_counts("q").failed == 3
    assert storage.retry_failed_by_queue("q").retried == job_ids


def test_a_ring_that_holds_floor_rows_only_is_idle_and_nothing_is_written(
    storage: QueueStorage, connect: Connect
) -> None:
    carried(storage, 3)
    before = snapshot(storage)
    xids = set()

    def look(name: str) -> None:
        cursor = psycopg.Cursor(storage.connection)
        xids.update(cursor.execute("SELECT pg_current_xact_id_if_assigned()").fetchall())

    on_statement(storage, "queue/ring", after=look)
    assert storage.rotate().outcome == "skipped_idle"
    assert storage.prune_oldest().outcome == "noop"

    assert xids == {(None,)}
    assert snapshot(storage) == before


def test_a_segment_whose_rows_are_past_the_floor_is_folded_and_truncated_in_a_unit_of_its_own(
    storage: QueueStorage,
) -> None:
    carried(storage, 3)
    end_jobs(storage, 2, state="completed")
    storage.rotate()
    let_pass(storage, FLOOR)

    outcome = storage.prune_oldest()

    assert outcome.slot is not None and -24 <= outcome.slot <= -1
    assert (outcome.outcome, outcome.generation) == ("pruned", None)
    assert (outcome.carried_failed_rows, outcome.pruned_failed, outcome.pruned_completed) == (0, 3, 0)
    assert differences(storage) == []
    assert pruned(storage) == (0, 3)
    assert storage.prune_oldest().pruned_completed == 2
    assert storage.prune_oldest().outcome == "noop"
    assert query(storage, "SELECT count(*) FROM {ns}.done_entries") == [(0,)]
    assert query(storage, "SELECT count(*) FROM {ns}.queue_terminal_count_deltas WHERE ready_slot < 0") == [
        (0,)
    ]
    counts = storage.queue_counts("q")
    assert (counts.failed, counts.terminal, counts.pruned_failed) == (0, 5, 3)


def test_a_segment_stays_while_one_of_its_rows_is_inside_the_floor_of_its_queue(
    storage: QueueStorage,
) -> None:
    storage.set_queue("long", failed_retention=timedelta(hours=7))
    storage.set_queue("short", failed_retention=timedelta(hours=7))
    end_jobs(storage, 1, queue="long")
    end_jobs(storage, 2, queue="short")
    storage.rotate()
    prune_all(storage)
    assert query(storage, "SELECT count(DISTINCT ready_slot) FROM {ns}.done_entries") == [(1,)]

    storage.set_queue("short", failed_retention=0)
    assert storage.prune_oldest().outcome == "noop"
    assert storage.queue_counts("short").failed == 2

    storage.set_queue("long", failed_retention=0)
    assert storage.prune_oldest().pruned_failed == 3
    assert storage.queue_counts("short").pruned_failed == 2
    assert storage.queue_counts("long").pruned_failed == 1


def test_a_retention_that_is_lowered_counts_from_the_next_prune_on(storage: QueueStorage) -> None:
    carried(storage, 2, ago=timedelta(hours=5))

    assert storage.prune_oldest(timedelta(hours=6)).outcome == "noop"
    assert storage.prune_oldest(timedelta(hours=4)).pruned_failed == 2


def test_a_retention_that_is_raised_keeps_rows_beyond_their_segment_with_one_more_move(
    storage: QueueStorage,
) -> None:
    job_ids = carried(storage, 2)
    [(_, first, *_), _] = versions(storage, job_ids)
    storage.set_queue("q", failed_retention=timedelta(days=20))
    let_pass(storage, FLOOR)

    outcome = storage.prune_oldest()

    assert (outcome.outcome, outcome.slot) == ("pruned", first)
    assert (outcome.carried_failed_rows, outcome.pruned_failed) == (2, 0)
    moved = versions(storage, job_ids)
    assert all(slot < 0 and slot != first for _, slot, *_ in moved)
    assert differences(storage) == []
    lap(storage)
    assert versions(storage, job_ids) == moved
    let_pass(storage, timedelta(days=18))
    assert storage.prune_oldest().pruned_failed == 2


def test_a_row_whose_segment_would_be_the_same_again_moves_to_the_next_one(storage: QueueStorage) -> None:
    storage.set_queue("q", failed_retention=timedelta(days=30))
    job_ids = carried(storage, 2)
    [(_, first, *_), _] = versions(storage, job_ids)
    let_pass(storage, timedelta(days=30))
    # The wheel names the same segment again.
    query(storage, "UPDATE {ns}.done_entries SET finalized_at = now() - interval '30 d' + interval '1 h'")
    query(
        storage,
        "UPDATE {ns}.floor_segment_contents SET newest_finalized_at = now() - interval '30 d' + interval '1 h'",
    )
    query(
        storage,
        "CREATE OR REPLACE FUNCTION {ns}.floor_segment(p_expires_at timestamptz, p_now timestamptz) RETURNS integer"
        f" LANGUAGE sql STABLE RETURN {first}",
    )

    outcome = storage.prune_oldest()

    assert (outcome.slot, outcome.carried_failed_rows) == (first, 2)
    place = -1 - first
    following = -1 - (place - place % 6 + (place + 1) % 6)
    assert [slot for _, slot, *_ in versions(storage, job_ids)] == [following] * 2
    assert storage.prune_oldest().outcome == "noop"
    assert differences(storage) == []


def test_a_job_is_retried_out_of_a_segment_and_its_segment_still_passes(storage: QueueStorage) -> None:
    first, second = carried(storage, 2)

    outcome = storage.retry_failed_by_queue("q", limit=1)

    assert (outcome.retried, outcome.matched, outcome.raced) == ([first], 1, 0)
    assert differences(storage) == []
    assert storage.complete(storage.claim("q")) == 1
    let_pass(storage, FLOOR)
    assert storage.prune_oldest().pruned_failed == 1
    assert second not in terminal(storage)
    assert differences(storage) == []


def test_a_job_that_a_prune_moves_between_scan_and_retry_is_found_in_its_segment(
    storage: QueueStorage, connect: Connect
) -> None:
    job_ids = end_jobs(storage, 2)
    storage.rotate()
    pruner = QueueStorage(connect(), storage.namespace)
    moved: list[int] = []

    def prune(name: str) -> None:
        if name == "hold_pruners" and not moved:
            moved.append(pruner.prune_oldest(FLOOR).carried_failed_rows)

    on_statement(storage, "queue/retry", before=prune)
    outcome = storage.retry_failed_by_queue("q")

    assert moved == [2]
    assert (outcome.retried, outcome.raced) == (job_ids, 0)


def test_a_key_that_is_kept_beyond_the_end_is_held_in_a_segment_too(storage: QueueStorage) -> None:
    held = ("scheduled", "available", "running", "retryable", "failed")
    storage.enqueue("q", "work", unique_key="k", unique_states=held, max_attempts=1)
    [claim] = storage.claim("q")
    assert storage.fail(claim, "no such file") == "failed"
    storage.rotate()
    prune_all(storage)
    assert terminal(storage)[claim.job_id][1] < 0

    with pytest.raises(UniqueConflict):
        storage.enqueue("q", "work", unique_key="k")

    let_pass(storage, FLOOR)
    assert storage.prune_oldest().pruned_failed == 1
    assert storage.enqueue("q", "work", unique_key="k") > claim.job_id


def test_a_segment_that_would_drop_too_much_is_refused_and_passed_over(storage: QueueStorage) -> None:
    carried(storage, 3)
    let_pass(storage, FLOOR)
    end_jobs(storage, 1, state="completed")
    storage.rotate()

    assert storage.prune_oldest(max_pruned_failed=2).pruned_completed == 1
    with pytest.raises(PruneRefused) as refused:
        storage.prune_oldest(max_pruned_failed=2)
    assert refused.value.pruned_failed == 3
    assert storage.queue_counts("q").failed == 3
    assert storage.prune_oldest(max_pruned_failed=3).pruned_failed == 3


def test_a_reader_of_a_segment_blocks_its_prune_and_not_that_of_a_slot(
    storage: QueueStorage, connect: Connect
) -> None:
    job_ids = carried(storage, 3)
    segment = versions(storage, job_ids)[0][1]
    let_pass(storage, FLOOR)
    reader = QueueStorage(connect(), storage.namespace)
    with reader.connection.transaction():
        child = sql.Identifier(storage.namespace.name, f"done_entries_floor_{-segment}")
        reader.connection.execute(sql.SQL("SELECT count(*) FROM {}").format(child))
        blocked = storage.prune_oldest()
        assert (blocked.outcome, blocked.slot, blocked.reason) == ("blocked", segment, "slot")
        end_jobs(storage, 1, state="completed")
        storage.rotate()
        assert storage.prune_oldest().pruned_completed == 1
    assert storage.prune_oldest().pruned_failed == 3


def test_rows_stay_retryable_in_their_segments_when_carrying_goes_to_the_live_one_again(
    storage: QueueStorage,
) -> None:
    job_ids = carried(storage, 2)
    query(storage, "UPDATE {ns}.settings SET value = 'live' WHERE name = 'carry_to'")
    more = carried_live(storage)
    lap(storage)
    assert {
        job_id: slot < 0 for job_id, (_, slot, _) in terminal(storage).items() if job_id in job_ids + more
    } == {
        **dict.fromkeys(job_ids, True),
        **dict.fromkeys(more, False),
    }
    let_pass(storage, FLOOR)
    assert storage.prune_oldest().pruned_failed == 2
    assert differences(storage) == []


def carried_live(storage: QueueStorage) -> list[int]:
    ids = end_jobs(storage, 1)
    storage.rotate()
    [outcome] = prune_all(storage)
    assert outcome.carried_failed_rows == 1
    return ids


def test_the_status_of_the_ring_shows_what_stands_in_segments(storage: QueueStorage) -> None:
    assert storage.ring_status().floor == []
    first, *_ = carried(storage, 3)
    [row] = storage.ring_status().floor
    assert (row.segment, row.failed) == (terminal(storage)[first][1], 3)
    [(until,)] = query(storage, "SELECT max(finalized_at) + interval '72 h' FROM {ns}.done_entries")
    assert row.passes_at == until
    storage.retry_failed([first])
    assert storage.ring_status().floor[0].failed == 2


def test_the_upgrade_moves_nothing_until_the_next_prune(
    connection: psycopg.Connection[Any], namespace: str
) -> None:
    before_segments = max(one.version for one in packaged("queue") if one.version < 60)
    migrate(connection, namespace, "queue", target=before_segments, queue_slots=4)
    storage = QueueStorage(connection, namespace)
    [job_id] = end_jobs(storage)
    storage.rotate()
    before = versions(storage, [job_id])

    migrate(connection, namespace, "queue")

    assert versions(storage, [job_id]) == before
    assert storage.prune_oldest().carried_failed_rows == 1
    assert terminal(storage)[job_id][1] < 0
    assert differences(storage) == []
