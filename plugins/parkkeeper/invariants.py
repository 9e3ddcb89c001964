"""What is promised of the rows of a namespace, asked of the rows themselves.

Each family has its questions in ``include/sql``; an answer is what breaks a promise. See
``docs/how-to/verify-a-namespace.md`` for the list of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from parkkeeper.database import Statements, statements, transaction
from parkkeeper.namespace import Namespace

#: How many examples of one broken invariant are told.
EXAMPLES = 5
#: What a family asks before it asks anything: locks, without which the snapshot could miss rows.
HOLD = "hold_prunes"

_SQL = statements("invariants")
_COUNTED = (
    b"SELECT invariant, count(*), (array_agg(example ORDER BY example))[:%s] FROM ("
    b"%s"
    b") AS broken GROUP BY invariant ORDER BY invariant"
)


@dataclass(frozen=True, slots=True)
class Broken:
    """An invariant that does not hold; there should be none.

    Attributes
    ----------
    family
        ``queue`` or ``memory``.
    invariant
        Its name, as ``docs/how-to/verify-a-namespace.md`` lists them.
    violations
        How many there are.
    examples
        Five of them at most: ids, slots, lanes, scopes and figures, and never what a job or a turn carries.
    """

    family: str
    invariant: str
    violations: int
    examples: tuple[str, ...]


class Snapshot:
    """One moment of a namespace, that cannot be written to."""

    def __init__(self, cursor: psycopg.Cursor[Any], namespace: Namespace, family: str) -> None:
        self.cursor = cursor
        self._namespace = namespace
        self._family = family

    def broken(self, questions: Statements, names: Collection[str]) -> list[Broken]:
        """Return which invariants the answers to `names` of `questions` break."""
        found = []
        for name in names:
            text = questions.render(name, self._namespace)
            statement = _COUNTED % (str(EXAMPLES).encode(), text)
            rows = self.cursor.execute(statement, {"schema": self._namespace.name}).fetchall()
            found += [
                Broken(self._family, invariant, violations, tuple(examples))
                for invariant, violations, examples in rows
            ]
        return found

    def all_broken(self, questions: Statements) -> list[Broken]:
        """Return what breaks any invariant of a family, and what stands outside of the namespace."""
        return [
            *self.broken(questions, [name for name in questions if name != HOLD]),
            *self.broken(_SQL, ["object_outside"]),
        ]


@contextmanager
def snapshot(
    connection: psycopg.Connection[Any], namespace: Namespace, family: str, questions: Statements
) -> Iterator[Snapshot]:
    """Open a transaction that sees one moment and cannot write; prunes wait for its end."""
    with transaction(connection, "verify"), connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(_SQL.render("one_snapshot", namespace))
        if HOLD in questions:
            cursor.execute(questions.render(HOLD, namespace))
        cursor.execute(_SQL.render("configure", namespace))
        yield Snapshot(cursor, namespace, family)
