"""The worker: each job's handler, what it records, and how it stops."""

from __future__ import annotations

import contextvars
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import (
    ClaimedJob,
    InvalidArgument,
    InvalidName,
    QueueStorage,
    RescueOutcome,
    Worker,
    WorkerOutcome,
)
from ringside import SOON, differences, query, until

Connect = Callable[..., psycopg.Connection[Any]]


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


async def coroutine(job: ClaimedJob) -> None:
    raise AssertionError("nobody runs this")


def generator(job: ClaimedJob) -> Iterator[None]:
    yield


async def asynchronous_generator(job: ClaimedJob) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("handler", [coroutine, generator, asynchronous_generator])
@pytest.mark.filterwarnings("error")
def test_a_job_of_which_nothing_has_run_is_not_called_completed(storage: QueueStorage, handler: Any) -> None:
    storage.enqueue("q", "work", max_attempts=1)
    assert Worker(storage, "q", handler).run(drain=True) == WorkerOutcome(failed=1)
    [error] = errors(storage)
    assert error.startswith("TypeError: the handler returned a coroutine or a generator")


def test_a_batch_that_no_claim_would_take_is_refused_by_its_name(storage: QueueStorage) -> None:
    for batch in (0, 100_001, True, "10"):
        with pytest.raises(InvalidArgument, match=r"batch .* is refused: a whole number from 1 to 100000"):
            Worker(storage, "q", print, batch=batch)  # type: ignore[arg-type]


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


def test_the_lease_is_the_batchs(storage: QueueStorage) -> None:
    storage.enqueue("q", "k")
    Worker(storage, "q", {"k": lambda job: None}, lease=timedelta(minutes=30)).run(drain=True)
    assert query(storage, "SELECT lease_until - claimed_at FROM {ns}.lease_claim_batches") == [
        (timedelta(minutes=30),)
    ]


def test_a_handler_that_runs_longer_than_the_lease_keeps_its_job(
    storage: QueueStorage, connect: Connect
) -> None:
    watching = QueueStorage(connect(), storage.namespace)

    def outlast_the_lease(job: ClaimedJob) -> None:
        until(lambda: query(watching, "SELECT 1 FROM {ns}.leases"))
        query(watching, "UPDATE {ns}.lease_claim_batches SET lease_until = lease_until - interval '2 h'")
        assert watching.rescue() == RescueOutcome(rescued=0, failed=0)

    storage.enqueue("q", "k")
    worker = Worker(storage, "q", outlast_the_lease, lease=timedelta(seconds=5))
    assert worker.run(drain=True) == WorkerOutcome(completed=1)


def test_as_many_handlers_as_it_is_told_run_at_once_and_each_job_is_done_once(storage: QueueStorage) -> None:
    together, seen = threading.Barrier(4), []

    def meet(job: ClaimedJob) -> None:
        seen.append(job.job_id)
        together.wait(SOON)

    jobs = storage.enqueue_many("q", "k", [{}] * 20)
    worker = Worker(storage, "q", meet, batch=3, concurrency=4)
    assert worker.run(drain=True) == WorkerOutcome(completed=20)
    assert sorted(seen) == jobs
    assert differences(storage) == []


@pytest.mark.parametrize("concurrency", [1, 2])
def test_what_is_done_is_recorded_while_another_job_of_the_batch_runs(
    storage: QueueStorage, connect: Connect, concurrency: int
) -> None:
    watching = QueueStorage(connect(), storage.namespace)

    def wait_for_the_others(job: ClaimedJob) -> None:
        if job.args["n"] == 4:
            until(lambda: watching.queue_counts("q").terminal == 4)

    storage.enqueue_many("q", "k", [{"n": n} for n in range(5)])
    worker = Worker(storage, "q", wait_for_the_others, concurrency=concurrency)
    assert worker.run(drain=True) == WorkerOutcome(completed=5)


def test_a_slow_job_does_not_keep_other_threads_from_the_next_batch(storage: QueueStorage) -> None:
    last = threading.Event()

    def handle(job: ClaimedJob) -> None:
        if job.args["n"] == 0:
            assert last.wait(SOON)
        if job.args["n"] == 9:
            last.set()

    storage.enqueue_many("q", "k", [{"n": n} for n in range(10)])
    worker = Worker(storage, "q", handle, batch=2, concurrency=2)
    assert worker.run(drain=True) == WorkerOutcome(completed=10)


def test_others_may_read_how_it_is_getting_on(storage: QueueStorage) -> None:
    seen = []

    def look(job: ClaimedJob) -> None:
        seen.append((worker.in_hand, worker.outcome))

    storage.enqueue_many("q", "k", [{}] * 2)
    worker = Worker(storage, "q", look, batch=1)
    assert (worker.in_hand, worker.outcome) == (0, WorkerOutcome())
    worker.run(drain=True)
    assert seen == [(1, WorkerOutcome()), (1, WorkerOutcome(completed=1))]
    assert (worker.in_hand, worker.outcome) == (0, WorkerOutcome(completed=2))


def test_a_handler_sees_the_context_in_which_the_worker_was_run(storage: QueueStorage) -> None:
    request = contextvars.ContextVar[str]("request")
    seen: list[str] = []
    storage.enqueue("q", "k")
    request.set("r1")
    Worker(storage, "q", lambda job: seen.append(request.get())).run(drain=True)
    assert seen == ["r1"]


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"concurrency": True}, {"concurrency": 1001}, {"grace": timedelta(-1)}, {"grace": 30},
     {"lease": timedelta(0)}],
    ids=str,
)  # fmt: skip
def test_a_number_outside_its_rule_is_refused_and_named(
    storage: QueueStorage, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument, match=f"^{next(iter(options))} .* is refused"):
        Worker(storage, "q", {}, **options)


def test_a_bad_name_is_heard_of_and_the_signals_are_given_back(storage: QueueStorage) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(InvalidName):
        Worker(storage, " q", {}).run(drain=True)
    assert signal.getsignal(signal.SIGTERM) is before
