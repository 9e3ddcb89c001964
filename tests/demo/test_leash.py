"""The leash: whatever it started ends with it, and it ends with its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from parkkeeper.demo import leash

# Has a child in a process group of its own, as Airflow's tasks are.
FAMILY = """
import pathlib, signal, subprocess, sys
sleeper = "import signal; print(flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", sleeper], process_group=0, stdout=subprocess.PIPE)
child.stdout.readline()
pathlib.Path("child.partial").write_text(str(child.pid))
pathlib.Path("child.partial").rename("child")
signal.pause()
"""
LISTENER = """
import pathlib, signal, socket
server = socket.create_server(("127.0.0.1", 0))
pathlib.Path("port.partial").write_text(str(server.getsockname()[1]))
pathlib.Path("port.partial").rename("port")
signal.pause()
"""
# Ignores SIGTERM, as a program may that is stuck.
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{FAMILY}"


class Started:
    """A leash with one program on it, and everything that belongs to its session."""

    def __init__(self, folder: Path, program: str) -> None:
        command = json.dumps([sys.executable, "-c", program])
        self.process = subprocess.Popen(
            [sys.executable, leash.__file__, str(folder), f"part={command}"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def session(self) -> list[psutil.Process]:
        return leash._members(self.process.pid)

    def kill_all(self) -> None:
        leash.end_session(self.process.pid, grace=0)
        self.process.wait(timeout=60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Started]]:
    with ExitStack() as stack:

        def start(program: str) -> Started:
            started = Started(tmp_path, program)
            stack.callback(started.kill_all)
            return started

        yield start


@pytest.fixture(params=[FAMILY], ids=["family"])
def family(request: pytest.FixtureRequest, tmp_path: Path, start: Callable[[str], Started]) -> Started:
    started = start(request.param)
    _wait_for(tmp_path / "child", started)
    return started


stubborn = pytest.mark.parametrize("family", [STUBBORN], indirect=True, ids=["stubborn"])


def _wait_for(path: Path, started: Started) -> None:
    """Wait, bounded, until a program has written `path`."""
    for _ in range(300):
        if path.exists():
            return
        with pytest.raises(subprocess.TimeoutExpired):
            started.process.wait(timeout=0.1)
    raise AssertionError(f"{path.name} was not written")


@stubborn
def test_all_of_it_ends_when_the_parent_says_so(family: Started) -> None:
    assert len(family.session()) == 3
    output, _ = family.process.communicate("stop\n", timeout=60)
    assert (family.process.returncode, output) == (0, "")
    assert family.session() == []


def test_all_of_it_ends_when_the_parent_is_gone(family: Started) -> None:
    assert family.process.stdin is not None
    family.process.stdin.close()
    assert family.process.wait(timeout=60) == 0
    assert family.session() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_all_of_it_ends_on_a_signal(family: Started, number: signal.Signals) -> None:
    family.process.send_signal(number)
    assert family.process.wait(timeout=60) == 0
    assert family.session() == []


def test_what_a_killed_leash_left_behind_is_ended_by_its_parent(family: Started) -> None:
    family.process.kill()
    family.process.wait(timeout=60)
    assert len(family.session()) == 2
    leash.end_session(family.process.pid, grace=0)
    assert family.session() == []


def test_a_port_belongs_to_the_session_that_listens_on_it(
    tmp_path: Path, start: Callable[[str], Started]
) -> None:
    started = start(LISTENER)
    _wait_for(tmp_path / "port", started)
    port = int((tmp_path / "port").read_text())
    assert leash.listens(started.process.pid, port)
    assert not leash.listens(started.process.pid, port + 1)
    assert not leash.listens(os.getsid(0), port)


def test_a_part_that_ends_by_itself_ends_the_others_and_is_named(
    tmp_path: Path, start: Callable[[str], Started]
) -> None:
    process = start("import sys; print('what went wrong'); sys.exit(3)").process
    assert process.stdout is not None
    assert process.stdout.read() == "part ended with status 3\n"
    assert process.wait(timeout=60) == 1
    assert (tmp_path / "part.log").read_text() == "what went wrong\n"
