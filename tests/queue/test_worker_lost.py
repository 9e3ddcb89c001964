"""Workers that lose their session or their life: no job is lost, none ends twice."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from interrupts import Interruptible, sever
from parkkeeper.errors import DatabaseUnavailable
from parkkeeper.queue import ClaimedJob, QueueStorage, RescueOutcome, Worker, WorkerOutcome
from ringside import SOON, differences, query, run_out, turn, turn_claims, until

Connect = Callable[..., psycopg.Connection[Any]]

HANDLERS = """
import pathlib
import threading

def handle(job):
    pathlib.Path(job.args["started"]).touch()
    if job.args["waits"]:
        threading.Event().wait()
"""


@pytest.fixture
def watching(connect: Connect, storage: QueueStorage) -> QueueStorage:
    """A session beside the worker's."""
    return QueueStorage(connect(), storage.namespace)


def terminate(watching: QueueStorage, storage: QueueStorage) -> None:
    """End a session's backend, and wait until it is gone."""
    pid = storage.connection.info.backend_pid
    query(watching, "SELECT pg_terminate_backend(%s)", pid)
    until(lambda: not query(watching, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid))


def end_all(storage: QueueStorage) -> list[str]:
    """Let leases run out, rescue, let waits be over, have another worker do what there is; return the jobs' ends."""
    run_out(storage)
    storage.rescue()
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = run_at - interval '2 h'")
    Worker(storage, "q", lambda job: None).run(drain=True)
    assert differences(storage) == []
    return [
        state for (state,) in query(storage, "SELECT state::text FROM {ns}.terminal_jobs ORDER BY job_id")
    ]


def test_a_lost_session_is_replaced_and_the_job_in_hand_recorded_on_the_new_one(
    storage: QueueStorage, watching: QueueStorage, connect: Connect
) -> None:
    opened: list[psycopg.Connection[Any]] = []

    def reconnect() -> psycopg.Connection[Any]:
        opened.append(connect())
        return opened[-1]

    storage.enqueue_many("q", "k", [{"n": n} for n in range(3)])
    worker = Worker(
        storage,
        "q",
        lambda job: terminate(watching, storage) if job.args["n"] == 0 else None,
        reconnect=reconnect,
    )
    assert worker.run(drain=True) == WorkerOutcome(completed=3)
    assert [connection.closed for connection in opened] == [True]
    assert differences(watching) == []


def test_a_socket_that_closes_before_libpq_knows_is_a_lost_session(
    storage: QueueStorage, watching: QueueStorage, connect: Connect
) -> None:
    storage.enqueue("q", "k")
    worker = Worker(storage, "q", lambda job: sever(storage.connection), reconnect=connect)
    assert worker.run(drain=True) == WorkerOutcome(completed=1)
    storage = QueueStorage(connect(), storage.namespace)
    storage.enqueue("q", "k")
    with pytest.raises(psycopg.OperationalError, match="connection socket closed"):
        Worker(storage, "q", lambda job: sever(storage.connection)).run(drain=True)
    assert storage.connection.closed
    assert watching.queue_counts("q").running == 1


def test_an_idle_worker_that_loses_its_session_hears_of_jobs_on_the_next_one(
    storage: QueueStorage, watching: QueueStorage, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkkeeper.queue.shift.IDLE_WAIT", 3600)
    stop = threading.Event()
    waits = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
    worker = Worker(storage, "q", lambda job: stop.set(), reconnect=connect)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run, stop)
        until(lambda: query(watching, waits))
        terminate(watching, storage)
        until(lambda: query(watching, waits))
        with watching.connection.transaction():
            watching.enqueue("q", "k")
            query(watching, "SELECT {ns}.wake_workers('q')")
        assert running.result(SOON) == WorkerOutcome(completed=1)


