"""Oban: enqueue_many, and its server with one queue."""

from __future__ import annotations

import logging

from oban import Oban, worker
from oban.job import Job
from oban.schema import install

from .protocol import ENQUEUED_AT_ONCE, Countdown, MeantToFail

LIMIT = 200

logging.getLogger("oban").setLevel(logging.CRITICAL)
countdown: Countdown


@worker(queue="bench", max_attempts=1)
class Noop:
    """Does nothing."""

    async def process(self, job: Job) -> None:
        countdown.handled()


@worker(queue="bench", max_attempts=1)
class Failing:
    """Fails."""

    async def process(self, job: Job) -> None:
        countdown.handled()
        raise MeantToFail


class Queue:
    """Its defaults, but for the number of jobs at once."""

    settings = f"enqueue_many, limit {LIMIT}"

    async def install(self, dsn: str) -> None:
        self._pool = await Oban.create_pool(dsn)
        await install(self._pool)
        self._client = Oban(pool=self._pool)

    async def enqueue(self, jobs: int, *, failing: bool) -> None:
        kind = Failing if failing else Noop
        for first in range(0, jobs, ENQUEUED_AT_ONCE):
            many = (kind.new({"n": n}) for n in range(first, min(first + ENQUEUED_AT_ONCE, jobs)))
            await self._client.enqueue_many(many)

    async def drain(self, jobs: int, *, failing: bool) -> None:
        global countdown
        countdown = Countdown(jobs)
        async with Oban(pool=self._pool, queues={"bench": LIMIT}):
            await countdown.over()

    async def unfinished(self) -> int:
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT count(*) FROM oban_jobs WHERE state NOT IN ('completed', 'discarded', 'cancelled')"
            )
            [count] = await cursor.fetchone()
            return int(count)
