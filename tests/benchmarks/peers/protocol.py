"""What the benchmark asks of a queue. Imports nothing that is only in one of the two environments."""

from __future__ import annotations

import asyncio
from typing import Protocol

#: Jobs in one call of the queue's own way to enqueue many.
ENQUEUED_AT_ONCE = 1_000


class Peer(Protocol):
    """A queue in an empty database of its own; each method returns when its work is committed."""

    #: How it was told to work, for the reader of the table.
    settings: str

    async def install(self, dsn: str) -> None:
        """Make the tables."""

    async def enqueue(self, jobs: int, *, failing: bool) -> None:
        """Add so many jobs, in the queue's own way for many; their handler does nothing, or fails for good."""

    async def drain(self, jobs: int, *, failing: bool) -> None:
        """Work off so many jobs in this process."""

    async def unfinished(self) -> int:
        """Count the jobs that have not come to an end."""


class Countdown:
    """Tells when the last of so many jobs has been handled; `handled` may be called from any thread."""

    def __init__(self, jobs: int) -> None:
        self._left, self._loop, self._over = jobs, asyncio.get_running_loop(), asyncio.Event()

    def handled(self) -> None:
        """Count a job."""
        self._loop.call_soon_threadsafe(self._count)

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            self._over.set()

    async def over(self) -> None:
        """Wait for the last one."""
        await self._over.wait()


class MeantToFail(Exception):
    """What a failing handler raises."""
