"""What is going to pass the failed-retention floor: to be seen before the loss, not read of after it.

See ``docs/adr/0001-failed-retention-floor.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row

from parkkeeper.database import retried, statements, without_rows
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace
from parkkeeper.queue.carry import require_whole
from parkkeeper.queue.counts import queue_counts
from parkkeeper.queue.settings import MAX_FAILED_RETENTION, namespace_settings

_SQL = statements("queue/expiring")


@dataclass(frozen=True, slots=True)
class Expiring:
    """Failed jobs of one queue and kind that pass the floor within the time that was asked for.

    Attributes
    ----------
    jobs
        How many they are; they can all be retried now.
    past
        Those of them that are past the floor already: the next prune of their unit drops and counts them.
    first_expires_at, last_expires_at
        When the first and the last of them pass it, by the retention that their queue has now.
    """

    queue: str
    kind: str
    jobs: int
    past: int
    first_expires_at: datetime
    last_expires_at: datetime


def expiring(
    connection: psycopg.Connection[Any], namespace: Namespace, within: timedelta, *, queue: str | None = None
) -> list[Expiring]:
    """Return what passes the floor within a time from now, by queue and kind, the first to pass it in front.

    A failed job stays retryable until a prune drops it, which is never before the time that is given here, unless the
    prune itself is told of a shorter retention.

    Parameters
    ----------
    within
        From zero (what is past it already) to 35 days.
    queue
        Only this queue; None: all.

    Raises
    ------
    InvalidArgument
        `within` is out of range.
    UnknownQueue
        `queue` never had a job and has no settings.
    """
    if not isinstance(within, timedelta) or not timedelta(0) <= within <= MAX_FAILED_RETENTION:
        raise InvalidArgument(
            f"within {within!r} is refused: a timedelta from 0 to {MAX_FAILED_RETENTION.days} days"
        )
    if queue is not None:
        queue_counts(connection, namespace, queue)
    retention = namespace_settings(connection, namespace).failed_retention_seconds
    values = {"within": within, "queue": queue, "retention": retention}
    with (
        without_rows(connection, namespace, "queue", "expiring"),
        connection.cursor(row_factory=class_row(Expiring)) as cursor,
    ):

        def look() -> list[Expiring]:
            with connection.transaction():
                require_whole(connection, namespace)
                return cursor.execute(_SQL.render("expiring", namespace), values).fetchall()

        return retried(connection, look)
