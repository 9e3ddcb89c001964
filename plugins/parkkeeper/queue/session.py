"""A worker's session with the database: what it asks there, and another session when that one is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from parkkeeper.database import bring_to_rest, session_lost, statements
from parkkeeper.errors import DatabaseUnavailable
from parkkeeper.queue.calls import call
from parkkeeper.queue.claim import ClaimedJob
from parkkeeper.queue.stopping import Bell, Stop
from parkkeeper.queue.storage import QueueStorage

T = TypeVar("T")

#: How long a worker goes on trying to reach a database that it has lost.
RECONNECT_WITHIN = timedelta(minutes=10)

_SQL = statements("queue/worker")
_LOG = logging.getLogger(__name__)


class WorkerSession:
    """The storage of a worker; a lost session is replaced when it was told how.

    Parameters
    ----------
    storage
        The storage to begin with, which stays its owner's.
    reconnect
        Opens a connection like the storage's; None: a lost session is an error.
    bell, stop, grace
        A wait for the database ends when the bell rings; the tries end with the second signal, and when the worker was
        told to stop, after this time.
    """

    def __init__(
        self,
        storage: QueueStorage,
        reconnect: Callable[[], psycopg.Connection[Any]] | None,
        bell: Bell,
        stop: Stop,
        grace: timedelta,
    ) -> None:
        self._given = self._storage = storage
        self._reconnect = reconnect
        self._bell, self._stop, self._grace = bell, stop, grace
        self._awaiting: psycopg.Connection[Any] | None = None
        self._may_await = True
        #: How many sessions were lost so far.
        self.losses = 0

    @property
    def lost(self) -> bool:
        """Whether there is no session, and none to be had."""
        return self._storage.connection.closed

    def ask(self, action: Callable[[QueueStorage], T]) -> T:
        """Do `action` on the storage; once more on a new session when the old one was lost meanwhile.

        It may have been done then already: whoever counts what came of it looks at :attr:`losses`, and asks
        :meth:`became`.
        """
        while True:
            try:
                return action(self._storage)
            except psycopg.Error as error:
                if not session_lost(self._storage.connection, error) or self._reconnect is None:
                    raise
                _LOG.warning("the session with the database was lost (%s)", type(error).__name__)
            self._open_another(self._reconnect)

    def come_to_rest(self) -> None:
        """End the statement that an interrupt has cut short; it may have been done all the same."""
        connection = self._storage.connection
        # A transaction with no statement under way is not the worker's.
        if connection.info.transaction_status == TransactionStatus.ACTIVE:
            bring_to_rest(connection)

    def await_jobs(self, queue: str) -> bool:
        """Let producers know that a worker waits; whether that is news, so that it has to look once more."""

        def begin(storage: QueueStorage) -> bool:
            connection = storage.connection
            values = {"queue": queue, "backend_pid": connection.info.backend_pid}
            [(granted,)] = call(connection, storage.namespace, _SQL, "await_jobs", values)
            self._awaiting = connection if granted else None
            self._may_await = granted
            return bool(granted)

        if not self._may_await or self._is_awaiting():
            return False
        return self.ask(begin)

    def stop_awaiting_jobs(self, queue: str) -> None:
        """Let producers know that no worker waits any more."""
        if self._is_awaiting():
            self._awaiting = None
            self.ask(lambda storage: self._call(storage, "stop_awaiting_jobs", queue))

    def wait(self, seconds: float) -> None:
        """Wait for the bell, for jobs if they are awaited, or until the time is over."""
        if not self._is_awaiting():
            self._bell.wait(seconds)
            return
        connection = self._storage.connection
        # Whoever looks for jobs next will hear that the session is lost.
        with suppress(psycopg.OperationalError):
            # What came along with the answer to another statement is no longer there to be waited for.
            if not list(connection.notifies(timeout=0)):
                self._bell.wait(seconds, connection.fileno())
                list(connection.notifies(timeout=0))

    def next_due(self, queue: str) -> float | None:
        """Return in how many seconds the next job of the queue will be due; None: there is none."""
        [(seconds,)] = self.ask(lambda storage: self._call(storage, "next_due", queue))
        return None if seconds is None else float(seconds)

    def wake_workers(self, queue: str) -> None:
        """Tell workers of the queue that there is something for them."""
        self.ask(lambda storage: self._call(storage, "wake_workers", queue))

    def became(self, claims: Sequence[ClaimedJob]) -> list[str | None]:
        """Return what stands recorded of each claim; None: it is open, or its job has gone on since."""
        values = {
            "claim_slots": [claim.claim_slot for claim in claims],
            "run_leases": [claim.run_lease for claim in claims],
            "ordinals": [claim.ordinal for claim in claims],
            "job_ids": [claim.job_id for claim in claims],
            "attempts": [claim.attempt for claim in claims],
        }
        return [
            outcome
            for (outcome,) in self.ask(
                lambda storage: call(storage.connection, storage.namespace, _SQL, "became", values)
            )
        ]

    def close(self, queue: str) -> None:
        """Leave nothing in the session that was given, and close one that was opened here."""
        if self._storage is not self._given:
            self._storage.connection.close()
        elif not self.lost:
            # What ended the worker is what its caller has to hear of.
            with suppress(psycopg.Error):
                self.stop_awaiting_jobs(queue)

    def _is_awaiting(self) -> bool:
        return self._awaiting is self._storage.connection and not self._storage.connection.closed

    def _call(self, storage: QueueStorage, action: str, queue: str) -> list[tuple[Any, ...]]:
        return call(storage.connection, storage.namespace, _SQL, action, {"queue": queue})

    def _open_another(self, reconnect: Callable[[], psycopg.Connection[Any]]) -> None:
        """Replace the session.

        Raises
        ------
        DatabaseUnavailable, psycopg.OperationalError
            What the last try raised.
        """
        self.losses += 1
        retrying = Retrying(
            retry=retry_if_exception_type((DatabaseUnavailable, psycopg.OperationalError)),
            wait=wait_random_exponential(multiplier=0.2, max=15),
            stop=self._gives_up,
            sleep=self._bell.wait,
            reraise=True,
        )
        self._storage = QueueStorage(retrying(reconnect), self._given.namespace)
        _LOG.warning("another session with the database was opened")

    def _gives_up(self, state: RetryCallState) -> bool:
        limit = self._grace if self._stop.asked else RECONNECT_WITHIN
        return self._stop.insisted or (state.seconds_since_start or 0) > limit.total_seconds()
