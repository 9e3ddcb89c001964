"""awa-pg: COPY into its queue storage, and its asynchronous client with many handlers at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import awa
import psycopg

from .protocol import ENQUEUED_AT_ONCE, TEXT, Countdown, MeantToFail, Prune

WORKERS = 200


@dataclass
class Noop:
    """A job whose handler does nothing."""

    n: int
    text: str = TEXT


@dataclass
class Failing:
    """A job whose handler fails."""

    n: int
    text: str = TEXT


class Queue:
    """Its defaults, but for the number of handlers."""

    settings = f"enqueue_many_copy, {WORKERS} handlers at once"
    shares = (0.5, 0.02)
    rows_when_done = 0

    async def open(self, dsn: str) -> None:
        self._dsn = dsn
        self._client = awa.AsyncClient(dsn)

    async def install(self) -> None:
        await self._client.migrate()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            # A database that never held an older release's jobs goes to the queue storage at once.
            connection.execute("SELECT awa.storage_auto_finalize_if_fresh('awa')")

    async def enqueue(self, jobs: int, *, failing: bool) -> None:
        make = Failing if failing else Noop
        for first in range(0, jobs, ENQUEUED_AT_ONCE):
            many = [make(n) for n in range(first, min(first + ENQUEUED_AT_ONCE, jobs))]
            await self._client.enqueue_many_copy(many, queue="bench", max_attempts=1)

    async def enqueue_one(self, n: int) -> None:
        await self._client.insert(Noop(n), queue="bench", max_attempts=1)

    async def drain(self, jobs: int, *, failing: bool) -> None:
        countdown = Countdown(jobs)
        async with self._worker(lambda _: countdown.handled()):
            await countdown.over()

    async def unfinished(self) -> int:
        return sum(stat.total_queued + stat.running for stat in await self._client.queue_stats())

    def working(self, arrived: Callable[[int], None]) -> AbstractAsyncContextManager[None]:
        return self._worker(arrived)

    async def settle(self) -> None:
        """Nothing: its maintenance runs in its worker, on its own clock."""

    def at_work(self) -> AbstractAsyncContextManager[None]:
        return self._worker(lambda _: None)

    async def second(self, jobs: int) -> None:
        if jobs:
            await self.enqueue(jobs, failing=False)

    def prunes(self) -> list[Prune]:
        return []

    @asynccontextmanager
    async def _worker(self, handled: Callable[[int], None]) -> AsyncIterator[None]:
        client = awa.AsyncClient(self._dsn)

        @client.task(Noop, queue="bench")
        async def noop(job: awa.Job) -> None:
            handled(job.args.n)

        @client.task(Failing, queue="bench")
        async def fail(job: awa.Job) -> None:
            handled(job.args.n)
            raise MeantToFail

        await client.start([("bench", WORKERS)])
        yield
        await client.shutdown(timeout_ms=60_000)
        await client.close()
