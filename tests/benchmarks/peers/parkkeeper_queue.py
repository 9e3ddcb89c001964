"""Parkkeeper itself, as its users run it: enqueue_many, and one worker."""

from __future__ import annotations

from parkkeeper import database, migrations
from parkkeeper.queue import ClaimedJob, QueueStorage, Worker

from .protocol import ENQUEUED_AT_ONCE, MeantToFail


class Queue:
    """One worker on one connection, with batches as for short jobs."""

    batch = 500
    settings = f"one worker, batch {batch}"

    async def install(self, dsn: str) -> None:
        connection = database.connect(dsn)
        migrations.migrate(connection, "bench", "queue")
        self._storage = QueueStorage(connection, "bench")

    async def enqueue(self, jobs: int, *, failing: bool) -> None:
        for first in range(0, jobs, ENQUEUED_AT_ONCE):
            args = [{"n": n} for n in range(first, min(first + ENQUEUED_AT_ONCE, jobs))]
            self._storage.enqueue_many("bench", "failing" if failing else "noop", args, max_attempts=1)

    async def drain(self, jobs: int, *, failing: bool) -> None:
        Worker(self._storage, "bench", {"noop": noop, "failing": fail}, batch=self.batch).run(drain=True)

    async def unfinished(self) -> int:
        counts = self._storage.queue_counts("bench")
        return counts.available + counts.running + counts.deferred


def noop(claim: ClaimedJob) -> None:
    """Do nothing."""


def fail(claim: ClaimedJob) -> None:
    """Do what a failing handler does."""
    raise MeantToFail
