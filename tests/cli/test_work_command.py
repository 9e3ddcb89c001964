"""``parkkeeper queue work``: a worker in the terminal."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest

from parkkeeper.queue.outcomes import (
    WorkerOutcome,
)

#: Handlers of one's own; the failing ones say a word that must be seen nowhere.
HANDLERS = """
import pathlib
import threading

def handle(job):
    print("handling", job.kind)
    if job.args.get("fail"):
        raise ValueError("rosebud")

def wait(job):
    pathlib.Path(job.args["started"]).touch()
    while not pathlib.Path(job.args["go"]).exists():
        threading.Event().wait(0.01)

nothing = None
"""


def keys(outcome: type) -> list[str]:
    return [field.name for field in fields(outcome)]


def counts(run, jobs: str) -> dict[str, int]:
    return run("queue", "counts", "-n", jobs, "-q", "mail", "--json").json


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of handlers beside the working directory."""
    (tmp_path / "handlers_of_ones_own.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    return "handlers_of_ones_own"


def test_working_a_queue_off_tells_what_came_of_it(run, jobs: str, enqueue, handlers: str) -> None:
    enqueue(kind="welcome")
    enqueue("--args", '{"fail": true}', "--max-attempts", 1, kind="welcome")
    enqueue("--args", '{"fail": true}', kind="goodbye")
    worked = run(
        "queue", "work", "-n", jobs, "-q", "mail", "--handler", f"{handlers}:handle", "--drain", "--json"
    )
    assert worked.code == 0
    assert list(worked.json) == keys(WorkerOutcome)
    assert worked.json == {
        "completed": 1,
        "retryable": 1,
        "failed": 1,
        "dead_lettered": 0,
        "stale": 0,
        "handed_back": 0,
    }
    assert "handling welcome" in worked.err
    assert "rosebud" not in worked.out + worked.err
    found = counts(run, jobs)
    assert (found["terminal"], found["deferred"], found["failed"]) == (2, 1, 1)


def test_each_kind_can_have_a_handler_of_its_own(run, jobs: str, enqueue, handlers: str) -> None:
    for kind in ("welcome", "good=bye", "unknown"):
        enqueue("--max-attempts", 1, kind=kind)
    one, two = f"welcome={handlers}:handle", f"good=bye={handlers}:handle"
    worked = run(
        "queue", "work", "-n", jobs, "-q", "mail", "--handler", one, "--handler", two, "--drain", "--batch", 2,
        "--lease", "30s", "--json",
    )  # fmt: skip
    assert worked.json == {
        "completed": 2,
        "retryable": 0,
        "failed": 1,
        "dead_lettered": 0,
        "stale": 0,
        "handed_back": 0,
    }


@pytest.mark.parametrize(
    "given",
    [
        ["{}"],
        ["{}:"],
        [":handle"],
        ["{}:nonsense"],
        ["{}:nothing"],
        ["no_such_module:handle"],
        ["{}:handle", "welcome={}:handle"],
        ["welcome={}:handle", "welcome={}:handle"],
        ["{}:handle", "{}:handle"],
    ],
    ids=" ".join,
)
def test_a_handler_that_cannot_be_had_is_refused_before_any_job_is_claimed(
    run, jobs: str, enqueue, handlers: str, given: list[str]
) -> None:
    enqueue()
    options = [part for reference in given for part in ("--handler", reference.format(handlers))]
    run("queue", "work", "-n", jobs, "-q", "mail", "--drain", *options).failed(2)
    assert counts(run, jobs)["available"] == 1


@pytest.mark.parametrize(("interrupts", "completed"), [(1, 1), (2, 0)])
def test_an_interrupted_worker_finishes_what_runs_and_hands_back_the_rest_and_at_once_when_interrupted_twice(
    run,
    jobs: str,
    enqueue,
    handlers: str,
    spawn,
    finish,
    until,
    tmp_path: Path,
    interrupts: int,
    completed: int,
) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    for _ in range(3):
        enqueue("--args", json.dumps({"started": str(started), "go": str(go)}))
    process = spawn("queue", "work", "-n", jobs, "-q", "mail", "--handler", f"{handlers}:wait", "--json")
    until(lambda: started.exists() or process.poll() is not None)
    assert process.poll() is None, finish(process)
    process.send_signal(signal.SIGINT)
    until(lambda: counts(run, jobs)["deferred"] == 2)
    if interrupts == 2:
        process.send_signal(signal.SIGINT)
    else:
        go.touch()
    done = finish(process)
    assert done.code == 0
    assert (done.json["completed"], done.json["handed_back"]) == (completed, 3 - completed)
    found = counts(run, jobs)
    assert (found["running"], found["deferred"]) == (0, 3 - completed)


def test_concurrency_and_grace_are_checked_before_any_job_is_claimed(
    run, jobs: str, enqueue, handlers: str
) -> None:
    enqueue()
    work = ("queue", "work", "-n", jobs, "-q", "mail", "--handler", f"{handlers}:handle", "--drain")
    assert "concurrency" in run(*work, "--concurrency", 0).failed(2)
    run(*work, "--grace", "-1s").failed(2)
    assert counts(run, jobs)["available"] == 1
    assert run(*work, "--concurrency", 3, "--grace", 0, "--json").json["completed"] == 1


def test_a_terminal_shows_how_the_work_is_getting_on(
    jobs: str, enqueue, handlers: str, spawn, until, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    started, go = tmp_path / "started", tmp_path / "go"
    enqueue()
    enqueue("--args", json.dumps({"started": str(started), "go": str(go)}), kind="waits")
    screen, terminal = os.openpty()
    os.set_blocking(screen, False)
    one, two = f"welcome={handlers}:handle", f"waits={handlers}:wait"
    process = spawn(
        "queue", "work", "-n", jobs, "-q", "mail", "--handler", one, "--handler", two, "--drain", stderr=terminal
    )  # fmt: skip
    os.close(terminal)
    shown = b""

    def read() -> bytes:
        nonlocal shown
        with suppress(OSError):  # nothing there, or the program has ended
            shown += os.read(screen, 65_536)
        return shown

    until(lambda: b"1 in hand, 1 completed, 0 to be tried again, 0 failed" in read())
    go.touch()
    out, _ = process.communicate(timeout=30)
    os.close(screen)
    assert process.returncode == 0
    assert b"handling welcome" in out, "what a handler prints goes where it did"
