"""``parkkeeper queue expiring`` and ``retry-failed``: failed jobs before they are lost, and put back."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from parkkeeper.cli.options import Dsn, Json, NamespaceName, OnlyQueue, ready
from parkkeeper.cli.output import emit
from parkkeeper.cli.parsing import duration, moment, numbers
from parkkeeper.errors import InvalidArgument
from parkkeeper.queue import QueueStorage
from parkkeeper.queue.outcomes import RetryFailedOutcome


def expiring(
    namespace: NamespaceName,
    within: Annotated[
        timedelta,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            show_default=False,
            help="Look so far ahead: 24h, 7d, 0 for what is past it already; at most 35d. [default: 24h]",
        ),
    ] = timedelta(hours=24),
    queue: OnlyQueue = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """List failed jobs that will pass their retention, by queue and kind, while they can still be retried.

    `past` counts those that are past it already and go with the next prune.

    Example: `parkkeeper queue expiring -n jobs --within 24h`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        found = QueueStorage(connection, space).expiring(within, queue=queue)
    emit(found, as_json=json, empty="no failed job passes its retention in that time")


def retry_failed(
    namespace: NamespaceName,
    queue: OnlyQueue = None,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Only this kind, in whatever queue.")
    ] = None,
    ids: Annotated[
        str | None, typer.Option(metavar="ID,ID,...", help="Only these jobs, in whatever queue, e.g. 7,8,9.")
    ] = None,
    finalized_from: Annotated[
        datetime | None,
        typer.Option(
            parser=moment,
            metavar="TIME",
            help="Only jobs that failed at or after this time, in ISO 8601 with a zone: 2026-01-31T12:00:00Z.",
        ),
    ] = None,
    finalized_before: Annotated[
        datetime | None,
        typer.Option(
            parser=moment,
            metavar="TIME",
            help="Only jobs that failed before this time, in ISO 8601 with a zone: 2026-01-31T12:00:00Z.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="JOBS", help="At most so many. [default: all]")] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Put failed jobs back, as new: attempts and clocks are reset. Give one of --queue, --kind and --ids.

    `raced` counts those that were gone when their turn came; `conflicts` lists those whose unique key another job
    holds now: they stay failed.

    Example: `parkkeeper queue retry-failed -n jobs -q mail --finalized-from 2026-01-31T00:00:00Z`
    """
    if [queue, kind, ids].count(None) != 2:
        raise InvalidArgument("give one of --queue, --kind and --ids")
    window: dict[str, Any] = {
        "finalized_from": finalized_from,
        "finalized_before": finalized_before,
        "limit": limit,
    }
    job_ids = numbers("--ids", ids)
    if job_ids is not None and any(value is not None for value in window.values()):
        raise InvalidArgument("--ids says which jobs, alone: no window and no limit beside it")
    with ready(dsn, namespace, "queue") as (connection, space):
        storage = QueueStorage(connection, space)
        if job_ids is not None:
            outcome = storage.retry_failed(job_ids)
        elif queue is not None:
            outcome = storage.retry_failed_by_queue(queue, **window)
        else:
            outcome = storage.retry_failed_by_kind(str(kind), **window)
    emit(outcome, as_json=json, notes=_retried(outcome))


def _retried(outcome: RetryFailedOutcome) -> list[str]:
    """Say what a mere list of ids would hide."""
    notes = []
    if outcome.matched != len(outcome.retried):
        notes.append(
            f"{outcome.matched} matched, {len(outcome.retried)} retried, {len(outcome.conflicts)} held back by another "
            f"job's unique key, {outcome.raced} raced."
        )
    if outcome.pruned_failed_count:
        notes.append(
            f"{outcome.pruned_failed_count} failed jobs of this queue were pruned past their retention "
            "and are no longer retryable."
        )
    return notes
