"""Listing the jobs of one state for people, without what they carry."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import class_row

from parkkeeper.database import statements, without_rows
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace
from parkkeeper.queue.arguments import whole_number
from parkkeeper.queue.counts import queue_counts
from parkkeeper.queue.status import ListedJob, open_jobs

_SQL = statements("queue/jobs")

#: Which statement lists a state.
STATES = {
    "failed": "terminal",
    "completed": "terminal",
    "cancelled": "terminal",
    "scheduled": "deferred",
    "retryable": "deferred",
    "available": "waiting",
    "running": "running",
}


def list_jobs(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    state: str,
    *,
    queue: str | None = None,
    limit: int = 100,
) -> list[ListedJob]:
    """Return jobs in `state`, of one queue or of all.

    Ended ones come newest first, deferred ones by when they are due, waiting ones by age, running ones by when they
    were claimed.

    Raises
    ------
    InvalidArgument
        `state` is none that is listed, or `limit` is below 1.
    UnknownQueue
        `queue` never had a job and has no settings.
    """
    if state not in STATES:
        raise InvalidArgument(f"state {state!r} is refused: one of {', '.join(STATES)}")
    whole_number("limit", limit, range(1, 2**63))
    if queue is not None:
        queue_counts(connection, namespace, queue)
    if state in ("available", "running"):
        with without_rows(connection, namespace, "queue", "list_jobs"):
            return open_jobs(connection, namespace, STATES[state], queue, limit)
    with (
        without_rows(connection, namespace, "queue", "list_jobs"),
        connection.cursor(row_factory=class_row(ListedJob)) as cursor,
    ):
        values = {"state": state, "queue": queue, "limit": limit}
        return cursor.execute(_SQL.render(STATES[state], namespace), values).fetchall()
