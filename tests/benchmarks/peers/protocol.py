"""What the benchmark asks of a queue. Imports nothing that is only in one of the two environments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

#: Jobs in one call of the queue's own way to enqueue many.
ENQUEUED_AT_ONCE = 1_000
#: What each job carries beside its number, so that its arguments are about 200 bytes of JSON.
TEXT = "x" * 180


def arguments(n: int) -> dict[str, Any]:
    """Return the arguments of a job."""
    return {"n": n, "text": TEXT}


class Peer(Protocol):
    """A queue in an empty database of its own; each method returns when its work is committed."""

    #: How it was told to work, for the reader of the table.
    settings: str
    #: Which part of the jobs it is given, so that a round takes it seconds: such as do nothing, and such as fail.
    shares: tuple[float, float]

    async def open(self, dsn: str) -> None:
        """Connect."""

    async def install(self) -> None:
        """Make the tables."""

    async def enqueue(self, jobs: int, *, failing: bool) -> None:
        """Add so many jobs, in the queue's own way for many; their handler does nothing, or fails for good."""

    async def enqueue_one(self, n: int) -> None:
        """Add a job whose handler does nothing, in a transaction of its own."""

    async def drain(self, jobs: int, *, failing: bool) -> None:
        """Work off so many jobs in this process."""

    async def unfinished(self) -> int:
        """Count the jobs that have not come to an end."""


class Waker(Peer, Protocol):
    """A queue with a worker that waits for jobs."""

    def working(self, arrived: Callable[[int], None]) -> AbstractAsyncContextManager[None]:
        """Have a worker for as long as the block lasts, whose handler tells the number of the job that it was given."""


class Keeper(Peer, Protocol):
    """A queue that keeps failed jobs for a while in its table ``done_entries``, and is looked at while it does."""

    #: How many rows it inserts there for a job that is completed.
    rows_when_done: int

    async def settle(self) -> None:
        """Do once what belongs to the jobs that have failed, not to keeping them."""

    def at_work(self) -> AbstractAsyncContextManager[None]:
        """Have a worker and maintenance for as long as the block lasts."""

    async def second(self, jobs: int) -> None:
        """Let so many jobs come and be worked off, and do what is due each second."""

    def prunes(self) -> list[Prune]:
        """Return the prunes since the work began, where the queue tells of them."""


class Prune(NamedTuple):
    """One prune: milliseconds in all, waiting for locks, and under exclusive locks; failed rows moved."""

    ms: float
    lock_ms: float
    exclusive_ms: float
    moved: int


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