def test_without_a_way_to_another_session_it_ends_and_its_jobs_are_rescued(
    storage: QueueStorage, watching: QueueStorage
) -> None:
    storage.enqueue_many("q", "k", [{}] * 2)
    with pytest.raises(psycopg.OperationalError) as caught:
        Worker(storage, "q", lambda job: terminate(watching, storage)).run(drain=True)
    assert caught.value.__notes__ == ["2 jobs stay running until their lease is over and they are rescued"]
    assert watching.queue_counts("q").running == 2
    run_out(watching)
    assert watching.rescue() == RescueOutcome(rescued=2, failed=0)
    assert end_all(watching) == ["completed"] * 2


def test_it_gives_up_a_database_that_is_away_when_told_to_stop(
    storage: QueueStorage, watching: QueueStorage
) -> None:
    stop, tries = threading.Event(), []

    def away() -> psycopg.Connection[Any]:
        tries.append(1)
        if len(tries) == 3:
            stop.set()
        raise DatabaseUnavailable("database app at db:5432 cannot be reached: gone")

    storage.enqueue("q", "k")
    worker = Worker(
        storage,
        "q",
        lambda job: terminate(watching, storage),
        reconnect=away,
        grace=timedelta(0),
    )
    with pytest.raises(DatabaseUnavailable):
        worker.run(stop)
    assert len(tries) == 3
    assert end_all(watching) == ["completed"]


class LosesTheAnswer(QueueStorage):
    """A storage whose session is lost when an action has been committed, before its answer comes."""

    def __init__(self, storage: QueueStorage, watching: QueueStorage, action: str) -> None:
        super().__init__(storage.connection, storage.namespace)
        self._watching, self._action = watching, action

    def _lose(self, action: str, answer: Any) -> Any:
        if action == self._action:
            terminate(self._watching, self)
            self.connection.execute("SELECT 1")
        return answer

    def claim(self, queue: str, limit: int = 1, **options: Any) -> list[ClaimedJob]:
        found: list[ClaimedJob] = self._lose("claim", super().claim(queue, limit, **options))
        return found

    def complete(self, claims: Iterable[ClaimedJob]) -> int:
        return int(self._lose("complete", super().complete(claims)))

    def fail_many(self, failures: Iterable[tuple[ClaimedJob, str]], **options: Any) -> list[str | None]:
        states: list[str | None] = self._lose("fail", super().fail_many(failures, **options))
        return states

    def snooze(self, claims: Iterable[ClaimedJob], *until: Any) -> int:
        return int(self._lose("snooze", super().snooze(claims, *until)))


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        ("claim", WorkerOutcome()),
        ("complete", WorkerOutcome(completed=1, retryable=1, failed=1, handed_back=1)),
        ("fail", WorkerOutcome(completed=1, retryable=1, failed=1, handed_back=1)),
        ("snooze", WorkerOutcome(completed=1, retryable=1, failed=1, handed_back=1)),
    ],
)
def test_a_worker_that_never_got_the_answer_learns_what_became_of_its_jobs(
    storage: QueueStorage, watching: QueueStorage, connect: Connect, action: str, outcome: WorkerOutcome
) -> None:
    stop, go = threading.Event(), threading.Event()

    def handle(job: ClaimedJob) -> None:
        if job.kind == "fails":
            raise ValueError
        if job.kind == "stays":
            stop.set()
            assert go.wait(SOON)

    storage.enqueue("q", "works")
    storage.enqueue("q", "fails")
    storage.enqueue("q", "fails", max_attempts=1)
    storage.enqueue("q", "stays")
    worker = Worker(
        LosesTheAnswer(storage, watching, action), "q", handle, reconnect=connect, grace=timedelta(0)
    )
    try:
        # Those of a claim without an answer are nobody's until their lease is over.
        assert worker.run(stop, drain=action == "claim") == outcome
    finally:
        go.set()
    ends = ["completed", "completed", "completed", "completed"]
    if action != "claim":
        ends[2] = "failed"
    else:
        ends = ["completed", "completed", "failed", "completed"]  # rescued at its last attempt
    assert end_all(watching) == ends


