"""PgQueuer: enqueue with lists, and its queue manager in drain mode on asyncpg."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from .protocol import ENQUEUED_AT_ONCE, MeantToFail, arguments

BATCH = 100

logging.getLogger("pgqueuer").setLevel(logging.CRITICAL)


class Queue:
    """Its manager, told to stop when the queue is empty."""

    settings = f"drain mode, batch {BATCH}, asyncpg pool"
    shares = (0.5, 0.25)

    async def open(self, dsn: str) -> None:
        self._dsn = dsn
        self._pool = await asyncpg.create_pool(dsn, min_size=1, max_size=10)
        self._queries = Queries(AsyncpgPoolDriver(self._pool))

    async def install(self) -> None:
        await self._queries.install()

    async def enqueue(self, jobs: int, *, failing: bool) -> None:
        entrypoint = "failing" if failing else "noop"
        for first in range(0, jobs, ENQUEUED_AT_ONCE):
            payloads = [_payload(n) for n in range(first, min(first + ENQUEUED_AT_ONCE, jobs))]
            await self._queries.enqueue([entrypoint] * len(payloads), payloads, [0] * len(payloads))

    async def enqueue_one(self, n: int) -> None:
        await self._queries.enqueue(["noop"], [_payload(n)], [0])

    async def drain(self, jobs: int, *, failing: bool) -> None:
        async with asyncpg.create_pool(self._dsn, min_size=1, max_size=10) as pool:
            manager = PgQueuer(AsyncpgPoolDriver(pool)).qm
            manager.entrypoint("noop")(noop)
            manager.entrypoint("failing")(fail)
            await manager.run(mode=QueueExecutionMode.drain, batch_size=BATCH)

    @asynccontextmanager
    async def working(self, arrived: Callable[[int], None]) -> AsyncIterator[None]:
        async def tell(job: Job) -> None:
            assert job.payload is not None
            arrived(json.loads(job.payload)["n"])

        async with asyncpg.create_pool(self._dsn, min_size=1, max_size=10) as pool:
            manager = PgQueuer(AsyncpgPoolDriver(pool)).qm
            manager.entrypoint("noop")(tell)
            worker = asyncio.create_task(manager.run(batch_size=BATCH))
            yield
            manager.shutdown.set()
            await worker

    async def unfinished(self) -> int:
        return int(
            await self._pool.fetchval("SELECT count(*) FROM pgqueuer WHERE status IN ('queued', 'picked')")
        )


def _payload(n: int) -> bytes:
    return json.dumps(arguments(n)).encode()


async def noop(job: Job) -> None:
    """Do nothing."""


async def fail(job: Job) -> None:
    """Do what a failing handler does."""
    raise MeantToFail
