"""Runs of maintenance that are on record without having been run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from parkkeeper import maintenance
from parkkeeper.namespace import Namespace


def record(
    connection: psycopg.Connection, namespace: str, action: str, outcome: str, ago: timedelta, **figures: Any
) -> None:
    """Put a run on record that ended so long ago."""
    space = Namespace(namespace)
    now = maintenance.database_time(connection)
    run = maintenance.AirflowRun("some_dag", "some_run", "task")
    maintenance.record_run(connection, space, action, outcome, started_at=now, figures=figures, run=run)
    connection.execute(
        sql.SQL(
            "UPDATE {0} SET started_at = started_at - %(ago)s, ended_at = ended_at - %(ago)s"
            " WHERE maintenance_run_id = (SELECT max(maintenance_run_id) FROM {0})"
        ).format(sql.Identifier(namespace, "maintenance_run")),
        {"ago": ago},
    )
