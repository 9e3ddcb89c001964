"""Procrastinate: batch_defer, and a worker with a pool of connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import procrastinate

from .protocol import ENQUEUED_AT_ONCE, MeantToFail, arguments

CONCURRENCY = 20

logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
handled: Callable[[int], None]


class Queue:
    """Its worker, told to stop when it has caught up."""

    settings = f"batch_defer, concurrency {CONCURRENCY}"
    shares = (0.025, 0.025)

    async def open(self, dsn: str) -> None:
        connector = procrastinate.PsycopgConnector(conninfo=dsn, min_size=1, max_size=CONCURRENCY)
        self._app = procrastinate.App(connector=connector)
        self._tasks = {
            False: self._app.task(noop, name="noop", queue="bench"),
            True: self._app.task(fail, name="failing", queue="bench"),
        }
        await self._app.open_async()

    async def install(self) -> None:
        await self._app.schema_manager.apply_schema_async()

    async def enqueue(self, jobs: int, *, failing: bool) -> None:
        task = self._tasks[failing]
        for first in range(0, jobs, ENQUEUED_AT_ONCE):
            await task.batch_defer_async(
                *(arguments(n) for n in range(first, min(first + ENQUEUED_AT_ONCE, jobs)))
            )

    async def enqueue_one(self, n: int) -> None:
        await self._tasks[False].defer_async(**arguments(n))

    async def drain(self, jobs: int, *, failing: bool) -> None:
        global handled
        handled = lambda _: None  # noqa: E731
        await self._run(wait=False)

    @asynccontextmanager
    async def working(self, arrived: Callable[[int], None]) -> AsyncIterator[None]:
        global handled
        handled = arrived
        worker = asyncio.create_task(self._run(wait=True))
        yield
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker

    async def _run(self, *, wait: bool) -> None:
        await self._app.run_worker_async(
            queues=["bench"], wait=wait, concurrency=CONCURRENCY, install_signal_handlers=False
        )

    async def unfinished(self) -> int:
        rows = await self._app.connector.execute_query_all_async(
            "SELECT count(*) AS jobs FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )
        return int(rows[0]["jobs"])


async def noop(n: int, text: str) -> None:
    """Do nothing but say so."""
    handled(n)


async def fail(n: int, text: str) -> None:
    """Do what a failing handler does."""
    raise MeantToFail
