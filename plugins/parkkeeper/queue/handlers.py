"""The threads in which a worker's handlers run. They touch neither the worker's session nor its figures."""

from __future__ import annotations

import contextvars
import inspect
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import MappingProxyType

from parkkeeper.queue.claim import ClaimedJob

#: What does a job. What it returns is not kept, but nothing may be left to be run; what it raises makes the attempt a
#: failed one.
Handler = Callable[[ClaimedJob], object]

_NEVER_RUN = (
    "the handler returned a coroutine or a generator, which nobody runs: call asyncio.run(...) in a handler"
)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Attempt:
    """How a handler ended.

    Attributes
    ----------
    claim
        The job that it was given.
    error
        Why the attempt failed; None: it did not.
    ends_worker
        What the handler raised, when that asks the program to end and is no mere failure, such as SystemExit.
    """

    claim: ClaimedJob
    error: str | None = None
    ends_worker: BaseException | None = None


class HandlerThreads:
    """Threads that do the jobs they are given, each job once.

    They are daemons: a handler that does not come back must not keep the program from ending.

    Parameters
    ----------
    handlers
        A handler for each kind, or one for whatever kind.
    count
        How many threads, each doing one job at a time.
    ring
        Called by a thread that has finished a job and finds no other.
    """

    def __init__(
        self, handlers: Mapping[str, Handler] | Handler, count: int, ring: Callable[[], None]
    ) -> None:
        self._handlers = handlers if callable(handlers) else MappingProxyType(dict(handlers))
        self._ring = ring
        self._process = os.getpid()
        self._unbegun: SimpleQueue[ClaimedJob | None] = SimpleQueue()
        self._ended: deque[Attempt] = deque()
        self._given = 0  # and neither taken back nor known to have ended
        # Each in a copy of the caller's context, since that is where handlers would run without threads.
        self._threads = [
            threading.Thread(
                target=contextvars.copy_context().run,
                args=(self._work,),
                name=f"parkkeeper-handler-{number}",
                daemon=True,
            )
            for number in range(1, count + 1)
        ]
        for thread in self._threads:
            thread.start()

    def give(self, claims: Iterable[ClaimedJob]) -> None:
        """Let jobs be done, in this order."""
        for claim in claims:
            self._given += 1
            self._unbegun.put(claim)

    def take_back(self) -> list[ClaimedJob]:
        """Return the jobs that no thread has begun, and that none will."""
        claims: list[ClaimedJob] = []
        try:
            while True:
                if (claim := self._unbegun.get_nowait()) is not None:
                    claims.append(claim)
        except Empty:
            self._given -= len(claims)
            return claims

    def ended(self) -> list[Attempt]:
        """Return the attempts that have ended since this was asked last."""
        attempts = [self._ended.popleft() for _ in range(len(self._ended))]
        self._given -= len(attempts)
        return attempts

    def close(self) -> None:
        """End the threads; one whose handler still runs ends when that comes back."""
        for _ in self._threads:
            self._unbegun.put(None)
        if not self._given:
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        while (claim := self._unbegun.get()) is not None:
            attempt = self._attempt(claim)
            if os.getpid() != self._process:
                # The handler has forked and come back twice. The jobs are those of the other process.
                os._exit(1)
            self._ended.append(attempt)
            if attempt.ends_worker is not None or self._unbegun.empty():
                self._ring()
            if attempt.ends_worker is not None:
                return

    def _attempt(self, claim: ClaimedJob) -> Attempt:
        try:
            self._handle(claim)
        except BaseException as error:
            # The text may hold a customer's words and goes to the row alone.
            _LOG.warning("job %d of kind %r failed: %s", claim.job_id, claim.kind, type(error).__name__)
            return Attempt(claim, _told(error), None if isinstance(error, Exception) else error)
        return Attempt(claim)

    def _handle(self, claim: ClaimedJob) -> None:
        handler = self._handlers if callable(self._handlers) else self._handlers.get(claim.kind)
        if handler is None:
            raise LookupError(f"this worker has no handler for kind {claim.kind!r}")
        result = handler(claim)
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            # Nothing of it has run: to call the job completed would lose it.
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(_NEVER_RUN)


def _told(error: BaseException) -> str:
    """Return an error's class and text; an error that cannot say its text must not cost the record of it."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
