"""Listing the jobs of one state for people, without what they carry."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from parkkeeper.database import known_namespace, statements
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace
from parkkeeper.queue.counts import queue_counts

_SQL = statements("queue/jobs")

#: Which statement lists a state. Waiting and running jobs are counted, not listed.
STATES = {
    "failed": "terminal",
    "completed": "terminal",
    "cancelled": "terminal",
    "scheduled": "deferred",
    "retryable": "deferred",
}


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One job, without its args, its unique key and the text of its error, which are the application's.

    `attempt` counts claims. `attempted_at` is None for a job that was never claimed, `finalized_at` for one that has
    not ended.
    """

    job_id: int
    queue: str
    kind: str
    state: str
    priority: int
    attempt: int
    max_attempts: int
    created_at: datetime
    run_at: datetime
    attempted_at: datetime | None
    finalized_at: datetime | None


def list_jobs(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    state: str,
    *,
    queue: str | None = None,
    limit: int = 100,
) -> list[ListedJob]:
    """Return jobs in `state`, of one queue or of all: ended ones newest first, deferred ones by when they are due.

    Raises
    ------
    InvalidArgument
        `state` is none that is listed, or `limit` is below 1.
    UnknownQueue
        `queue` never had a job and has no settings.
    """
    if state not in STATES:
        raise InvalidArgument(f"state {state!r} is refused: one of {', '.join(STATES)}")
    if limit < 1:
        raise InvalidArgument(f"limit {limit} is refused: at least 1")
    if queue is not None:
        queue_counts(connection, namespace, queue)
    with known_namespace(namespace, "queue"), connection.cursor(row_factory=class_row(ListedJob)) as cursor:
        values = {"state": state, "queue": queue, "limit": limit}
        return cursor.execute(_SQL.render(STATES[state], namespace), values).fetchall()
