"""An idle worker: what wakes it. It would look again only after an hour here, so nothing but being woken helps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import ClaimedJob, QueueStorage, Worker, WorkerOutcome
from ringside import SOON, query, until

Connect = Callable[..., psycopg.Connection[Any]]

WAITS = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted"


@pytest.fixture(autouse=True)
def looks_once_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no other way to be quick than being woken."""
    monkeypatch.setattr("parkkeeper.queue.shift.IDLE_WAIT", 3600)


@pytest.fixture
def watching(connect: Connect, storage: QueueStorage) -> QueueStorage:
    """A session beside the worker's."""
    return QueueStorage(connect(), storage.namespace)


def enqueue(storage: QueueStorage) -> None:
    with storage.connection.transaction():
        storage.enqueue("q", "k")
        query(storage, "SELECT {ns}.wake_workers('q')")


@pytest.mark.parametrize("concurrency", [1, 4])
def test_it_is_woken_by_each_job_and_leaves_its_session_as_it_was(
    storage: QueueStorage, watching: QueueStorage, concurrency: int
) -> None:
    stop = threading.Event()
    worker = Worker(
        storage,
        "q",
        lambda job: stop.set() if worker.outcome.completed == 2 else None,
        concurrency=concurrency,
    )
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run, stop)
        for completed in range(3):
            until(lambda: worker.outcome.completed == completed and query(watching, WAITS))  # noqa: B023
            enqueue(watching)
        assert running.result(SOON) == WorkerOutcome(completed=3)
    assert query(watching, WAITS) == []
    assert query(storage, "SELECT pg_listening_channels()") == []


def test_a_thread_that_is_free_is_woken_while_another_works(
    storage: QueueStorage, watching: QueueStorage
) -> None:
    second = threading.Event()

    def handle(job: ClaimedJob) -> None:
        if job.job_id == first:
            assert second.wait(SOON)
        second.set()

    first = storage.enqueue("q", "k")
    stop = threading.Event()
    worker = Worker(storage, "q", handle, concurrency=2)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run, stop)
        until(lambda: worker.in_hand == 1 and query(watching, WAITS))
        enqueue(watching)
        until(lambda: worker.outcome.completed == 2)
        stop.set()
        until(lambda: query(watching, "SELECT {ns}.wake_workers('q')") and running.done())
        assert running.result(SOON) == WorkerOutcome(completed=2)


def test_a_job_that_comes_between_its_look_and_its_wait_is_found(
    storage: QueueStorage, watching: QueueStorage
) -> None:
    class ComesLate(QueueStorage):
        late = True

        def claim(self, *arguments: Any, **options: Any) -> list[ClaimedJob]:
            found = super().claim(*arguments, **options)
            if not found and self.late:
                self.late = False
                watching.enqueue("q", "k")  # by whoever asked before anybody waited
            return found

    stop = threading.Event()
    worker = Worker(ComesLate(storage.connection, storage.namespace), "q", lambda job: stop.set())
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(worker.run, stop).result(SOON) == WorkerOutcome(completed=1)


def test_it_wakes_by_itself_when_a_job_is_due(storage: QueueStorage) -> None:
    storage.enqueue("q", "k", run_at=datetime.now(UTC) + timedelta(seconds=1))
    stop = threading.Event()
    worker = Worker(storage, "q", lambda job: stop.set())
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(worker.run, stop).result(SOON) == WorkerOutcome(completed=1)


def test_producers_need_not_tell_a_worker_that_is_busy(storage: QueueStorage, watching: QueueStorage) -> None:
    stop = threading.Event()

    def handle(job: ClaimedJob) -> None:
        until(lambda: not query(watching, WAITS))
        stop.set()

    worker = Worker(storage, "q", handle)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run, stop)
        until(lambda: query(watching, WAITS))
        enqueue(watching)
        assert running.result(SOON) == WorkerOutcome(completed=1)


def test_behind_a_pooler_it_finds_jobs_by_looking(
    storage: QueueStorage, watching: QueueStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkkeeper.queue.shift.IDLE_WAIT", 0.05)
    # What the function answers where the session is not the client's own.
    query(storage, "CREATE SEQUENCE {ns}.asked")
    query(
        storage,
        "CREATE OR REPLACE FUNCTION {ns}.await_jobs(p_queue text, p_backend_pid integer) RETURNS boolean"
        " LANGUAGE sql AS $$ SELECT nextval('{ns}.asked') < 0 $$",
    )
    stop = threading.Event()
    worker = Worker(storage, "q", lambda job: stop.set())
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run, stop)
        until(lambda: query(watching, "SELECT 1 FROM {ns}.asked WHERE is_called"))
        watching.enqueue("q", "k")
        assert running.result(SOON) == WorkerOutcome(completed=1)
    assert query(storage, "SELECT last_value FROM {ns}.asked") == [(1,)], "it asks once"
