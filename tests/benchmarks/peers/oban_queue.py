"""Oban: enqueue_many, and its server with one queue."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from oban import Oban, worker
from oban.job import Job
from oban.schema import install

from .protocol import ENQUEUED_AT_ONCE, Countdown, MeantToFail, arguments

LIMIT = 200

logging.getLogger("oban").setLevel(logging.CRITICAL)
handled: Callable[[int], None]


@worker(queue="bench", max_attempts=1)
class Noop:
    """Does nothing."""

    async def process(self, job: Job) -> None:
        handled(job.args["n"])


@worker(queue="bench", max_attempts=1)
class Failing:
    """Fails."""

    async def process(self, job: Job) -> None:
        handled(job.args["n"])
        raise MeantToFail


class Queue:
    """Its defaults, but for the number of jobs at once."""

    settings = f"enqueue_many, limit {LIMIT}"
    shares = (0.05, 0.05)

    async def open(self, dsn: str) -> None:
        self._pool = await Oban.create_pool(dsn)
        self._client = Oban(pool=self._pool)

    async def install(self) -> None:
        await install(self._pool)

    async def enqueue(self, jobs: int, *, failing: bool) -> None:
        kind = Failing if failing else Noop
        for first in range(0, jobs, ENQUEUED_AT_ONCE):
            many = (kind.new(arguments(n)) for n in range(first, min(first + ENQUEUED_AT_ONCE, jobs)))
            await self._client.enqueue_many(many)

    async def enqueue_one(self, n: int) -> None:
        await self._client.enqueue(Noop.new(arguments(n)))

    async def drain(self, jobs: int, *, failing: bool) -> None:
        countdown = Countdown(jobs)
        async with self.working(lambda _: countdown.handled()):
            await countdown.over()

    @asynccontextmanager
    async def working(self, arrived: Callable[[int], None]) -> AsyncIterator[None]:
        global handled
        handled = arrived
        async with Oban(pool=self._pool, queues={"bench": LIMIT}):
            yield

    async def unfinished(self) -> int:
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT count(*) FROM oban_jobs WHERE state NOT IN ('completed', 'discarded', 'cancelled')"
            )
            [count] = await cursor.fetchone()
            return int(count)
