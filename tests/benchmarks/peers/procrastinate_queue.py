"""Procrastinate: batch_defer, and a worker with a pool of connections."""

from __future__ import annotations

import logging

import procrastinate

from .protocol import ENQUEUED_AT_ONCE, MeantToFail

CONCURRENCY = 20

logging.getLogger("procrastinate").setLevel(logging.CRITICAL)


class Queue:
    """Its worker, told to stop when it has caught up."""

    settings = f"batch_defer, concurrency {CONCURRENCY}"

    async def install(self, dsn: str) -> None:
        connector = procrastinate.PsycopgConnector(conninfo=dsn, min_size=1, max_size=CONCURRENCY)
        self._app = procrastinate.App(connector=connector)
        self._tasks = {
            False: self._app.task(noop, name="noop", queue="bench"),
            True: self._app.task(fail, name="failing", queue="bench"),
        }
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()

    async def enqueue(self, jobs: int, *, failing: bool) -> None:
        task = self._tasks[failing]
        for first in range(0, jobs, ENQUEUED_AT_ONCE):
            await task.batch_defer_async(
                *({"n": n} for n in range(first, min(first + ENQUEUED_AT_ONCE, jobs)))
            )

    async def drain(self, jobs: int, *, failing: bool) -> None:
        await self._app.run_worker_async(
            queues=["bench"], wait=False, concurrency=CONCURRENCY, install_signal_handlers=False
        )

    async def unfinished(self) -> int:
        rows = await self._app.connector.execute_query_all_async(
            "SELECT count(*) AS jobs FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )
        return int(rows[0]["jobs"])


async def noop(n: int) -> None:
    """Do nothing."""


async def fail(n: int) -> None:
    """Do what a failing handler does."""
    raise MeantToFail
