"""A worker: claims batches, calls the handler of each job, keeps what came of it. See ``docs/explanation/queue.md``."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from parkkeeper.queue.claim import ClaimedJob
from parkkeeper.queue.storage import LEASE, QueueStorage

#: What does a job. What it returns is not kept; what it raises makes the attempt a failed one.
Handler = Callable[[ClaimedJob], object]

#: How long a worker waits, in seconds, before it looks again at a queue that had nothing for it.
IDLE_WAIT = 0.5

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerOutcome:
    """What a worker did from its start to its end.

    Attributes
    ----------
    completed, retryable, failed, dead_lettered
        Jobs by the state in which it left them.
    stale
        Jobs that it worked on and that were no longer its own in the end: cancelled, or taken for abandoned.
    """

    completed: int = 0
    retryable: int = 0
    failed: int = 0
    dead_lettered: int = 0
    stale: int = 0


class Worker:
    """Works off one queue, one job at a time, in batches that cost two or three round trips each.

    Parameters
    ----------
    storage
        The queue. Its connection is the worker's own while it runs; a handler that needs a database opens another.
    queue
        The name of the queue.
    handlers
        A handler for each kind, or one for whatever kind. A job of a kind without one fails, and can be tried by
        another worker until its attempts are spent.
    batch
        How many jobs are claimed at once, from 1 on.
    lease
        How long the jobs of a batch are this worker's before a rescue may take them for abandoned. Between two jobs,
        when half of it is over, it is extended; so it has to be longer than twice the longest job.
    """

    def __init__(
        self,
        storage: QueueStorage,
        queue: str,
        handlers: Mapping[str, Handler] | Handler,
        *,
        batch: int = 10,
        lease: timedelta = LEASE,
    ) -> None:
        self._storage = storage
        self._queue = queue
        self._handlers = handlers if callable(handlers) else MappingProxyType(dict(handlers))
        self._batch = batch
        self._lease = lease

    def run(self, until: threading.Event | None = None, *, drain: bool = False) -> WorkerOutcome:
        """Work until told to stop; the batch in hand is always finished and recorded.

        In the main thread SIGTERM and SIGINT tell it to stop, too; what they did before is restored afterwards.

        Parameters
        ----------
        until
            Set it to stop the worker.
        drain
            Stop as soon as there is nothing to claim. Jobs that wait for their time do not count.

        Raises
        ------
        InvalidName, InvalidArgument, UnknownNamespace
            From the first claim.
        """
        stop = threading.Event() if until is None else until
        outcome = WorkerOutcome()
        with _stopped_by_signals(stop):
            while not stop.is_set():
                asked_at = time.monotonic()
                claims = self._storage.claim(self._queue, self._batch, lease=self._lease)
                if claims:
                    outcome = self._work(claims, asked_at, outcome)
                elif drain:
                    break
                else:
                    stop.wait(IDLE_WAIT)
        return outcome

    def _work(self, claims: Sequence[ClaimedJob], leased_at: float, before: WorkerOutcome) -> WorkerOutcome:
        succeeded: list[ClaimedJob] = []
        failures: list[tuple[ClaimedJob, str]] = []
        try:
            for claim in claims:
                if time.monotonic() - leased_at > self._lease.total_seconds() / 2:
                    # Those that are done, too: they are recorded with the rest.
                    leased_at = time.monotonic()
                    self._storage.extend(claims, self._lease)
                try:
                    self._handle(claim)
                except Exception as error:
                    failures.append((claim, _told(error)))
                    # The text may hold a customer's words and goes to the row alone.
                    _LOG.warning(
                        "job %d of kind %r failed: %s", claim.job_id, claim.kind, type(error).__name__
                    )
                else:
                    succeeded.append(claim)
        finally:
            # Also when what interrupts a handler is no failure of it: what was done before stays done.
            completed = self._storage.complete(succeeded)
            states = self._storage.fail_many(failures)
        return replace(
            before,
            completed=before.completed + completed,
            retryable=before.retryable + states.count("retryable"),
            failed=before.failed + states.count("failed"),
            dead_lettered=before.dead_lettered + states.count("dead_lettered"),
            stale=before.stale + len(succeeded) - completed + states.count(None),
        )

    def _handle(self, claim: ClaimedJob) -> None:
        handler = self._handlers if callable(self._handlers) else self._handlers.get(claim.kind)
        if handler is None:
            raise LookupError(f"this worker has no handler for kind {claim.kind!r}")
        handler(claim)


def _told(error: Exception) -> str:
    """Return an error's class and text; an error that cannot say its text must not cost the record of it."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT set `stop`; only the main thread can ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def tell(number: int, frame: Any) -> None:
        stop.set()

    before = {number: signal.signal(number, tell) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
