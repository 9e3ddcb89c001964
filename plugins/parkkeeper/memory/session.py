"""What surrounds every statement of the memory namespace: errors that carry no value of any row or parameter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from parkkeeper.database import Statements, bring_to_rest, in_transaction, retried, without_rows
from parkkeeper.namespace import Namespace


class Session:
    """One connection and one namespace; runs named statements, whose rows are named tuples."""

    def __init__(self, connection: psycopg.Connection[Any], namespace: Namespace) -> None:
        self.connection = connection
        self.namespace = namespace

    def execute(
        self, statements: Statements, name: str, values: dict[str, Any], *, prepare: bool | None = None
    ) -> psycopg.Cursor[Any]:
        """Run statement `name`; `prepare` False keeps its plan from being made for any other values.

        Outside a transaction it is one of its own, so a lock that is not had in time is asked for again here.
        """
        cursor = self.connection.cursor(row_factory=namedtuple_row)
        statement = statements.render(name, self.namespace)
        return retried(self.connection, lambda: cursor.execute(statement, values, prepare=prepare))

    def execute_each(self, statements: Statements, name: str, values: Sequence[dict[str, Any]]) -> None:
        """Run statement `name` once for each of `values`, in one transaction and without waiting in between."""
        if len(values) == 1:
            self.execute(statements, name, values[0])
        elif values:
            self.connection.cursor().executemany(statements.render(name, self.namespace), values)

    @contextmanager
    def action(self, name: str) -> Iterator[None]:
        """Let no error of the database out that could print a row, a key or a parameter, and no session busy.

        What an interrupt cuts short is ended and undone, unless it is part of a transaction of the caller's.

        Raises
        ------
        UnknownNamespace
            The namespace lacks the family's tables.
        psycopg.Error
            Of the class that Postgres's error had, with its sqlstate and the name of the constraint, and without
            detail and context.
        InvalidArgument
            The connection's ``client_encoding`` cannot carry the text.
        """
        own = self.connection.autocommit and not in_transaction(self.connection)
        try:
            with without_rows(self.connection, self.namespace, "memory", name):
                yield
        except BaseException:
            if own:
                bring_to_rest(self.connection)
            raise
