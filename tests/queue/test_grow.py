"""More slots for the ring, while it is in use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any

import psycopg
import pytest

from parkkeeper import migrations
from parkkeeper.errors import InvalidArgument, TransactionOpen
from parkkeeper.queue import GrowOutcome, QueueStorage
from ringside import SOON, Gate, differences, end_jobs, held, prune_all, query, snapshot

Connect = Callable[..., psycopg.Connection[Any]]


def test_new_slots_are_opened_filled_claimed_from_and_pruned_like_the_others(storage: QueueStorage) -> None:
    storage.enqueue("stuck", "work")
    assert storage.grow(6) == GrowOutcome("grown", 6)
    opened = []
    for _ in range(7):
        opened.append(storage.rotate().slot)
        end_jobs(storage, 2, state="completed")
        end_jobs(storage, 1)
        while storage.prune_oldest().outcome == "pruned":
            pass
    assert opened == [1, 2, 3, 4, 5, 1, 2]
    assert differences(storage) == []
    assert (storage.queue_counts("q").terminal, storage.queue_counts("q").failed) == (21, 7)
    storage.complete(storage.claim("stuck"))
    storage.rotate()
    prune_all(storage)


def test_a_ring_that_is_busy_goes_on_when_it_has_grown(storage: QueueStorage) -> None:
    for _ in range(4):
        storage.enqueue("q", "work")
        last = storage.rotate()
    assert last.outcome == "skipped_busy"
    assert storage.grow(5).slots == 5
    assert (storage.rotate().slot, storage.rotate().outcome) == (4, "skipped_busy")
    assert len(storage.claim("q", 10)) == 4


def test_as_many_as_there_are_is_nothing_to_do_and_fewer_is_refused(storage: QueueStorage) -> None:
    before = snapshot(storage)
    assert storage.grow(4) == GrowOutcome("noop", 4)
    with pytest.raises(
        InvalidArgument, match=r"queue_slots 3 is refused: the ring of namespace .* has 4 slots"
    ):
        storage.grow(3)
    assert snapshot(storage) == before


@pytest.mark.parametrize("slots", [0, 257, -1, 5.0, "8", True, None])
def test_what_is_no_number_of_slots_is_refused(storage: QueueStorage, slots: Any) -> None:
    with pytest.raises(InvalidArgument, match="queue_slots"):
        storage.grow(slots)


def test_a_ring_does_not_grow_inside_the_caller_s_transaction(storage: QueueStorage) -> None:
    with storage.connection.transaction(), pytest.raises(TransactionOpen):
        storage.grow(5)


def test_a_producer_with_an_open_transaction_blocks_it_and_is_not_held_up(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    producer = QueueStorage(connect(), namespace)
    with producer.connection.transaction():
        producer.enqueue("q", "work")
        before = snapshot(storage)
        assert storage.grow(5, lock_timeout=timedelta(milliseconds=5)) == GrowOutcome("blocked", 4)
        assert snapshot(storage) == before
        producer.enqueue("q", "work")
    assert storage.grow(5) == GrowOutcome("grown", 5)
    assert len(storage.claim("q", 5)) == 2


def test_a_rotate_or_prune_at_work_is_waited_for(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    end_jobs(storage)
    other = QueueStorage(connect(), namespace)
    with held(storage.rotate, Gate(storage, "queue/ring", "advance")) as rotate:
        assert other.grow(5, lock_timeout=timedelta(milliseconds=5)) == GrowOutcome("blocked", 4)
    assert rotate.result(SOON).outcome == "rotated"
    assert other.grow(5).outcome == "grown"


def test_producers_and_workers_go_on_while_the_ring_grows(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    stop = Event()
    sessions = [QueueStorage(connect(), namespace) for _ in range(3)]

    def produce(session: QueueStorage) -> int:
        made = 0
        while not stop.is_set():
            made += len(session.enqueue_many("q", "work", [{}] * 3))
        return made

    def work(session: QueueStorage) -> int:
        done = 0
        while not stop.is_set():
            done += session.complete(session.claim("q", 5))
        return done

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(produce, sessions[0]), pool.submit(work, sessions[1])]
        try:
            slots = 4
            while slots < 12:
                slots = sessions[2].grow(12).slots
                sessions[2].rotate()
        finally:
            stop.set()
        made, done = (future.result(SOON) for future in futures)
    counts = storage.queue_counts("q")
    assert (counts.available, counts.running, counts.terminal) == (made - done, 0, done)
    assert differences(storage) == []


def test_two_sessions_that_grow_the_ring_make_each_slot_once(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    sessions = [QueueStorage(connect(), namespace) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(
            pool.map(lambda session: session.grow(9, lock_timeout=timedelta(seconds=5)), sessions)
        )
    assert [outcome.slots for outcome in outcomes] == [9, 9]
    assert query(storage, "SELECT count(*), max(slot) FROM {ns}.queue_ring_slots") == [(9, 8)]
    assert migrations.status(storage.connection, namespace, "queue").pending == ()
