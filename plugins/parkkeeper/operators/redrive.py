"""Put back what failed for good, while it can still be tried again: failed jobs of a queue, and parked turns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import psycopg

from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.parking import check_classes
from parkkeeper.namespace import Namespace
from parkkeeper.operators import arguments
from parkkeeper.operators.base import Figures, ParkkeeperOperator, Work
from parkkeeper.operators.totals import totals
from parkkeeper.queue import QueueStorage
from parkkeeper.queue.outcomes import RetryFailedOutcome


class RetryFailedOperator(ParkkeeperOperator):
    """Put failed jobs back as if they were new: those of a queue, of a kind, of a window, or the ones that are named.

    Give one of `job_queue`, `kind` and `job_ids`, or a bound of the window alone, which then means every queue. A
    window goes by when a job failed, so that a backfill may hand over its data interval.

    `outcome` is ``retried`` if any job was put back, ``none_retried`` if there were some and none could be, ``noop``
    if there were none; of a dry run ``matched`` or ``noop``. Further figures: `matched`, `retried`, `conflicts` (held
    back by another job's unique key), `raced` (gone when their turn came), `failed_total`, `pruned_failed_total`.

    Parameters
    ----------
    job_queue
        Only this queue. (An operator's `queue` is the executor's.)
    kind
        Only this kind, in whatever queue.
    job_ids
        Only these jobs: a list, or its form in JSON. Nothing else may be given beside it.
    finalized_from, finalized_before
        Only jobs that failed in this window, the second bound exclusive: times with a zone, or their form in ISO 8601.
    limit
        At most so many, those that failed first in front; None: all.
    dry_run
        Put nothing back and count what would be tried.
    """

    template_fields: Sequence[str] = (
        *ParkkeeperOperator.template_fields,
        *("job_queue", "kind", "job_ids", "finalized_from", "finalized_before", "limit", "is_dry_run"),
    )
    template_fields_renderers = {"job_ids": "json"}  # noqa: RUF012
    outcomes = ("retried", "none_retried", "matched", "noop")
    requires = "queue"

    def __init__(
        self,
        *,
        job_queue: str | None = None,
        kind: str | None = None,
        job_ids: Collection[int] | str | None = None,
        finalized_from: datetime | str | None = None,
        finalized_before: datetime | str | None = None,
        limit: int | str | None = None,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # Not self.queue: that is the executor's, of every operator.
        self.job_queue, self.kind, self.job_ids = job_queue, kind, job_ids
        self.finalized_from, self.finalized_before = finalized_from, finalized_before
        self.limit = limit
        # Not self.dry_run: that is a method of every operator.
        self.is_dry_run = dry_run

    def prepare(self, namespace: Namespace) -> Work:
        """Validate the arguments and return the redrive."""
        queue = arguments.optional_name("job_queue", self.job_queue)
        kind = arguments.optional_name("kind", self.kind)
        job_ids = arguments.optional_ids("job_ids", self.job_ids)
        since, before = arguments.window(
            "finalized_from", self.finalized_from, "finalized_before", self.finalized_before
        )
        options: dict[str, Any] = {
            "limit": arguments.optional_whole("limit", self.limit, 1),
            "dry_run": arguments.flag("dry_run", self.is_dry_run),
        }
        bounds: dict[str, Any] = {"finalized_from": since, "finalized_before": before}
        chosen = [value for value in (queue, kind, job_ids) if value is not None]
        if len(chosen) > 1:
            raise InvalidArgument("give one of job_queue, kind and job_ids")
        if not chosen and since is None and before is None:
            raise InvalidArgument("give job_queue, kind, job_ids, finalized_from or finalized_before")
        if job_ids is not None and any(value is not None for value in (since, before, options["limit"])):
            raise InvalidArgument("job_ids says which jobs, alone: no window and no limit beside it")

        def retry(storage: QueueStorage) -> RetryFailedOutcome:
            if job_ids is not None:
                return storage.retry_failed(job_ids, dry_run=options["dry_run"])
            if queue is not None:
                return storage.retry_failed_by_queue(queue, **bounds, **options)
            if kind is not None:
                return storage.retry_failed_by_kind(kind, **bounds, **options)
            return storage.retry_failed_by_window(since, before, **options)

        def work(connection: psycopg.Connection[Any]) -> Figures:
            done = retry(QueueStorage(connection, namespace))
            if not done.matched:
                outcome = "noop"
            elif options["dry_run"]:
                outcome = "matched"
            else:
                outcome = "retried" if done.retried else "none_retried"
            return {
                "outcome": outcome,
                "matched": done.matched,
                "retried": len(done.retried),
                "conflicts": len(done.conflicts),
                "raced": done.raced,
                **totals(connection, namespace, "failed_totals"),
            }

        return work


class UnparkOperator(ParkkeeperOperator):
    """Put parked turns back into the backlog, as if they had never been tried; all conditions must hold.

    Without any condition that is every parked turn of the namespace.

    `outcome` is ``unparked`` if any turn was, else ``noop``; with `dry_run` if any would be. Further figures:
    `unparked`, `parked_total`, `backlog`.

    Parameters
    ----------
    scope
        Only turns of this scope.
    error_class
        Only turns that were parked for this class of failure.
    older_than
        Only turns that were parked at least this long ago: a timedelta or seconds.
    limit
        How many turns at most, the longest parked first; None: all.
    max_park_count
        A turn that was parked more often than this stays parked; None: however often.
    dry_run
        Write nothing; `unparked` says how many turns would be.
    """

    template_fields: Sequence[str] = (
        *ParkkeeperOperator.template_fields,
        *("scope", "error_class", "older_than", "limit", "max_park_count", "is_dry_run"),
    )
    outcomes = ("unparked", "noop")
    requires = "memory"

    def __init__(
        self,
        *,
        scope: str | None = None,
        error_class: str | None = None,
        older_than: timedelta | float | str | None = None,
        limit: int | str | None = None,
        max_park_count: int | str | None = None,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.scope, self.error_class, self.older_than = scope, error_class, older_than
        self.limit, self.max_park_count = limit, max_park_count
        # Not self.dry_run: that is a method of every operator.
        self.is_dry_run = dry_run

    def prepare(self, namespace: Namespace) -> Work:
        """Validate the arguments and return the unparking."""
        error_class = arguments.optional_text(self.error_class)
        if error_class is not None:
            check_classes([error_class])
        which: dict[str, Any] = {
            "scope": arguments.optional_name("scope", self.scope),
            "error_class": error_class,
            "older_than": arguments.optional_duration("older_than", self.older_than),
            "limit": arguments.optional_whole("limit", self.limit, 1),
            "max_park_count": arguments.optional_whole("max_park_count", self.max_park_count, 1),
            "dry_run": arguments.flag("dry_run", self.is_dry_run),
        }

        def work(connection: psycopg.Connection[Any]) -> Figures:
            unparked = MemoryStore(connection, namespace).unpark(**which)
            now = totals(connection, namespace, "memory_totals")
            return {
                "outcome": "unparked" if unparked else "noop",
                "unparked": unparked,
                "parked_total": now["parked"],
                "backlog": now["backlog"],
            }

        return work
