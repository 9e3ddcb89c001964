"""Waking idle workers: who is told, when, and that nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import QueueStorage
from ringside import SOON, query

Connect = Callable[..., psycopg.Connection[Any]]


def wait_for_jobs(storage: QueueStorage, queue: str = "q") -> None:
    """Let the storage's session be that of an idle worker."""
    own_pid = storage.connection.info.backend_pid
    assert query(storage, "SELECT {ns}.await_jobs(%s, %s)", queue, own_pid) == [(True,)]


def heard(storage: QueueStorage, queue: str = "q") -> int:
    """Return how often a listening session was told, not counting this test's own last word."""
    with psycopg.connect(storage.connection.info.dsn, password=storage.connection.info.password) as other:
        other.execute("SELECT pg_notify(%s, 'end')", query(storage, "SELECT {ns}.wake_channel(%s)", queue)[0])
    payloads = []
    for notify in storage.connection.notifies(timeout=SOON):
        payloads.append(notify.payload)
        if notify.payload == "end":
            break
    assert payloads[-1] == "end"
    return len(payloads) - 1


def wake(storage: QueueStorage, queue: str = "q") -> None:
    query(storage, "SELECT {ns}.wake_workers(%s)", queue)


def locks(storage: QueueStorage) -> list[tuple[Any, ...]]:
    return query(storage, "SELECT mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")


@pytest.fixture
def idle(connect: Connect, storage: QueueStorage) -> QueueStorage:
    """The session of a worker that waits for jobs of queue q."""
    waiting = QueueStorage(connect(), storage.namespace)
    wait_for_jobs(waiting)
    return waiting


def test_an_idle_worker_hears_when_the_jobs_transaction_commits_and_once(
    storage: QueueStorage, idle: QueueStorage
) -> None:
    with storage.connection.transaction():
        for _ in range(3):
            storage.enqueue("q", "k")
            wake(storage)
        assert heard(idle) == 0
    assert heard(idle) == 1


def test_a_rollback_wakes_nobody(storage: QueueStorage, idle: QueueStorage) -> None:
    with storage.connection.transaction(force_rollback=True):
        storage.enqueue("q", "k")
        wake(storage)
    assert heard(idle) == 0


def test_nothing_is_sent_when_nobody_is_idle(
    storage: QueueStorage, idle: QueueStorage, connect: Connect
) -> None:
    listening = QueueStorage(connect(), storage.namespace)
    [(channel,)] = query(storage, "SELECT {ns}.wake_channel('q')")
    query(listening, f"LISTEN {channel}")
    wake(storage)
    assert heard(listening) == 1
    query(idle, "SELECT {ns}.stop_awaiting_jobs('q')")
    wake(storage)
    assert heard(listening) == 0


def test_jobs_that_can_be_claimed_at_once_wake_their_queues_workers(
    storage: QueueStorage, idle: QueueStorage
) -> None:
    storage.enqueue("q", "k", run_at=datetime.now(UTC) + timedelta(days=1))
    storage.enqueue("r", "k")
    with storage.connection.transaction(force_rollback=True):
        storage.enqueue("q", "k")
    assert heard(idle) == 0
    storage.enqueue_many("q", "k", [None] * 3)
    assert heard(idle) == 1


@pytest.mark.parametrize("dead_letter", [False, True])
def test_jobs_that_are_put_back_wake_their_queues_workers(
    storage: QueueStorage, idle: QueueStorage, dead_letter: bool
) -> None:
    storage.set_queue("q", dead_letter=dead_letter)
    storage.enqueue("q", "k")
    assert heard(idle) == 1
    storage.fail(storage.claim("q")[0], "no", terminal=True)
    assert heard(idle) == 0
    put_back = storage.retry_dead_letters if dead_letter else storage.retry_failed_by_queue
    assert put_back("q").matched == 1
    assert heard(idle) == 1
    assert put_back("q").matched == 0
    assert heard(idle) == 0


def test_asking_keeps_no_lock(storage: QueueStorage, idle: QueueStorage) -> None:
    with storage.connection.transaction():
        wake(storage)
        wake(storage, "another")
        assert locks(storage) == []


def test_the_workers_of_another_queue_or_namespace_are_left_alone(
    storage: QueueStorage, idle: QueueStorage
) -> None:
    wake(storage, "Q")
    wake(storage, "q ")
    assert heard(idle) == 0
    named = f'parkkeeper.wake "{storage.namespace.name}" q'
    assert query(storage, "SELECT {ns}.wake_key('q') = hashtextextended(%s, 0)", named) == [(True,)]


def test_a_name_of_200_characters_has_a_channel(storage: QueueStorage, connect: Connect) -> None:
    queue = "\U0001f3aa" * 200
    idle = QueueStorage(connect(), storage.namespace)
    wait_for_jobs(idle, queue)
    wake(storage, queue)
    assert heard(idle, queue) == 1


def test_who_stops_waiting_leaves_nothing(storage: QueueStorage, idle: QueueStorage) -> None:
    assert locks(idle) == [("ShareLock",)]
    query(idle, "SELECT {ns}.stop_awaiting_jobs('q')")
    assert locks(idle) == []
    assert query(idle, "SELECT pg_listening_channels()") == []


def test_a_session_that_a_pooler_lends_is_left_as_it_is(storage: QueueStorage) -> None:
    pid_the_client_was_told = storage.connection.info.backend_pid + 1
    assert query(storage, "SELECT {ns}.await_jobs('q', %s)", pid_the_client_was_told) == [(False,)]
    assert locks(storage) == []
    assert query(storage, "SELECT pg_listening_channels()") == []


def test_the_next_due_job_is_the_queues_own_and_still_to_come(storage: QueueStorage) -> None:
    def next_due() -> float | None:
        return query(storage, "SELECT {ns}.next_due('q')")[0][0]

    now = datetime.now(UTC)
    assert next_due() is None
    storage.enqueue("q", "k")
    storage.enqueue("another", "k", run_at=now + timedelta(minutes=1))
    assert next_due() is None
    storage.enqueue("q", "k", run_at=now + timedelta(hours=2), priority=1)
    storage.enqueue("q", "k", run_at=now + timedelta(hours=1), priority=3)
    assert next_due() == pytest.approx(3600, abs=60)
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = run_at - interval '90 min'")
    assert next_due() == pytest.approx(1800, abs=60)


def test_the_next_due_job_is_found_by_the_index(storage: QueueStorage) -> None:
    with storage.connection.transaction():
        query(storage, "SELECT {ns}.next_due('q')")
        before = query(storage, "SELECT pg_stat_get_xact_tuples_returned('{ns}.deferred_jobs'::regclass)")
        query(storage, "SELECT {ns}.next_due('q')")
        after = query(storage, "SELECT pg_stat_get_xact_tuples_returned('{ns}.deferred_jobs'::regclass)")
    assert after == before
