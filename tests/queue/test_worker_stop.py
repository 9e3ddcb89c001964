"""A worker that is told to stop: what it finishes, what it hands back, and what is never recorded."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import ClaimedJob, QueueStorage, Worker, WorkerOutcome
from ringside import SOON, differences, query, until

Connect = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def watching(connect: Connect, storage: QueueStorage) -> QueueStorage:
    """A session for handlers, beside the worker's."""
    return QueueStorage(connect(), storage.namespace)


def handed_back(storage: QueueStorage) -> int:
    return query(storage, "SELECT count(*) FROM {ns}.deferred_jobs WHERE state = 'scheduled'")[0][0]


def work_off(storage: QueueStorage) -> list[int]:
    """Let another worker do what there is; return the attempts."""
    attempts: list[int] = []
    Worker(storage, "q", lambda job: attempts.append(job.attempt)).run(drain=True)
    assert differences(storage) == []
    return attempts


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_it_finish_what_runs_and_hand_back_what_was_not_begun(
    storage: QueueStorage, watching: QueueStorage, number: signal.Signals
) -> None:
    def stop(job: ClaimedJob) -> None:
        os.kill(os.getpid(), number)
        until(lambda: handed_back(watching) == 3)

    storage.enqueue_many("q", "k", [{}] * 10)
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    told = threading.Event()
    assert Worker(storage, "q", stop, batch=4).run(told) == WorkerOutcome(completed=1, handed_back=3)
    assert told.is_set()
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before
    counts = storage.queue_counts("q")
    assert (counts.available, counts.deferred, counts.running) == (6, 3, 0)
    assert work_off(storage) == [1] * 9, "another has them at once, and no attempt was spent"


def test_a_second_signal_hands_back_what_runs_and_its_end_is_not_recorded(
    storage: QueueStorage, watching: QueueStorage
) -> None:
    go, gone = threading.Event(), threading.Event()

    def stay(job: ClaimedJob) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: handed_back(watching) == 1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert go.wait(SOON)
        gone.set()

    storage.enqueue_many("q", "k", [{}] * 2)
    assert Worker(storage, "q", stay).run() == WorkerOutcome(handed_back=2)
    go.set()
    assert gone.wait(SOON)
    assert storage.queue_counts("q").terminal == 0
    assert work_off(storage) == [1, 1]


def test_after_the_grace_what_still_runs_is_handed_back(storage: QueueStorage) -> None:
    go, stop = threading.Event(), threading.Event()

    def stay(job: ClaimedJob) -> None:
        stop.set()
        assert go.wait(SOON)

    storage.enqueue_many("q", "k", [{}] * 3)
    worker = Worker(storage, "q", stay, grace=timedelta(milliseconds=1), concurrency=2)
    try:
        assert worker.run(stop) == WorkerOutcome(handed_back=3)
    finally:
        go.set()
    assert work_off(storage) == [1, 1, 1]


def test_leases_are_kept_while_it_waits_for_its_handlers(
    storage: QueueStorage, watching: QueueStorage
) -> None:
    stop = threading.Event()

    def last_long(job: ClaimedJob) -> None:
        stop.set()
        until(lambda: handed_back(watching) == 1)
        until(lambda: query(watching, "SELECT 1 FROM {ns}.leases WHERE ordinals = '{{1}}'"))

    storage.enqueue_many("q", "k", [{}] * 2)
    worker = Worker(storage, "q", last_long, lease=timedelta(seconds=1))
    assert worker.run(stop) == WorkerOutcome(completed=1, handed_back=1)


def test_a_job_that_was_cancelled_while_it_ran_is_not_handed_back(
    storage: QueueStorage, watching: QueueStorage
) -> None:
    go, stop = threading.Event(), threading.Event()

    def stay(job: ClaimedJob) -> None:
        assert watching.cancel(job.job_id)
        stop.set()
        assert go.wait(SOON)

    storage.enqueue("q", "k")
    try:
        assert Worker(storage, "q", stay, grace=timedelta(0)).run(stop) == WorkerOutcome(stale=1)
    finally:
        go.set()
    assert work_off(storage) == []


def test_what_is_handed_back_wakes_an_idle_worker(
    storage: QueueStorage, watching: QueueStorage, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkkeeper.queue.shift.IDLE_WAIT", 3600)
    stop, over = threading.Event(), threading.Event()

    def stop_idle(job: ClaimedJob) -> None:
        over.set()

    def stop_self(job: ClaimedJob) -> None:
        stop.set()
        until(lambda: handed_back(watching) == 1 or over.is_set())

    storage.enqueue_many("q", "k", [{}] * 2)
    idle = Worker(QueueStorage(connect(), storage.namespace), "q", stop_idle)
    [busy_claim] = storage.claim("q", 1)
    [claim] = storage.claim("q", 1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(idle.run, over)
        until(
            lambda: query(
                watching, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
            )
        )
        assert storage.snooze([busy_claim, claim], claim.lease_until - timedelta(hours=1)) == 2
        assert Worker(storage, "q", stop_self).run(stop).handed_back == 1
        running.result(SOON)
    assert over.is_set()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_handler_that_asks_the_program_to_end_has_failed_and_the_rest_is_recorded_or_handed_back(
    storage: QueueStorage, error: type[BaseException]
) -> None:
    def exit_at_third(job: ClaimedJob) -> None:
        if job.args["n"] == 1:
            raise ValueError("no")
        if job.args["n"] == 2:
            raise error

    jobs = storage.enqueue_many("q", "k", [{"n": n} for n in range(5)])
    worker = Worker(storage, "q", exit_at_third)
    with pytest.raises(error):
        worker.run(drain=True)
    assert worker.outcome == WorkerOutcome(completed=1, retryable=2, handed_back=2)
    assert storage.queue_counts("q").running == 0
    exited = query(storage, "SELECT state::text, error FROM {ns}.deferred_jobs WHERE job_id = %s", jobs[2])
    assert exited == [("retryable", f"{error.__name__}: ")]


def test_a_child_that_a_handler_forks_and_lets_come_back_ends_there(storage: QueueStorage) -> None:
    children: list[int] = []

    def fork(job: ClaimedJob) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # forking a process with threads is what this is about
            child = os.fork()
        if child:
            children.append(os.waitpid(child, 0)[1])

    storage.enqueue_many("q", "k", [{}] * 2)
    assert Worker(storage, "q", fork).run(drain=True) == WorkerOutcome(completed=2)
    assert [os.waitstatus_to_exitcode(status) for status in children] == [1, 1]


def test_a_child_that_a_handler_forks_can_be_terminated(storage: QueueStorage) -> None:
    ended: list[int] = []

    def fork(job: ClaimedJob) -> None:
        ready, tell = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if not child:
            os.write(tell, b"!")
            threading.Event().wait(SOON)
            os._exit(3)
        os.read(ready, 1)  # a signal that comes before is lost in any child of Python
        os.close(ready)
        os.close(tell)
        os.kill(child, signal.SIGTERM)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    storage.enqueue("q", "k")
    assert Worker(storage, "q", fork).run(drain=True) == WorkerOutcome(completed=1)
    assert ended == [-signal.SIGTERM]
