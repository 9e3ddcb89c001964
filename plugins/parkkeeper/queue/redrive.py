"""The half of the queue's front door that sees to what has failed: failed jobs and dead letters, put back or purged."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import psycopg

from parkkeeper.namespace import Namespace
from parkkeeper.queue import dead_letters, retry
from parkkeeper.queue.outcomes import PurgeOutcome, RetryDeadLettersOutcome, RetryFailedOutcome


class Redrive:
    """Methods of :class:`parkkeeper.queue.QueueStorage`."""

    connection: psycopg.Connection[Any]
    namespace: Namespace

    def retry_failed_by_queue(
        self,
        queue: str,
        *,
        finalized_from: datetime | None = None,
        finalized_before: datetime | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> RetryFailedOutcome:
        """Put failed jobs of a queue back, as new; see :func:`parkkeeper.queue.retry.retry_failed_by_queue`."""
        return retry.retry_failed_by_queue(
            self.connection,
            self.namespace,
            queue,
            finalized_from=finalized_from,
            finalized_before=finalized_before,
            limit=limit,
            dry_run=dry_run,
        )

    def retry_failed_by_kind(
        self,
        kind: str,
        *,
        finalized_from: datetime | None = None,
        finalized_before: datetime | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> RetryFailedOutcome:
        """Put failed jobs of a kind back, as new; see :func:`parkkeeper.queue.retry.retry_failed_by_kind`."""
        return retry.retry_failed_by_kind(
            self.connection,
            self.namespace,
            kind,
            finalized_from=finalized_from,
            finalized_before=finalized_before,
            limit=limit,
            dry_run=dry_run,
        )

    def retry_failed_by_window(
        self,
        finalized_from: datetime | None,
        finalized_before: datetime | None,
        *,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> RetryFailedOutcome:
        """Put back, as new, what failed in a window; see :func:`parkkeeper.queue.retry.retry_failed_by_window`."""
        return retry.retry_failed_by_window(
            self.connection, self.namespace, finalized_from, finalized_before, limit=limit, dry_run=dry_run
        )

    def retry_failed(self, job_ids: Collection[int], *, dry_run: bool = False) -> RetryFailedOutcome:
        """Put those of the jobs back, as new, that are failed; see :func:`parkkeeper.queue.retry.retry_failed`."""
        return retry.retry_failed(self.connection, self.namespace, job_ids, dry_run=dry_run)

    def retry_dead_letters(
        self,
        queue: str | None = None,
        *,
        kind: str | None = None,
        ids: Collection[int] | None = None,
        dead_from: datetime | None = None,
        dead_before: datetime | None = None,
        limit: int | None = None,
    ) -> RetryDeadLettersOutcome:
        """Put dead letters back, as new; see :func:`parkkeeper.queue.dead_letters.retry_dead_letters`."""
        return dead_letters.retry_dead_letters(
            self.connection,
            self.namespace,
            queue,
            kind=kind,
            ids=ids,
            dead_from=dead_from,
            dead_before=dead_before,
            limit=limit,
        )

    def purge_dead_letters(
        self,
        queue: str | None = None,
        *,
        older_than: timedelta | int | None = None,
        limit: int | None = None,
    ) -> PurgeOutcome:
        """Delete dead letters for good; see :func:`parkkeeper.queue.dead_letters.purge_dead_letters`."""
        return dead_letters.purge_dead_letters(
            self.connection, self.namespace, queue, older_than=older_than, limit=limit
        )
