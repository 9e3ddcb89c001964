"""Parkkeeper itself, as its users run it: enqueue_many, and one worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from parkkeeper import database, migrations
from parkkeeper.queue import ClaimedJob, QueueStorage, Worker

from .protocol import ENQUEUED_AT_ONCE, MeantToFail, arguments


class Queue:
    """One worker on one connection, with batches as for short jobs."""

    batch = 1_000
    settings = f"one worker, batch {batch:,}"
    shares = (1.0, 1.0)

    async def open(self, dsn: str) -> None:
        self._dsn = dsn
        self._storage = QueueStorage(database.connect(dsn), "bench")

    async def install(self) -> None:
        migrations.migrate(self._storage.connection, "bench", "queue")

    async def enqueue(self, jobs: int, *, failing: bool) -> None:
        for first in range(0, jobs, ENQUEUED_AT_ONCE):
            args = [arguments(n) for n in range(first, min(first + ENQUEUED_AT_ONCE, jobs))]
            self._storage.enqueue_many("bench", "failing" if failing else "noop", args, max_attempts=1)

    async def enqueue_one(self, n: int) -> None:
        self._storage.enqueue("bench", "noop", arguments(n), max_attempts=1)

    async def drain(self, jobs: int, *, failing: bool) -> None:
        Worker(self._storage, "bench", {"noop": noop, "failing": fail}, batch=self.batch).run(drain=True)

    async def unfinished(self) -> int:
        counts = self._storage.queue_counts("bench")
        return counts.available + counts.running + counts.deferred

    @asynccontextmanager
    async def working(self, arrived: Callable[[int], None]) -> AsyncIterator[None]:
        over = threading.Event()
        with database.connect(self._dsn) as connection:
            storage = QueueStorage(connection, "bench")
            worker = Worker(storage, "bench", lambda claim: arrived(claim.args["n"]), batch=self.batch)
            running = asyncio.create_task(asyncio.to_thread(worker.run, over))
            yield
            over.set()
            await running


def noop(claim: ClaimedJob) -> None:
    """Do nothing."""


def fail(claim: ClaimedJob) -> None:
    """Do what a failing handler does."""
    raise MeantToFail
