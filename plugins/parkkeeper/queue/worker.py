"""A worker: claims batches, has a handler do each job, keeps what came of it. See ``docs/explanation/queue.md``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import psycopg

from parkkeeper.errors import InvalidArgument
from parkkeeper.queue.arguments import CLAIM_LIMITS, lease_seconds, whole_number
from parkkeeper.queue.handlers import Handler, HandlerThreads
from parkkeeper.queue.outcomes import WorkerOutcome
from parkkeeper.queue.session import WorkerSession
from parkkeeper.queue.shift import Shift
from parkkeeper.queue.stopping import Bell, Stop
from parkkeeper.queue.storage import LEASE, QueueStorage

#: How long a worker that is told to stop waits for its handlers unless it says otherwise.
GRACE = timedelta(seconds=30)
#: The most handlers at once.
MAX_CONCURRENCY = 1_000


class Worker:
    """Works off one queue, in batches that cost two or three round trips each.

    Handlers run in threads of their own, so that the worker can keep its leases, record what is done and listen while
    they run. A job whose worker dies or hands it back, before it was recorded that it is done, is done again: handlers
    have to be idempotent.

    Parameters
    ----------
    storage
        The queue. Its connection is the worker's own while it runs; a handler that needs a database opens another.
    queue
        The name of the queue.
    handlers
        A handler for each kind, or one for whatever kind. A job of a kind without one fails, and can be tried by
        another worker until its attempts are spent. So does one whose handler returns a coroutine or a generator,
        since nothing of that has run.
    batch
        How many jobs are claimed at once, 1 to 100,000. All of them are this worker's until they are done: short jobs
        go faster with more, long ones are better shared among workers with fewer.
    lease
        How long jobs are this worker's before a rescue may take them for abandoned. It is extended for as long as the
        worker lives, so it says nothing about how long a job may take, but how soon a dead worker's jobs are taken
        back.
    concurrency
        How many handlers run at once, 1 to 1,000. With more than one they have to be safe to be called by threads.
    grace
        How long a worker that is told to stop waits for the handlers that run; zero: not at all.
    reconnect
        Opens a connection like the storage's, in place of one that is lost; it is tried for ten minutes, at intervals
        that grow to 15 s. None: a lost connection ends the worker with its error.

    Raises
    ------
    InvalidArgument
        A number or a time is outside its rule.
    """

    def __init__(
        self,
        storage: QueueStorage,
        queue: str,
        handlers: Mapping[str, Handler] | Handler,
        *,
        batch: int = 10,
        lease: timedelta = LEASE,
        concurrency: int = 1,
        grace: timedelta = GRACE,
        reconnect: Callable[[], psycopg.Connection[Any]] | None = None,
    ) -> None:
        lease_seconds(lease)
        if not isinstance(grace, timedelta) or grace < timedelta(0):
            raise InvalidArgument(f"grace {ascii(grace)[:60]} is refused: a timedelta, zero or above")
        self._storage = storage
        self._queue = queue
        self._handlers = handlers
        self._batch = whole_number("batch", batch, CLAIM_LIMITS)
        self._lease = lease
        self._concurrency = whole_number("concurrency", concurrency, range(1, MAX_CONCURRENCY + 1))
        self._grace = grace
        self._reconnect = reconnect
        self._shift: Shift | None = None

    @property
    def outcome(self) -> WorkerOutcome:
        """What the worker has done since it was started last; may be read by any thread."""
        return WorkerOutcome() if self._shift is None else self._shift.outcome

    @property
    def in_hand(self) -> int:
        """How many jobs it has claimed and not yet recorded; may be read by any thread."""
        return 0 if self._shift is None else self._shift.in_hand

    def run(self, until: threading.Event | None = None, *, drain: bool = False) -> WorkerOutcome:
        """Work until told to stop: by the event, or, in the main thread, by SIGTERM or SIGINT.

        Then it claims no more, hands back what it has not begun, waits for the handlers that run as long as `grace`
        says, records what is done and hands back the rest. A second signal ends the wait. A handler whose job was
        handed back may still run; what comes of it is not recorded.

        What signals did before is restored afterwards.

        Parameters
        ----------
        until
            Set it to stop the worker. It is set when a signal was what stopped it.
        drain
            Stop as soon as there is nothing to claim and all is done. Jobs that wait for their time do not count.

        Raises
        ------
        InvalidName, InvalidArgument, UnknownNamespace
            From the first claim.
        DatabaseUnavailable, psycopg.OperationalError
            The connection was lost. What was in hand and not recorded stays this worker's until its lease runs out and
            a rescue takes it back.
        SystemExit, KeyboardInterrupt
            A handler raised it: its attempt has failed, and the worker stopped as if it had been told to.
        """
        bell = Bell()
        stop = Stop(threading.Event() if until is None else until, bell)
        session = WorkerSession(self._storage, self._reconnect, bell, stop, self._grace)
        threads = HandlerThreads(self._handlers, self._concurrency, bell.ring)
        shift = self._shift = Shift(
            self._queue,
            session,
            threads,
            stop,
            batch=self._batch,
            lease=self._lease,
            concurrency=self._concurrency,
            grace=self._grace,
        )
        try:
            with stop.by_signals():
                shift.work(drain)
        finally:
            threads.close()
            session.close(self._queue)
        return shift.outcome