@pytest.mark.parametrize("dead_letter", [False, True])
@pytest.mark.parametrize("action", ["complete", "fail", "snooze"])
def test_it_learns_what_became_of_jobs_that_had_left_the_ring(
    storage: QueueStorage, watching: QueueStorage, connect: Connect, action: str, dead_letter: bool
) -> None:
    stop, go = threading.Event(), threading.Event()

    def handle(job: ClaimedJob) -> None:
        if job.kind == "works":
            for _ in range(2):
                watching.enqueue("other", "k")
                turn(watching)
            assert watching.evacuate().running == 4
        elif job.kind == "fails":
            raise ValueError
        else:
            stop.set()
            assert go.wait(SOON)

    storage.set_queue("q", dead_letter=dead_letter)
    storage.enqueue("q", "works")
    storage.enqueue("q", "fails")
    storage.enqueue("q", "fails", max_attempts=1)
    storage.enqueue("q", "stays")
    worker = Worker(
        LosesTheAnswer(storage, watching, action), "q", handle, reconnect=connect, grace=timedelta(0)
    )
    last = {"dead_lettered": 1} if dead_letter else {"failed": 1}
    try:
        assert worker.run(stop) == WorkerOutcome(completed=1, retryable=1, handed_back=1, **last)
    finally:
        go.set()
    assert differences(watching) == []


def test_it_learns_what_became_of_jobs_whose_claims_have_left_with_their_slot(
    storage: QueueStorage, watching: QueueStorage, connect: Connect
) -> None:
    storage.enqueue("q", "k")

    class AndTheirSlot(LosesTheAnswer):
        def _lose(self, action: str, answer: Any) -> Any:
            if action == self._action:
                assert turn_claims(watching).outcome == "pruned"
            return super()._lose(action, answer)

    worker = Worker(AndTheirSlot(storage, watching, "complete"), "q", lambda job: None, reconnect=connect)
    assert worker.run(drain=True) == WorkerOutcome(completed=1)


@pytest.mark.parametrize("action", ["claim", "complete", "fail", "snooze", "extend"])
def test_a_session_that_is_terminated_in_a_statement_leaves_nothing_of_it_and_the_next_one_does_it(
    storage: QueueStorage, watching: QueueStorage, connect: Connect, action: str
) -> None:
    blocking, stop, go = connect(), threading.Event(), threading.Event()
    own_pid = storage.connection.info.backend_pid
    locks = {
        "claim": f'SELECT "{storage.namespace}".lock_lane(lane_id) FROM "{storage.namespace}".queue_lanes',  # noqa: S608
        "batch": f'SELECT 1 FROM "{storage.namespace}".lease_claim_batches FOR UPDATE',  # noqa: S608
    }

    def handle(job: ClaimedJob) -> None:
        blocking.execute("BEGIN")
        blocking.execute(locks["batch"])
        if action == "fail":
            raise ValueError
        if action == "snooze":
            stop.set()
        if action in ("snooze", "extend"):
            assert go.wait(SOON)

    def is_blocked() -> bool:
        return bool(
            query(
                watching,
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
                own_pid,
            )
        )

    storage.enqueue("q", "k")
    if action == "claim":
        blocking.execute("BEGIN")
        blocking.execute(locks["claim"])
    worker = Worker(
        storage,
        "q",
        handle if action != "claim" else lambda job: None,
        reconnect=connect,
        grace=timedelta(0),
        lease=timedelta(seconds=1) if action == "extend" else timedelta(hours=1),
    )
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run, stop, drain=True)
        until(is_blocked)
        terminate(watching, storage)
        blocking.execute("ROLLBACK")
        if action == "extend":
            until(lambda: query(watching, "SELECT 1 FROM {ns}.leases"))
            go.set()
        outcome = running.result(SOON)
        go.set()
    expected = {"fail": WorkerOutcome(retryable=1), "snooze": WorkerOutcome(handed_back=1)}
    assert outcome == expected.get(action, WorkerOutcome(completed=1))
    assert end_all(watching) == ["completed"]


