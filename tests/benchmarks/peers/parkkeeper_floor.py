"""Parkkeeper with failed jobs to keep, and its maintenance each second."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from parkkeeper.queue.ring import RINGS

from . import parkkeeper_queue
from .protocol import Prune

#: Rounds of maintenance after which claims and counts of the jobs that failed are folded, too.
SETTLED = 3


class Queue(parkkeeper_queue.Queue):
    """Failed jobs are carried into floor segments, as they are unless a namespace is told otherwise."""

    carry_to = "floor"
    rows_when_done = 1

    async def open(self, dsn: str) -> None:
        await super().open(dsn)
        self._prunes: list[Prune] = []

    async def settle(self) -> None:
        for _ in range(SETTLED):
            self._maintain()
        self._tell()

    def at_work(self) -> AbstractAsyncContextManager[None]:
        return self._working()

    async def second(self, jobs: int) -> None:
        if jobs:
            await self.enqueue(jobs, failing=False)
            await self.drain(jobs, failing=False)
        self._maintain()

    def prunes(self) -> list[Prune]:
        return self._prunes

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        yield
        self._tell()

    def _tell(self) -> None:
        """Let the statistics have at once what this session did."""
        self._storage.connection.execute("SELECT pg_stat_force_next_flush()")

    def _maintain(self) -> None:
        """Do what the maintenance DAG does."""
        self._storage.rescue()
        for ring in RINGS:
            self._storage.rotate(ring=ring)
            while self._prune(ring):
                pass
        self._storage.roll_up()

    def _prune(self, ring: str) -> bool:
        began = time.perf_counter()
        carry_to = self.carry_to if ring == "queue" else None
        outcome = self._storage.prune_oldest(ring=ring, carry_to=carry_to)
        took = (time.perf_counter() - began) * 1000
        if outcome.outcome == "pruned" and ring == "queue":
            self._prunes.append(
                Prune(took, outcome.lock_ms, outcome.truncate_ms, outcome.carried_failed_rows)
            )
        return outcome.outcome == "pruned"
