"""What a prune would do, by queue and kind: to be read before it does. See ``docs/explanation/ring.md``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row

from parkkeeper.database import retried, statements, without_rows
from parkkeeper.namespace import Namespace
from parkkeeper.queue import ring as rings
from parkkeeper.queue.carry import require_whole
from parkkeeper.queue.outcomes import PruneOutcome
from parkkeeper.queue.prune import checked_terms, prune_oldest

_SQL = statements("queue/plan")

#: No row stands in it.
_NO_UNIT = -1000


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """What would become of the terminal rows of one queue and kind.

    Attributes
    ----------
    carried_failed_rows
        Failed rows of the unit that are inside the retention: they would be moved, and stay retryable.
    pruned_failed
        Failed rows of the unit that are past it: they would be dropped.
    pruned_completed
        Other terminal rows of the unit: they would be dropped.
    kept_failed_rows
        Failed rows that stand elsewhere, in other slots or floor segments: this prune leaves them where they are.
    """

    queue: str
    kind: str
    carried_failed_rows: int
    pruned_failed: int
    pruned_completed: int
    kept_failed_rows: int


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What the next ``prune_oldest`` would do.

    Attributes
    ----------
    outcome
        What it would return, without the times. The figures are the sums of `by_kind`.
    by_kind
        In the order of queue and kind. Of an outcome other than ``pruned`` it has kept rows only.
    """

    outcome: PruneOutcome
    by_kind: list[PlannedRows]


def plan_prune(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    failed_retention: timedelta | int | None = None,
    *,
    max_pruned_failed: int | None = None,
    lock_timeout: timedelta = rings.LOCK_TIMEOUT,
    wait_for_snapshots: bool = False,
) -> PrunePlan:
    """Return what the next prune of the queue ring would carry, drop and keep, by queue and kind.

    It neither writes nor takes a lock that anybody could feel. Which unit would be pruned is found first; its rows
    are then counted in one snapshot together with those that stay.

    Parameters
    ----------
    failed_retention, max_pruned_failed, lock_timeout, wait_for_snapshots
        As for :func:`parkkeeper.queue.prune.prune_oldest`.

    Raises
    ------
    PruneRefused
        `max_pruned_failed` would be passed for a unit and no other could be pruned.
    TransactionOpen
        The caller has a transaction open.
    InvalidArgument
        An argument is out of range.
    UnknownNamespace
        The namespace has no queue.
    """
    outcome = prune_oldest(
        connection,
        namespace,
        failed_retention,
        dry_run=True,
        max_pruned_failed=max_pruned_failed,
        lock_timeout=lock_timeout,
        wait_for_snapshots=wait_for_snapshots,
    )
    terms = checked_terms(connection, namespace, failed_retention)
    unit = outcome.slot if outcome.outcome == "pruned" else None
    statement = _SQL.render("by_kind", namespace, slot=_NO_UNIT if unit is None else unit)
    with (
        without_rows(connection, namespace, "queue", "prune_plan"),
        connection.cursor(row_factory=class_row(PlannedRows)) as cursor,
    ):

        def look() -> list[PlannedRows]:
            with connection.transaction():
                require_whole(connection, namespace)
                return cursor.execute(statement, terms.values).fetchall()

        by_kind = retried(connection, look)
    return PrunePlan(
        replace(
            outcome,
            carried_failed_rows=sum(row.carried_failed_rows for row in by_kind),
            pruned_failed=sum(row.pruned_failed for row in by_kind),
            pruned_completed=sum(row.pruned_completed for row in by_kind),
        ),
        by_kind,
    )
