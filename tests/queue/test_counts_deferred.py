"""Jobs outside of the ring are counted by the ledger: whatever path they take, and whatever becomes of the slots."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.migrations import migrate
from parkkeeper.queue import QueueStorage
from ringside import Gate, differences, end_jobs, held, prune_all, query

Connect = Callable[..., psycopg.Connection[Any]]
LATER = datetime.now(UTC) + timedelta(days=1)


def _deferred(storage: QueueStorage) -> int:
    assert differences(storage) == []
    return storage.queue_counts("q").deferred


def _kept(storage: QueueStorage) -> list[tuple[Any, ...]]:
    return query(
        storage,
        "SELECT state::text, count FROM {ns}.queue_terminal_live_counts WHERE ready_slot = -1000 ORDER BY state",
    )


def _lap(storage: QueueStorage) -> None:
    """Turn the ring once around, each slot with a job that ends in it."""
    for _ in range(4):
        end_jobs(storage, state="completed")
        assert storage.rotate().outcome == "rotated"
        prune_all(storage)


def test_deferred_jobs_are_counted_without_looking_at_them(storage: QueueStorage, connect: Connect) -> None:
    storage.enqueue_many("q", "work", [{}] * 3, run_at=LATER)
    other = QueueStorage(connect(), storage.namespace)
    with other.connection.transaction():
        query(other, "LOCK TABLE {ns}.deferred_jobs IN ACCESS EXCLUSIVE MODE")
        assert storage.queue_counts("q").deferred == 3


def test_deferred_jobs_stay_counted_when_the_slot_they_were_counted_in_is_pruned(
    storage: QueueStorage,
) -> None:
    storage.enqueue_many("q", "work", [{}] * 3, run_at=LATER)
    storage.enqueue("q", "work")
    [claim] = storage.claim("q")
    assert storage.fail(claim, "no such file") == "retryable"
    _lap(storage)
    assert _deferred(storage) == 4
    assert _kept(storage) == [("retryable", 1), ("scheduled", 3)]

    # What leaves is counted in another slot than what came.
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s' WHERE state = 'retryable'")
    storage.complete(storage.claim("q", 10))
    assert _deferred(storage) == 3
    _lap(storage)
    assert _deferred(storage) == 3
    assert _kept(storage) == [("retryable", 0), ("scheduled", 3)]


def test_a_prune_with_nothing_outside_of_the_ring_keeps_no_count(storage: QueueStorage) -> None:
    job_id = storage.enqueue("q", "work", run_at=LATER)
    assert storage.cancel(job_id)
    _lap(storage)
    assert _kept(storage) == []


def test_a_difference_that_waited_for_a_prune_is_counted(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    end_jobs(storage, state="completed")
    late = QueueStorage(connect(), namespace)
    late.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    query(late, "SELECT FROM {ns}.queue_lanes")  # takes the snapshot in which slot 0 is the current one
    storage.rotate()

    gate = Gate(storage, "queue/prune", "keep_outside")
    with held(storage.prune_oldest, gate) as pruning:
        late.connection.execute("SET lock_timeout = '50 ms'")
        late.connection.execute("SAVEPOINT before")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            late.enqueue("q", "work", run_at=LATER)
        late.connection.execute("ROLLBACK TO SAVEPOINT before")
        late.connection.execute("SET lock_timeout = '10 s'")
    assert pruning.result().outcome == "pruned"
    late.enqueue("q", "work", run_at=LATER)
    late.connection.execute("COMMIT")

    assert query(storage, "SELECT state::text, delta FROM {ns}.queue_terminal_count_deltas_0") == [
        ("scheduled", 1)
    ]
    assert _deferred(storage) == 1
    _lap(storage)
    assert _deferred(storage) == 1


def test_a_rebuild_counts_deferred_jobs_from_their_rows(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "work", [{}] * 3, run_at=LATER)
    _lap(storage)
    storage.enqueue_many("q", "work", [{}] * 2, run_at=LATER)
    query(storage, "UPDATE {ns}.queue_terminal_live_counts SET count = 99")
    query(storage, "UPDATE {ns}.queue_terminal_count_deltas SET delta = 7 WHERE state = 'scheduled'")
    assert differences(storage) != []

    storage.rebuild_terminal_counters()

    assert _deferred(storage) == 5
    _lap(storage)
    assert _deferred(storage) == 5


def test_what_was_deferred_before_the_ledger_counted_it_is_counted(
    connection: psycopg.Connection[Any], namespace: str
) -> None:
    migrate(connection, namespace, "queue", target=43, queue_slots=4)
    storage = QueueStorage(connection, namespace)
    for queue in ("q", "r"):
        storage.enqueue_many(queue, "work", [{}] * 2, run_at=LATER)
    storage.enqueue("q", "work", run_at=LATER, priority=1)

    migrate(connection, namespace, "queue")

    assert _deferred(storage) == 3
    _lap(storage)
    assert (_deferred(storage), storage.queue_counts("r").deferred) == (3, 2)
