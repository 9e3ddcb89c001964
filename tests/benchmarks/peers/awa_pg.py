"""awa-pg: COPY into its queue storage, and its asynchronous client with many handlers at once."""

from __future__ import annotations

from dataclasses import dataclass

import awa
import psycopg

from .protocol import ENQUEUED_AT_ONCE, Countdown, MeantToFail

WORKERS = 200


@dataclass
class Noop:
    """A job whose handler does nothing."""

    n: int


@dataclass
class Failing:
    """A job whose handler fails."""

    n: int


class Queue:
    """Its defaults, but for the number of handlers."""

    settings = f"enqueue_many_copy, {WORKERS} handlers at once"

    async def install(self, dsn: str) -> None:
        self._dsn = dsn
        self._client = awa.AsyncClient(dsn)
        await self._client.migrate()
        with psycopg.connect(dsn, autocommit=True) as connection:
            # A database that never held an older release's jobs goes to the queue storage at once.
            connection.execute("SELECT awa.storage_auto_finalize_if_fresh('awa')")

    async def enqueue(self, jobs: int, *, failing: bool) -> None:
        make = Failing if failing else Noop
        for first in range(0, jobs, ENQUEUED_AT_ONCE):
            many = [make(n) for n in range(first, min(first + ENQUEUED_AT_ONCE, jobs))]
            await self._client.enqueue_many_copy(many, queue="bench", max_attempts=1)

    async def drain(self, jobs: int, *, failing: bool) -> None:
        countdown = Countdown(jobs)
        client = awa.AsyncClient(self._dsn)

        @client.task(Noop, queue="bench")
        async def noop(job: awa.Job) -> None:
            countdown.handled()

        @client.task(Failing, queue="bench")
        async def fail(job: awa.Job) -> None:
            countdown.handled()
            raise MeantToFail

        await client.start([("bench", WORKERS)])
        await countdown.over()
        await client.shutdown(timeout_ms=60_000)
        await client.close()

    async def unfinished(self) -> int:
        return sum(stat.total_queued + stat.running for stat in await self._client.queue_stats())
