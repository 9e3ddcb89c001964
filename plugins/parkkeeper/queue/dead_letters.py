"""Dead letters: jobs that failed for good, of queues that keep them apart. See ``docs/explanation/queue.md``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row

from parkkeeper.database import refuse_open_transaction, statements, without_rows
from parkkeeper.names import checked_name
from parkkeeper.namespace import Namespace
from parkkeeper.queue.arguments import job_ids, moment, whole_number
from parkkeeper.queue.calls import call
from parkkeeper.queue.counts import queue_counts
from parkkeeper.queue.outcomes import PurgeOutcome, RetryDeadLettersOutcome
from parkkeeper.queue.settings import dead_letter_seconds

#: Letters that one transaction puts back, and that one purges.
CHUNK, PURGED = 500, 1_000

_SQL = statements("queue/dead_letters")
_COUNT = range(1, 2**63)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter, without its args, its unique key and the text of its error, which are the application's.

    `attempt` counts claims, the last of which began at `attempted_at`; it failed at `dead_at`.
    """

    job_id: int
    queue: str
    kind: str
    priority: int
    attempt: int
    max_attempts: int
    created_at: datetime
    attempted_at: datetime
    dead_at: datetime


def list_dead_letters(
    connection: psycopg.Connection[Any], namespace: Namespace, *, queue: str | None = None, limit: int = 100
) -> list[DeadLetter]:
    """Return dead letters, of one queue or of all, those that died last in front.

    Raises
    ------
    InvalidArgument
        `limit` is below 1.
    UnknownQueue
        `queue` never had a job and has no settings.
    """
    values = {"queue": queue, "limit": whole_number("limit", limit, _COUNT)}
    if queue is not None:
        queue_counts(connection, namespace, queue)
    with (
        without_rows(connection, namespace, "queue", "list_dead_letters"),
        connection.cursor(row_factory=class_row(DeadLetter)) as cursor,
    ):
        return cursor.execute(_SQL.render("listed", namespace), values).fetchall()


def retry_dead_letters(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    queue: str | None = None,
    *,
    kind: str | None = None,
    ids: Collection[int] | None = None,
    dead_from: datetime | None = None,
    dead_before: datetime | None = None,
    limit: int | None = None,
) -> RetryDeadLettersOutcome:
    """Put dead letters back as new jobs, those that died first in front, in chunks of 500 a transaction.

    All conditions that are given must hold; with none, all dead letters of the namespace are put back.

    Parameters
    ----------
    queue, kind
        Only letters of this queue, or kind.
    ids
        Only these jobs.
    dead_from, dead_before
        Only letters that died in this window; with a time zone, the second one exclusive. None: no bound.
    limit
        At most so many. None: all.

    Returns
    -------
    RetryDeadLettersOutcome

    Raises
    ------
    UnknownQueue
        The queue never had a job and has no settings.
    InvalidName, InvalidArgument
        Before anything is sent to the database.
    TransactionOpen
        The caller has a transaction open.
    """
    wanted = {
        "queue": None if queue is None else checked_name("queue", queue),
        "kind": None if kind is None else checked_name("kind", kind),
        "ids": None if ids is None else job_ids("ids", ids),
        "dead_from": moment("dead_from", dead_from),
        "dead_before": moment("dead_before", dead_before),
        "limit": None if limit is None else whole_number("limit", limit, _COUNT),
    }
    refuse_open_transaction(connection, "retry_dead_letters")
    if queue is not None:
        queue_counts(connection, namespace, queue)
    matching = call(connection, namespace, _SQL, "matching", wanted)
    retried: list[int] = []
    conflicts: list[int] = []
    for start in range(0, len(matching), CHUNK):
        found, dead_ats, queues = map(list, zip(*matching[start : start + CHUNK], strict=True))
        chunk = {"job_ids": found, "dead_ats": dead_ats, "queues": sorted(set(queues))}
        [(back, held)] = call(connection, namespace, _SQL, "retry", chunk)
        if back:
            call(connection, namespace, _SQL, "wake", chunk)
        retried += back
        conflicts += held
    raced = len(matching) - len(retried) - len(conflicts)
    return RetryDeadLettersOutcome(retried, len(matching), conflicts, raced)


def purge_dead_letters(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    queue: str | None = None,
    *,
    older_than: timedelta | int | None = None,
    limit: int | None = None,
) -> PurgeOutcome:
    """Delete dead letters for good, those that died first in front, in transactions of a bounded size.

    How many were is counted for ever (`purged_dead_letters` in ``queue_counts``). What another session has in hand is
    left to it. With nothing to purge, nothing is written.

    Parameters
    ----------
    queue
        Only letters of this queue; None: of all.
    older_than
        Letters that died so long ago or longer, as a timedelta or in whole seconds. None: what each queue has decided
        for its own (`dead_letter_retention`); letters of a queue that has not are left.
    limit
        At most so many. None: all.

    Returns
    -------
    PurgeOutcome

    Raises
    ------
    UnknownQueue
        The queue never had a job and has no settings.
    InvalidName, InvalidArgument
        Before anything is sent to the database.
    TransactionOpen
        The caller has a transaction open.
    """
    wanted = {
        "queue": None if queue is None else checked_name("queue", queue),
        "older_seconds": None if older_than is None else dead_letter_seconds("older_than", older_than),
    }
    left = _COUNT.stop if limit is None else whole_number("limit", limit, _COUNT)
    refuse_open_transaction(connection, "purge_dead_letters")
    if queue is not None:
        queue_counts(connection, namespace, queue)
    purged = 0
    for name, seconds in call(connection, namespace, _SQL, "purgeable", wanted):
        # A transaction locks the rollup of one queue.
        while left > 0:
            batch = {"queue": name, "older_seconds": seconds, "limit": min(left, PURGED)}
            [(gone,)] = call(connection, namespace, _SQL, "purge", batch)
            purged, left = purged + gone, left - gone
            if gone < batch["limit"]:
                break
    return PurgeOutcome(purged)
