"""Run one queue and print what it took, a JSON object a line: ``python -m peers MODULE JOBS``."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import sys
import time

from .protocol import Peer


async def measure(peer: Peer, dsn: str, jobs: int) -> None:
    """Enqueue and drain jobs that do nothing, then such as fail."""
    await peer.install(dsn)
    for failing in (False, True):
        began = time.perf_counter()
        await peer.enqueue(jobs, failing=failing)
        if not failing:
            tell(work="enqueue", seconds=time.perf_counter() - began)
        began = time.perf_counter()
        await peer.drain(jobs, failing=failing)
        seconds = time.perf_counter() - began
        if unfinished := await peer.unfinished():
            raise SystemExit(f"{unfinished} of {jobs} jobs were left")
        tell(work="drain failing" if failing else "drain", seconds=seconds)


def tell(**what: object) -> None:
    """Print one object for the process that waits for it."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(module: str, jobs: str) -> None:
    """Measure the queue of `module`; what its handlers raise is not logged."""
    logging.disable(logging.CRITICAL)
    try:
        peer: Peer = importlib.import_module(f"peers.{module}").Queue()
    except ImportError as error:
        tell(skipped=f"{error.name} is not installed for Python {sys.version_info[0]}.{sys.version_info[1]}")
        return
    tell(settings=peer.settings)
    asyncio.run(measure(peer, os.environ["BENCH_DSN"], int(jobs)))


if __name__ == "__main__":
    main(*sys.argv[1:])
