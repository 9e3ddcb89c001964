"""Put failed jobs back as if they were new, in chunks, and account for each one that matched.

See ``docs/adr/0001-failed-retention-floor.md``: what was dropped past its retention is told beside what was retried.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from parkkeeper.database import retried, statements, transaction, without_rows
from parkkeeper.errors import InvalidArgument
from parkkeeper.names import checked_name
from parkkeeper.namespace import Namespace
from parkkeeper.queue import arguments, counts, ring
from parkkeeper.queue.errors import ConservationBroken
from parkkeeper.queue.outcomes import RetryFailedOutcome

#: Jobs in one transaction: so long do pruners of the ring wait for it.
CHUNK = 500

_ACTION = "retry_failed"
_SQL = statements("queue/retry")


def retry_failed_by_queue(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    queue: str,
    *,
    finalized_from: datetime | None = None,
    finalized_before: datetime | None = None,
    limit: int | None = None,
    dry_run: bool = False,
) -> RetryFailedOutcome:
    """Put the failed jobs of `queue` back, those that failed first in front.

    Parameters
    ----------
    finalized_from, finalized_before
        Only jobs that failed in this window; with a time zone, the second one exclusive. None: no bound.
    limit
        At most so many jobs. None: all.
    dry_run
        Put nothing back: `matched` says how many there are.

    Returns
    -------
    RetryFailedOutcome
        With `pruned_failed_count`, how many failed jobs of the queue can never be retried again.

    Raises
    ------
    UnknownQueue
        The queue never had a job and has no settings.
    InvalidName, InvalidArgument
        Before anything is sent to the database.
    TransactionOpen
        The caller has a transaction open.
    UnknownNamespace
        The namespace has no queue family.
    """
    checked_name("queue", queue)
    wanted = _filter(queue, None, finalized_from, finalized_before, limit)
    return _retry(connection, namespace, wanted, dry_run)


def retry_failed_by_kind(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    kind: str,
    *,
    finalized_from: datetime | None = None,
    finalized_before: datetime | None = None,
    limit: int | None = None,
    dry_run: bool = False,
) -> RetryFailedOutcome:
    """Put the failed jobs of `kind` back, whatever their queue; otherwise as :func:`retry_failed_by_queue`.

    Returns
    -------
    RetryFailedOutcome
        `pruned_failed_count` is None: what was dropped is counted by queue, and no number of it belongs to a kind.
    """
    checked_name("kind", kind)
    wanted = _filter(None, kind, finalized_from, finalized_before, limit)
    return _retry(connection, namespace, wanted, dry_run)


def retry_failed_by_window(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    finalized_from: datetime | None,
    finalized_before: datetime | None,
    *,
    limit: int | None = None,
    dry_run: bool = False,
) -> RetryFailedOutcome:
    """Put back what failed in a window, whatever the queue and the kind; otherwise as :func:`retry_failed_by_queue`.

    Returns
    -------
    RetryFailedOutcome
        `pruned_failed_count` is None: what was dropped is counted by queue, not by when it had failed.

    Raises
    ------
    InvalidArgument
        Also when both bounds are None: every failed job of a namespace is not put back by an omission.
    """
    if finalized_from is None and finalized_before is None:
        raise InvalidArgument("finalized_from and finalized_before are both None: give one of them at least")
    wanted = _filter(None, None, finalized_from, finalized_before, limit)
    return _retry(connection, namespace, wanted, dry_run)


def retry_failed(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    job_ids: Collection[int],
    *,
    dry_run: bool = False,
) -> RetryFailedOutcome:
    """Put those of the jobs back that are failed; otherwise as :func:`retry_failed_by_queue`.

    The cost grows with the failed jobs in the ring, not with its history. Dead letters have a retry of their own.

    Returns
    -------
    RetryFailedOutcome
        `matched` counts those of the ids that were found failed; the others are in no figure. `pruned_failed_count` is
        None: the ids belong to no one queue.
    """
    wanted = _filter() | {"job_ids": arguments.job_ids("job_ids", job_ids)}
    return _retry(connection, namespace, wanted, dry_run)


def _filter(
    queue: str | None = None,
    kind: str | None = None,
    finalized_from: datetime | None = None,
    finalized_before: datetime | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    for field, value in (("finalized_from", finalized_from), ("finalized_before", finalized_before)):
        if value is not None and (not isinstance(value, datetime) or value.utcoffset() is None):
            raise InvalidArgument(f"{field} {value!r} is refused: a datetime with a time zone")
    if limit is not None and (type(limit) is not int or not 1 <= limit < 2**63):
        raise InvalidArgument(f"limit {limit!r} is refused: a whole number, 1 or more, or None for all")
    return {
        "queue": queue,
        "kind": kind,
        "finalized_from": finalized_from,
        "finalized_before": finalized_before,
        "limit": limit,
        "job_ids": None,
    }


def _retry(
    connection: psycopg.Connection[Any], namespace: Namespace, wanted: dict[str, Any], dry_run: bool
) -> RetryFailedOutcome:
    with without_rows(connection, namespace, "queue", _ACTION):
        matching = retried(connection, partial(_scan, connection, namespace, wanted))
        taken: list[Any] = []
        wanted_back = [] if dry_run else matching
        for start in range(0, len(wanted_back), CHUNK):
            chunk = wanted_back[start : start + CHUNK]
            taken += retried(connection, partial(_retry_chunk, connection, namespace, chunk))
        return RetryFailedOutcome(
            retried=[row.job_id for row in taken if row.retried],
            matched=len(matching),
            pruned_failed_count=(
                counts.queue_counts(connection, namespace, wanted["queue"]).pruned_failed
                if wanted["queue"] is not None
                else None
            ),
            conflicts=[row.job_id for row in taken if not row.retried],
            raced=len(wanted_back) - len(taken),
        )


def _scan(connection: psycopg.Connection[Any], namespace: Namespace, wanted: dict[str, Any]) -> list[Any]:
    with transaction(connection, _ACTION), connection.cursor(row_factory=namedtuple_row) as cursor:
        if wanted["job_ids"] is not None:
            # Nothing but the index of failed rows: no index has ids of ended jobs, and history is long.
            cursor.execute(_SQL.render("probe_by_key", namespace))
        return cursor.execute(_SQL.render("matching", namespace), wanted).fetchall()


def _retry_chunk(
    connection: psycopg.Connection[Any], namespace: Namespace, chunk: Sequence[Any]
) -> list[Any]:
    """Put back what is left of `chunk`; return a row for each job that was found, retried or in conflict."""
    timeout = ring.checked_lock_timeout(ring.MAX_LOCK_TIMEOUT)
    with ring.maintenance(connection, namespace, _ACTION, timeout) as cursor:
        cursor.execute(_SQL.render("hold_pruners", namespace))
        cursor.execute(_SQL.render("probe_by_key", namespace))
        taken = _take(cursor, namespace, chunk)
        found = {row.lane_seq for row in taken}
        if missing := [row for row in chunk if row.lane_seq not in found]:
            # A prune may have carried them since they were scanned. None can now.
            keys = {
                "lane_ids": [row.lane_id for row in missing],
                "lane_seqs": [row.lane_seq for row in missing],
            }
            moved = cursor.execute(_SQL.render("locate", namespace), keys).fetchall()
            taken += _take(cursor, namespace, moved)
        if any(row.retried for row in taken):
            queues = sorted({row.queue for row in chunk})
            cursor.execute(_SQL.render("wake", namespace), {"queues": queues})
    return taken


def _take(cursor: psycopg.Cursor[Any], namespace: Namespace, rows: Sequence[Any]) -> list[Any]:
    keys = {
        "slots": [row.ready_slot for row in rows],
        "lane_ids": [row.lane_id for row in rows],
        "lane_seqs": [row.lane_seq for row in rows],
    }
    try:
        return cursor.execute(_SQL.render("retry", namespace), keys).fetchall()
    except psycopg.errors.IntegrityError as error:
        # The server's message may show the row, and a row holds a customer's words.
        raise ConservationBroken(
            f"namespace {namespace}: putting failed jobs back broke constraint {error.diag.constraint_name} "
            f"({error.sqlstate}): nothing of this chunk was changed"
        ) from None
