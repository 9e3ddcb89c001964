"""The rings of slots: rotate, and the transaction and locks that every action on a ring begins with.

See ``docs/explanation/ring.md`` for what is promised and ``docs/explanation/lock-order.md`` for the locks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import namedtuple_row

from parkkeeper.database import advisory_key, milliseconds, statements, transaction, without_rows
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace
from parkkeeper.queue.outcomes import RotateOutcome

LOCK_TIMEOUT = timedelta(milliseconds=50)
MAX_LOCK_TIMEOUT = timedelta(seconds=5)

#: A lock that was not had: the transaction was undone whole and the action says ``blocked``.
LOCK_NOT_HAD = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

_SQL = statements("queue/ring")
_STATEMENTS = {
    "queue": _SQL,
    "lease": statements("queue/lease_ring"),
    "claim": statements("queue/claim_ring"),
}

#: The rings of a namespace: jobs and their history; leases; claims. Each turns by itself.
RINGS = tuple(_STATEMENTS)


class Ring(NamedTuple):
    """The row of a ring's state, locked."""

    current_slot: int
    generation: int
    slot_count: int


def rotate(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    *,
    ring: str = "queue",
    lock_timeout: timedelta = LOCK_TIMEOUT,
) -> RotateOutcome:
    """Open the next empty slot of a ring after the current one, which is sealed.

    Parameters
    ----------
    ring
        ``"queue"``: jobs and their history. ``"lease"``, ``"claim"``: what workers have in hand.
    lock_timeout
        How long each lock is waited for, above zero and at most 5 s.

    Returns
    -------
    RotateOutcome

    Raises
    ------
    TransactionOpen
        The caller has a transaction open.
    InvalidArgument
        `ring` is none, or `lock_timeout` is out of range.
    UnknownNamespace
        The namespace has no queue.
    """
    sql = _STATEMENTS[checked_ring(ring)]
    timeout = checked_lock_timeout(lock_timeout)
    try:
        with without_rows(connection, namespace, "queue", "rotate"):
            with maintenance(connection, namespace, "rotate", timeout) as cursor:
                look = one_row(cursor, sql.render("look", namespace))
            if not look.holds_rows or not look.has_empty:
                return RotateOutcome(
                    "skipped_busy" if look.holds_rows else "skipped_idle", look.current_slot, look.generation
                )
            # The look has read the slots' children, so its transaction is over before the ring's lock is asked for.
            with maintenance(connection, namespace, "rotate", timeout) as cursor:
                state = lock_ring(cursor, namespace, "rotate", ring)
                if state is None:
                    return RotateOutcome("blocked")
                empty = {row.slot for row in cursor.execute(sql.render("empty_slots", namespace))}
                slot = next_slot(state.current_slot, state.slot_count, empty)
                if slot is None:
                    return RotateOutcome("skipped_busy", state.current_slot, state.generation)
                opened = {"slot": slot, "generation": state.generation + 1}
                cursor.execute(sql.render("seal", namespace), {"slot": state.current_slot})
                cursor.execute(sql.render("open", namespace), opened)
                cursor.execute(sql.render("advance", namespace), opened)
    except LOCK_NOT_HAD:
        return RotateOutcome("blocked")
    return RotateOutcome("rotated", slot, state.generation + 1)


def next_slot(current: int, slot_count: int, empty: Collection[int]) -> int | None:
    """Return the first of the `empty` slots in the order of the ring after `current`; None when there is none."""
    return min(empty, key=lambda slot: (slot - current - 1) % slot_count, default=None)


def checked_ring(value: str) -> str:
    """Return the name of a ring; refuse any other."""
    if value not in RINGS:
        raise InvalidArgument(f"ring {value!r} is refused: any of {', '.join(RINGS)}")
    return value


def checked_lock_timeout(value: timedelta) -> str:
    """Return `value` in the form of Postgres's setting; refuse what would wait for ever or hold up readers too long."""
    if not isinstance(value, timedelta) or not timedelta(0) < value <= MAX_LOCK_TIMEOUT:
        raise InvalidArgument(
            f"lock_timeout {value!r} is refused: a timedelta above zero and at most "
            f"{MAX_LOCK_TIMEOUT.total_seconds():g} s, since readers queue behind what waits"
        )
    return f"{milliseconds(value)}ms"


@contextmanager
def maintenance(
    connection: psycopg.Connection[Any], namespace: Namespace, action: str, lock_timeout: str
) -> Iterator[psycopg.Cursor[Any]]:
    """Open the transaction of `action`, READ COMMITTED and with its lock timeout set before any lock is asked for."""
    with transaction(connection, action), connection.cursor(row_factory=namedtuple_row) as cursor:
        cursor.execute(_SQL.render("read_committed", namespace))
        cursor.execute(_SQL.render("configure", namespace), {"lock_timeout": lock_timeout})
        yield cursor


def lock_ring(
    cursor: psycopg.Cursor[Any], namespace: Namespace, action: str, ring: str = "queue"
) -> Ring | None:
    """Lock a ring's state before anything else; None at once when another session does the same `action` on it."""
    # The queue ring's key has no name of a ring in it: releases before the others turned know it so.
    parts = (action,) if ring == "queue" else (action, ring)
    return lock_state(cursor, namespace, ring) if try_action(cursor, namespace, *parts) else None


def try_action(cursor: psycopg.Cursor[Any], namespace: Namespace, *action: str) -> bool:
    """Become the one session that does `action`, to the end of the transaction; False at once when another one is."""
    key = advisory_key(namespace.name, *action)
    return bool(one_row(cursor, _SQL.render("try_action", namespace), key=key).granted)


def lock_state(cursor: psycopg.Cursor[Any], namespace: Namespace, ring: str = "queue") -> Ring:
    """Lock a ring's state, waiting for whoever has it."""
    return Ring(*one_row(cursor, _STATEMENTS[ring].render("lock_state", namespace)))


def one_row(cursor: psycopg.Cursor[Any], statement: bytes, **values: Any) -> Any:
    """Run a statement that returns one row, and return that."""
    return cursor.execute(statement, values or None).fetchone()
