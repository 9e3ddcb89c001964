"""Keeps a few programs on a leash: they run until this program's input ends, and none of them outlives it.

Run as a script by a parent that holds the other end of the input: however the parent dies, the kernel closes
that pipe. Airflow puts each task into a process group of its own, so it is the session, which none of them
leaves, that is ended.

Usage: ``leash.py <folder for logs> <name>=<json list: command> ...``
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

#: Seconds from SIGTERM, which lets a task cancel its query, to SIGKILL. Airflow's parts would like more but have
#: nothing to lose: their database is made anew at the next start.
GRACE = 3


def end_session(session: int, grace: float = GRACE) -> None:
    """Ask every process of `session` but this one to end; kill what is still there after `grace` seconds."""
    deadline = time.monotonic() + grace
    asked: set[psutil.Process] = set()
    # A process may start another one meanwhile: look until nothing is left.
    while members := _members(session):
        late = time.monotonic() >= deadline
        for process in members:
            if late or process not in asked:
                _send(process, signal.SIGKILL if late else signal.SIGTERM)
        asked.update(members)
        psutil.wait_procs(members, timeout=0.1)


def listens(session: int, port: int) -> bool:
    """Tell whether a process of `session` listens on a TCP port."""
    for process in _members(session):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return True
    return False


def _members(session: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and os.getsid(process.pid) == session and _alive(process):
                members.append(process)
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue  # it ended while the list was read, or is another user's and so not of this session
    return members


def _alive(process: psutil.Process) -> bool:
    return bool(process.status() != psutil.STATUS_ZOMBIE)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile, which is what was wanted
        process.send_signal(number)


def _watch(name: str, process: subprocess.Popen[Any], ended: list[str], over: threading.Event) -> None:
    status = process.wait()
    ended.append(f"{name} ended with status {status}")
    over.set()


def _wait_for_end_of_input(over: threading.Event) -> None:
    sys.stdin.readline()
    over.set()


def main(logs: Path, programs: dict[str, list[str]]) -> int:
    """Start `programs`; return 0 when told to stop, 1 when one of them ended by itself (printed)."""
    over = threading.Event()
    ended: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: over.set())
    threading.Thread(target=_wait_for_end_of_input, args=(over,), daemon=True).start()
    try:
        for name, command in programs.items():
            with open(logs / f"{name}.log", "wb") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )
            threading.Thread(target=_watch, args=(name, process, ended, over), daemon=True).start()
        over.wait()
        first = ended[:1]
    finally:
        end_session(os.getsid(0))
    for line in first:
        sys.stdout.write(f"{line}\n")
    return 1 if first else 0


if __name__ == "__main__":
    folder, *pairs = sys.argv[1:]
    sys.exit(
        main(Path(folder), {name: json.loads(text) for name, text in (pair.split("=", 1) for pair in pairs)})
    )
