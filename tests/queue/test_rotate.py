"""Rotate: the next empty slot, in the order of the ring, and nothing written when nothing is there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.errors import InvalidArgument
from parkkeeper.queue import QueueStorage
from parkkeeper.queue.ring import next_slot
from ringside import differences, end_jobs, on_statement, query, snapshot, turn

Connect = Callable[..., psycopg.Connection[Any]]


@pytest.mark.parametrize(
    ("current", "empty", "expected"),
    [
        (0, {1, 2, 3}, 1),
        (3, {0, 1, 2}, 0),
        (1, {0, 3}, 3),
        (2, {0, 1}, 0),
        (2, {1}, 1),
        (2, set(), None),
    ],
)
def test_the_next_slot_is_the_first_empty_one_in_the_order_of_the_ring(
    current: int, empty: set[int], expected: int | None
) -> None:
    assert next_slot(current, 4, empty) == expected


def test_an_idle_ring_does_not_turn_and_writes_nothing(storage: QueueStorage) -> None:
    before = snapshot(storage)
    xids = set()

    def look(name: str) -> None:
        cursor = psycopg.Cursor(storage.connection)
        xids.update(cursor.execute("SELECT pg_current_xact_id_if_assigned()").fetchall())

    on_statement(storage, "queue/ring", after=look)
    outcome = storage.rotate()

    assert (outcome.outcome, outcome.slot, outcome.generation) == ("skipped_idle", 0, 0)
    assert xids == {(None,)}
    assert snapshot(storage) == before


@pytest.mark.parametrize("what", ["waiting", "running", "failed", "completed", "cancelled"])
def test_any_row_in_the_ring_lets_it_turn(storage: QueueStorage, what: str) -> None:
    if what in ("waiting", "running"):
        storage.enqueue("q", "work")
        if what == "running":
            assert len(storage.claim("q")) == 1
    else:
        end_jobs(storage, state=what)

    outcome = storage.rotate()

    assert (outcome.outcome, outcome.slot, outcome.generation) == ("rotated", 1, 1)
    slots = query(
        storage,
        "SELECT slot, generation, opened_at IS NULL, sealed_at IS NULL, reclaimed_at IS NULL"
        " FROM {ns}.queue_ring_slots ORDER BY slot LIMIT 3",
    )
    assert slots == [(0, 0, False, False, True), (1, 1, False, True, True), (2, None, True, True, True)]


def test_new_jobs_go_to_the_slot_that_was_opened(storage: QueueStorage) -> None:
    storage.enqueue("q", "work")
    storage.rotate()
    storage.enqueue("q", "work")
    assert query(storage, "SELECT ready_slot, ready_generation FROM {ns}.ready_entries ORDER BY 1") == [
        (0, 0),
        (1, 1),
    ]
    assert differences(storage) == []


def test_a_ring_without_an_empty_slot_is_busy(storage: QueueStorage) -> None:
    for _ in range(3):
        storage.enqueue("q", "work")
        assert turn(storage).outcome == "rotated"
    before = snapshot(storage)
    ran: list[str] = []
    on_statement(storage, "queue/ring", before=ran.append)

    outcome = turn(storage)

    assert (outcome.outcome, outcome.slot, outcome.generation) == ("skipped_busy", 3, 3)
    assert ran[-1] == "look", "that it is busy was to be seen without a lock"
    assert snapshot(storage) == before


def test_any_empty_slot_may_be_opened_and_generations_only_rise(storage: QueueStorage) -> None:
    storage.enqueue("stuck", "work")
    opened = []
    for _ in range(7):
        end_jobs(storage, state="completed")
        outcome = turn(storage)
        opened.append((outcome.slot, outcome.generation))
        while storage.prune_oldest().outcome == "pruned":
            pass
    # Slot 0 is pinned by the job that waits in it.
    assert opened == [(1, 1), (2, 2), (3, 3), (1, 4), (2, 5), (3, 6), (1, 7)]


def test_a_job_that_enters_a_sealed_slot_late_is_claimed_and_pins_it(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    end_jobs(storage, state="completed")
    producer = connect()
    with producer.transaction():
        QueueStorage(producer, namespace).enqueue("q", "work", {"late": True})
        storage.rotate()
        end_jobs(storage, state="completed")
        storage.rotate()
    assert storage.prune_oldest().slot == 1
    assert storage.prune_oldest().reason == "ready_rows"
    assert [claim.args for claim in storage.claim("q")] == [{"late": True}]


def test_the_lock_is_waited_for_no_longer_than_asked(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    storage.enqueue("q", "work")
    other = QueueStorage(connect(), namespace)
    with other.connection.transaction():
        query(other, "SELECT FROM {ns}.queue_ring_state FOR UPDATE")
        assert storage.rotate(lock_timeout=timedelta(milliseconds=1)).outcome == "blocked"
        # And enqueue does not wait at all.
        assert storage.enqueue("q", "work") > 0
    assert storage.rotate().outcome == "rotated"


def test_a_lock_timeout_that_cannot_be_meant_is_refused_by_name(storage: QueueStorage) -> None:
    values: list[Any] = [timedelta(0), timedelta(seconds=6), 50, None]
    for value in values:
        with pytest.raises(InvalidArgument, match=r"lock_timeout .* at most 5 s"):
            storage.rotate(lock_timeout=value)
