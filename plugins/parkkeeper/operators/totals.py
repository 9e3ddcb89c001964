"""Totals of a namespace that operators report beside what they did."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import dict_row

from parkkeeper.database import statements
from parkkeeper.namespace import Namespace

_SQL = statements("figures")


def totals(connection: psycopg.Connection[Any], namespace: Namespace, name: str) -> dict[str, int]:
    """Return the one row of a statement of ``figures.sql``, as it is once nothing that was waited for holds it up."""
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(_SQL.render("read_committed", namespace))
        row = cursor.execute(_SQL.render(name, namespace)).fetchone()
    assert row is not None
    return row
