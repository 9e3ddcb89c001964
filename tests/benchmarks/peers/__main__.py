"""Run one queue and print what it took, a JSON object a line: ``python -m peers MODULE WORK JOBS RATE SECONDS``."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import sys
import time
from typing import Any

import psycopg

from .protocol import Countdown, Peer

#: Jobs that are enqueued one at a time, for each hundred that are enqueued together.
SINGLES = 2


class Meter:
    """Tells how long a piece of work took, and by how much the server's log of changes grew."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)

    async def take(self, name: str, jobs: int, work: Any) -> None:
        """Await `work` and tell of it."""
        position, began = self._position(), time.perf_counter()
        await work
        seconds = time.perf_counter() - began
        tell(work=name, jobs=jobs, seconds=seconds, wal=self._position() - position)

    def _position(self) -> int:
        row: Any = self._connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        return int(row[0])


async def complete(peer: Any, meter: Meter, jobs: int, rate: int, seconds: int) -> None:
    """Enqueue jobs that do nothing, together and one at a time, and drain them; then let some come at a steady rate."""
    given = max(1, round(jobs * peer.shares[0]))
    await meter.take("enqueue", given, peer.enqueue(given, failing=False))
    if not hasattr(peer, "drain"):
        return
    await meter.take("drain", given, _drained(peer, given, failing=False))
    singles = max(1, given * SINGLES // 100)
    await meter.take("enqueue one", singles, _one_by_one(peer, singles))
    await _drained(peer, singles, failing=False)
    steady = rate * seconds if hasattr(peer, "working") else 0
    if steady:
        tell(work="latency", ms=await latencies(peer, rate, steady))
    tell(completed=given + singles + steady)


async def fail(peer: Peer, meter: Meter, jobs: int) -> None:
    """Enqueue jobs that fail, and drain them."""
    if not peer.shares[1]:
        return
    given = max(1, round(jobs * peer.shares[1]))
    await peer.enqueue(given, failing=True)
    await meter.take("drain failing", given, _drained(peer, given, failing=True))


async def latencies(peer: Any, rate: int, jobs: int) -> list[float]:
    """Return for each job the milliseconds from when it was asked for to when its handler had it."""
    asked: list[float] = []
    waits: list[float] = []
    countdown = Countdown(jobs)

    def arrived(n: int) -> None:
        waits.append((time.perf_counter() - asked[n]) * 1000)
        countdown.handled()

    async with peer.working(arrived):
        began = time.perf_counter()
        for n in range(jobs):
            await asyncio.sleep(max(0.0, began + n / rate - time.perf_counter()))
            asked.append(time.perf_counter())
            await peer.enqueue_one(n)
        await countdown.over()
    return waits


async def _one_by_one(peer: Peer, jobs: int) -> None:
    for n in range(jobs):
        await peer.enqueue_one(n)


async def _drained(peer: Peer, jobs: int, *, failing: bool) -> None:
    await peer.drain(jobs, failing=failing)
    if unfinished := await peer.unfinished():
        raise SystemExit(f"{unfinished} of {jobs} jobs were left")


def tell(**what: object) -> None:
    """Print one object for the process that waits for it."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def measure(peer: Peer, dsn: str, work: str, jobs: int, rate: int, seconds: int) -> None:
    """Install the queue, or let it do one of the two kinds of work."""
    meter = Meter(dsn)
    await peer.open(dsn)
    if work == "install":
        await peer.install()
    elif work == "complete":
        await complete(peer, meter, jobs, rate, seconds)
    else:
        await fail(peer, meter, jobs)


def found(module: str) -> Any:
    """Return the queue of a module; None, and tell why, when its package is not installed."""
    logging.disable(logging.CRITICAL)  # What its handlers raise is not of interest.
    try:
        return importlib.import_module(f"peers.{module}").Queue()
    except ImportError as error:
        tell(skipped=f"{error.name} is not installed for Python {sys.version_info[0]}.{sys.version_info[1]}")
        return None


def main(module: str, work: str, jobs: str, rate: str, seconds: str) -> None:
    """Measure the queue of `module`."""
    if peer := found(module):
        tell(settings=peer.settings)
        asyncio.run(measure(peer, os.environ["BENCH_DSN"], work, int(jobs), int(rate), int(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
