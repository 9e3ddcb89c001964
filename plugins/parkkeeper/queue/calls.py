"""How the queue's functions are called: one prepared statement, one round trip, no value in an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from parkkeeper.database import Statements, retried, without_rows
from parkkeeper.namespace import Namespace
from parkkeeper.queue.errors import IsolationRefused


def call(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    statements: Statements,
    action: str,
    values: Mapping[str, Any],
) -> list[tuple[Any, ...]]:
    """Run the statement that is called like the action: a transaction of its own, or part of the caller's.

    A deadlock or a lock timeout is tried again, a bounded number of times, unless the transaction is the caller's.

    Raises
    ------
    UnknownNamespace
        The namespace has no queue.
    IsolationRefused
        The transaction keeps one snapshot and the action cannot work with that.
    InvalidArgument
        The connection's ``client_encoding`` cannot carry a text.
    psycopg.Error
        Of the class that Postgres's error had, with sqlstate and constraint and without values.
    """
    statement = statements.render(action, namespace)

    def run() -> list[tuple[Any, ...]]:
        # The caller's own cursor and row factories are not asked.
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            return cursor.execute(statement, values, prepare=True, binary=True).fetchall()

    try:
        with without_rows(connection, namespace, "queue", action):
            return retried(connection, run)
    except psycopg.errors.InvalidTransactionState:
        raise IsolationRefused(
            f"{action} is refused in a transaction that keeps one snapshot: it has to see what others commit "
            "while it waits for them; use READ COMMITTED"
        ) from None
