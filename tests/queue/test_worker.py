"""The worker: each job's handler, what it records, and how it stops."""

from __future__ import annotations

import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from parkkeeper.queue import ClaimedJob, InvalidName, QueueStorage, Worker, WorkerOutcome
from ringside import SOON, differences, query


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def errors(storage: QueueStorage) -> list[str]:
    return [
        row[0]
        for row in query(
            storage, "SELECT error FROM {ns}.done_entries WHERE state = 'failed' ORDER BY job_id"
        )
    ]


def test_each_kind_has_its_handler_which_gets_the_claim(storage: QueueStorage) -> None:
    expected = [(storage.enqueue("q", kind, {"n": n}), kind, n) for n, kind in enumerate(["a", "b", "a"])]
    seen: list[tuple[Any, ...]] = []

    def handle(job: ClaimedJob) -> None:
        seen.append((job.job_id, job.kind, job.args["n"]))

    assert Worker(storage, "q", {"a": handle, "b": handle}).run(drain=True) == WorkerOutcome(completed=3)
    assert seen == expected
    assert differences(storage) == []


def test_what_a_handler_raises_is_recorded_and_the_text_goes_to_the_row_alone(
    storage: QueueStorage, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(job: ClaimedJob) -> None:
        raise FileNotFoundError(f"a customer's words\0 {job.args['n']}")

    def cannot_say(job: ClaimedJob) -> None:
        raise Unsayable

    storage.enqueue("q", "fails", {"n": 7}, max_attempts=1)
    storage.enqueue("q", "unsayable", max_attempts=1)
    storage.enqueue("q", "unheard of", max_attempts=1)
    storage.enqueue("q", "fails", {"n": 8}, max_attempts=2)
    storage.enqueue("q", "works")
    with caplog.at_level(logging.DEBUG):
        outcome = Worker(
            storage, "q", {"fails": fail, "unsayable": cannot_say, "works": lambda job: None}
        ).run(drain=True)
    assert outcome == WorkerOutcome(completed=1, retryable=1, failed=3)
    assert errors(storage) == [
        "FileNotFoundError: a customer's words 7",
        "Unsayable",
        "LookupError: this worker has no handler for kind 'unheard of'",
    ]
    assert "customer" not in caplog.text
    assert caplog.text.count("FileNotFoundError") == 2


def test_draining_stops_when_nothing_can_be_claimed(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "k", [{}] * 25)
    later = storage.enqueue("q", "k", run_at=datetime.now(UTC) + timedelta(hours=1))
    assert Worker(storage, "q", {"k": lambda job: None}, batch=4).run(drain=True).completed == 25
    assert query(storage, "SELECT job_id FROM {ns}.deferred_jobs") == [(later,)]
    assert query(storage, "SELECT max(job_count) FROM {ns}.lease_claim_batches") == [(4,)]


def test_a_job_that_was_cancelled_meanwhile_is_counted_as_stale(storage: QueueStorage) -> None:
    jobs = storage.enqueue_many("q", "k", [{}] * 3)
    worker = Worker(storage, "q", {"k": lambda job: storage.cancel(jobs[1])})
    assert worker.run(drain=True) == WorkerOutcome(completed=2, stale=1)
    assert differences(storage) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_batch_in_hand(storage: QueueStorage, number: signal.Signals) -> None:
    storage.enqueue_many("q", "k", [{}] * 10)
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    worker = Worker(storage, "q", {"k": lambda job: os.kill(os.getpid(), number)}, batch=4)
    assert worker.run() == WorkerOutcome(completed=4)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before
    counts = storage.queue_counts("q")
    assert (counts.available, counts.running) == (6, 0)


def test_an_event_ends_it_in_any_thread_and_idle_or_not(storage: QueueStorage) -> None:
    stop, worked = threading.Event(), threading.Event()
    worker = Worker(storage, "q", {"k": lambda job: worked.set()})
    storage.enqueue("q", "k")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run, stop)
        assert worked.wait(SOON)
        stop.set()
        assert running.result(SOON) == WorkerOutcome(completed=1)
    assert worker.run(stop) == WorkerOutcome()


def test_what_was_done_before_a_handler_was_interrupted_stays_done(storage: QueueStorage) -> None:
    def exit_at_third(job: ClaimedJob) -> None:
        if job.args["n"] == 1:
            raise ValueError("no")
        if job.args["n"] == 2:
            raise SystemExit

    storage.enqueue_many("q", "k", [{"n": n} for n in range(5)])
    with pytest.raises(SystemExit):
        Worker(storage, "q", {"k": exit_at_third}).run(drain=True)
    counts = storage.queue_counts("q")
    assert (counts.terminal, counts.deferred, counts.running) == (1, 1, 3)


def test_the_lease_is_the_batchs(storage: QueueStorage) -> None:
    storage.enqueue("q", "k")
    Worker(storage, "q", {"k": lambda job: None}, lease=timedelta(minutes=30)).run(drain=True)
    assert query(storage, "SELECT lease_until - claimed_at FROM {ns}.lease_claim_batches") == [
        (timedelta(minutes=30),)
    ]


@pytest.mark.parametrize(("lease", "extensions"), [(timedelta(microseconds=1), 2), (timedelta(hours=1), 0)])
def test_what_it_has_in_hand_is_extended_between_jobs_when_half_of_the_lease_is_over(
    storage: QueueStorage, lease: timedelta, extensions: int
) -> None:
    storage.enqueue_many("q", "k", [{}] * 2)
    Worker(storage, "q", {"k": lambda job: None}, lease=lease).run(drain=True)
    found = query(storage, "SELECT ordinals FROM {ns}.leases")
    assert found == [(None,)] * extensions, "for the whole batch, what is done and not yet recorded as well"


def test_a_bad_name_is_heard_of_and_the_signals_are_given_back(storage: QueueStorage) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(InvalidName):
        Worker(storage, " q", {}).run(drain=True)
    assert signal.getsignal(signal.SIGTERM) is before
