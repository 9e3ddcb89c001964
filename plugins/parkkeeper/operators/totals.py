"""Totals of a namespace that operators report beside what they did."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import dict_row

from parkkeeper.database import Statements, statements
from parkkeeper.namespace import Namespace

_FIGURES = statements("figures")


def totals(
    connection: psycopg.Connection[Any], namespace: Namespace, name: str, sql: Statements = _FIGURES
) -> dict[str, Any]:
    """Return the one row of a statement, as it is once nothing that was waited for holds it up."""
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(_FIGURES.render("read_committed", namespace))
        row = cursor.execute(sql.render(name, namespace)).fetchone()
    assert row is not None
    return row
