"""The record of what maintenance did: a row in ``maintenance_run`` for each run that was not for nothing.

Rows older than 90 days are deleted as new ones come. See ``docs/explanation/airflow.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import scalar_row
from psycopg.types.json import Jsonb

from parkkeeper.database import statements
from parkkeeper.namespace import Namespace

_SQL = statements("maintenance")

#: Outcomes of which there is no row: nothing was to be done, and a row for each would say no more.
NOTHING_DONE = frozenset({"holds", "noop", "skipped_idle", "within_limits"})


@dataclass(frozen=True, slots=True)
class AirflowRun:
    """The task that did it; all three are None for who is no task of Airflow's."""

    dag_id: str | None = None
    dag_run_id: str | None = None
    task_id: str | None = None


def database_time(connection: psycopg.Connection[Any]) -> datetime:
    """Return what the database's clock says now; all times of the record are its own."""
    with connection.cursor(row_factory=scalar_row) as cursor:
        now: datetime = cursor.execute(_SQL.render("now", Namespace("unused"))).fetchall()[0]
    return now


def record_run(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    action: str,
    outcome: str,
    *,
    started_at: datetime,
    figures: Mapping[str, int | float | str | None],
    run: AirflowRun = AirflowRun(),
) -> None:
    """Write the row of a run that ends now, unless nothing was done, and delete a thousand old rows at most.

    Parameters
    ----------
    action
        What ran, e.g. ``prune_with_carry``; ``deadline`` with outcome ``missed`` for a run that was late.
    started_at
        By the database's clock, see :func:`database_time`.
    figures
        What it reported: numbers, names and codes, never content.
    """
    if outcome in NOTHING_DONE:
        return
    values = {
        "action": action,
        "outcome": outcome,
        "started_at": started_at,
        "figures": Jsonb({key: figure for key, figure in figures.items() if key != "outcome"}),
        "dag_id": run.dag_id,
        "dag_run_id": run.dag_run_id,
        "task_id": run.task_id,
    }
    with connection.transaction():
        connection.execute(_SQL.render("record", namespace), values)
        connection.execute(_SQL.render("forget", namespace))
