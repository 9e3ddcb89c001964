"""The queue's front door: one class, a method an action, each documented here and done in a module of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from parkkeeper.namespace import Namespace
from parkkeeper.queue.claim import ClaimedJob

if TYPE_CHECKING:
    from parkkeeper.queue.outcomes import PruneOutcome, QueueCounts, RetryFailedOutcome, RotateOutcome

#: The states in which a job holds its unique key unless it says otherwise.
UNIQUE_STATES = ("scheduled", "available", "running", "retryable")
LEASE = timedelta(minutes=5)
LOCK_TIMEOUT = timedelta(milliseconds=50)


class QueueStorage:
    """The queue of one namespace, on one connection.

    Parameters
    ----------
    connection
        A psycopg 3 connection, in autocommit mode but for :meth:`enqueue` and :meth:`enqueue_many`.
    namespace
        The schema that holds the queue family's tables.

    Raises
    ------
    InvalidNamespace
        `namespace` is no name for a namespace. Nothing is sent to the database here.
    """

    def __init__(self, connection: psycopg.Connection[Any], namespace: str | Namespace) -> None:
        self.connection = connection
        self.namespace = Namespace.of(namespace)

    def enqueue(
        self,
        queue: str,
        kind: str,
        args: Mapping[str, Any] | None = None,
        *,
        priority: int = 2,
        run_at: datetime | None = None,
        max_attempts: int = 25,
        unique_key: str | bytes | None = None,
        unique_states: Sequence[str] = UNIQUE_STATES,
    ) -> int:
        """Add one job and return its id."""
        raise NotImplementedError

    def enqueue_many(
        self,
        queue: str,
        kind: str,
        args_list: Sequence[Mapping[str, Any] | None],
        *,
        priority: int = 2,
        run_at: datetime | None = None,
        max_attempts: int = 25,
    ) -> list[int]:
        """Add a job for each element of `args_list`, in one statement; return their ids in the same order."""
        raise NotImplementedError

    def claim(self, queue: str, limit: int = 1, *, lease: timedelta = LEASE) -> list[ClaimedJob]:
        """Take up to `limit` jobs that are available now; an empty list when there is none."""
        raise NotImplementedError

    def complete(self, claims: Iterable[ClaimedJob]) -> int:
        """Finish jobs as completed; return how many were finalised, which leaves out stale claims."""
        raise NotImplementedError

    def fail(self, claim: ClaimedJob, error: str, *, terminal: bool = False) -> str | None:
        """Record that an attempt failed: ``"retryable"`` or ``"failed"``, None for a stale claim."""
        raise NotImplementedError

    def fail_many(
        self, failures: Iterable[tuple[ClaimedJob, str]], *, terminal: bool = False
    ) -> list[str | None]:
        """Do what :meth:`fail` does for many claims in one statement; the results are in the order given."""
        raise NotImplementedError

    def cancel(self, job_id: int) -> bool:
        """Cancel a job wherever it stands; False when there is none or it has ended."""
        raise NotImplementedError

    def rotate(self, *, lock_timeout: timedelta = LOCK_TIMEOUT) -> RotateOutcome:
        """Open the next empty slot and seal the current one."""
        from parkkeeper.queue import ring

        return ring.rotate(self.connection, self.namespace, lock_timeout=lock_timeout)

    def prune_oldest(
        self,
        failed_retention: timedelta | None = None,
        *,
        carry_to: str | None = None,
        dry_run: bool = False,
        max_pruned_failed: int | None = None,
        lock_timeout: timedelta = LOCK_TIMEOUT,
    ) -> PruneOutcome:
        """Reclaim the oldest slot that can be, carrying what is still retryable."""
        from parkkeeper.queue import prune

        return prune.prune_oldest(
            self.connection,
            self.namespace,
            failed_retention,
            carry_to=carry_to,
            dry_run=dry_run,
            max_pruned_failed=max_pruned_failed,
            lock_timeout=lock_timeout,
        )

    def queue_counts(self, queue: str) -> QueueCounts:
        """Count the jobs of a queue, exactly and in one snapshot."""
        from parkkeeper.queue import counts

        return counts.queue_counts(self.connection, self.namespace, queue)

    def retry_failed_by_queue(
        self,
        queue: str,
        *,
        finalized_from: datetime | None = None,
        finalized_before: datetime | None = None,
        limit: int | None = None,
    ) -> RetryFailedOutcome:
        """Put the failed jobs of a queue back, as new."""
        from parkkeeper.queue import retry

        return retry.retry_failed_by_queue(
            self.connection,
            self.namespace,
            queue,
            finalized_from=finalized_from,
            finalized_before=finalized_before,
            limit=limit,
        )

    def retry_failed_by_kind(
        self,
        kind: str,
        *,
        finalized_from: datetime | None = None,
        finalized_before: datetime | None = None,
        limit: int | None = None,
    ) -> RetryFailedOutcome:
        """Put the failed jobs of a kind back, as new, whatever their queue."""
        from parkkeeper.queue import retry

        return retry.retry_failed_by_kind(
            self.connection,
            self.namespace,
            kind,
            finalized_from=finalized_from,
            finalized_before=finalized_before,
            limit=limit,
        )

    def set_queue(self, queue: str, *, failed_retention: timedelta | None = None) -> None:
        """Create the queue's settings or change them; None means what the namespace says."""
        from parkkeeper.queue import settings

        settings.set_queue(self.connection, self.namespace, queue, failed_retention=failed_retention)

    def rebuild_terminal_counters(self) -> None:
        """Count all states anew from the rows."""
        from parkkeeper.queue import counts

        counts.rebuild_terminal_counters(self.connection, self.namespace)