@pytest.fixture
def start(dsn: str, namespace: str, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start a worker in a process of its own, which does not outlive the test."""
    (tmp_path / "handlers_to_kill.py").write_text(HANDLERS)
    started: list[subprocess.Popen[bytes]] = []

    def begin() -> subprocess.Popen[bytes]:
        program = Path(sys.executable).with_name("parkkeeper")
        command = [
            program,
            "queue",
            "work",
            "-n",
            namespace,
            "-q",
            "q",
            "--handler",
            "handlers_to_kill:handle",
        ]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"PARKKEEPER_DSN": dsn}))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("waits", [True, False], ids=["in a handler", "before what is done is recorded"])
def test_jobs_of_a_worker_that_is_killed_are_finished_by_another(
    storage: QueueStorage,
    connect: Connect,
    start: Callable[[], subprocess.Popen[bytes]],
    tmp_path: Path,
    waits: bool,
) -> None:
    started = [tmp_path / f"started-{n}" for n in range(3)]
    storage.enqueue_many("q", "k", [{"started": str(path), "waits": waits} for path in started])
    blocking = connect()
    if not waits:
        # Whoever is to record that a job is done waits for its batch, which cannot be had.
        blocking.execute("BEGIN")
        query(QueueStorage(blocking, storage.namespace), "LOCK {ns}.lease_claim_closures IN SHARE MODE")
    process = start()
    until(lambda: all(path.exists() for path in (started[:1] if waits else started)))
    process.kill()
    process.wait()
    until(
        lambda: (
            not query(
                storage,
                "SELECT 1 FROM pg_stat_activity WHERE application_name = 'parkkeeper-cli'",
            )
        )
    )
    blocking.rollback()
    assert storage.queue_counts("q").running == 3
    run_out(storage)
    assert storage.rescue() == RescueOutcome(rescued=3, failed=0)
    assert end_all(storage) == ["completed"] * 3
    assert query(storage, "SELECT DISTINCT attempt FROM {ns}.terminal_jobs") == [(2,)]


@pytest.mark.parametrize("done", [False, True])
def test_whichever_statement_is_interrupted_no_job_stays_running_and_no_number_is_wrong(
    storage: QueueStorage, connect: Connect, done: bool
) -> None:
    def handle(job: ClaimedJob) -> None:
        if job.args["fails"]:
            raise ValueError("no")

    # Not the first: what a claim took and could not tell is rescued when its lease is over.
    for statement in count(2):
        query(storage, "UPDATE {ns}.deferred_jobs SET run_at = run_at + interval '1 y'")
        ids = storage.enqueue_many("q", "k", [{"fails": n == 0} for n in range(3)])
        connection = connect(connection_class=Interruptible)
        connection.interrupt_at(statement, done=done)  # type: ignore[attr-defined]
        worker = Worker(QueueStorage(connection, storage.namespace), "q", handle)
        try:
            worker.run(drain=True)
            break
        except KeyboardInterrupt as interrupt:
            assert not hasattr(interrupt, "__notes__")
        states = [
            state
            for (state,) in query(
                storage,
                "SELECT state::text FROM {ns}.terminal_jobs WHERE job_id = ANY(%s) UNION ALL "
                "SELECT state::text FROM {ns}.deferred_jobs WHERE job_id = ANY(%s)",
                list(ids),
                list(ids),
            )
        ]
        assert worker.outcome == WorkerOutcome(
            completed=states.count("completed"),
            retryable=states.count("retryable"),
            handed_back=states.count("scheduled"),
        )
        assert (len(states), storage.queue_counts("q").running) == (3, 0)
        assert differences(storage) == []
    assert statement > 3
