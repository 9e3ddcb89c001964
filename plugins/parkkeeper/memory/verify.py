"""Asking the rows of a memory namespace whether what is promised of them is true."""

from __future__ import annotations

from parkkeeper import invariants
from parkkeeper.database import retried, statements
from parkkeeper.invariants import EXAMPLES, Broken, Snapshot
from parkkeeper.memory.session import Session

_SQL = statements("memory/verify")
_NUMBERS = statements("memory/reading")


def broken_invariants(session: Session) -> list[Broken]:
    """Return which invariants do not hold; none should.

    It reads every turn, in one snapshot, writes nothing, and nobody waits for it. Each question is bounded by the
    session's ``statement_timeout``.

    Raises
    ------
    TransactionOpen
        The caller has a transaction open.
    UnknownNamespace
        The namespace has no memory.
    """

    def look() -> list[Broken]:
        with invariants.snapshot(session.connection, session.namespace, "memory", _SQL) as seen:
            return [*seen.all_broken(_SQL), *_numbers(session, seen)]

    return retried(session.connection, look)


def _numbers(session: Session, seen: Snapshot) -> list[Broken]:
    """Compare the watermark and the counts that are kept with the rows."""
    rows = seen.cursor.execute(_NUMBERS.render("miscounts", session.namespace), {}).fetchall()
    examples = tuple(
        f"{name} of scope {scope}: {kept}, by the rows {counted}"
        for scope, name, kept, counted in rows[:EXAMPLES]
    )
    return [Broken("memory", "watermark_is_true", len(rows), examples)] if rows else []
