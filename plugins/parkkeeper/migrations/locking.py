"""The lock that makes one runner at a time work on a namespace, and how long a run waits for locks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from parkkeeper.database import (
    advisory_key,
    bring_to_rest,
    milliseconds,
    refuse_open_transaction,
    statements,
    transaction,
)
from parkkeeper.errors import InvalidArgument, MigrationBlocked, MigrationError
from parkkeeper.migrations.ledger import one
from parkkeeper.namespace import Namespace

#: Waits so many seconds between two tries; what it raises ends the run.
Rest = Callable[[float], None]

_SQL = statements("namespace")
_LONGEST = timedelta(days=7)
_PAUSES = (0.02, 0.05, 0.1, 0.25)  # seconds between two tries for the namespace's lock; the last one repeats

_ADVICE = {
    "25006": "this session may not write: see default_transaction_read_only, or the server is a standby",
    "25P04": "the transaction_timeout of the role or the database was shorter than the work",
}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a run waits, and how often it tries.

    Parameters
    ----------
    lock_timeout
        How long a statement of a migration waits for a lock, and so how long writers may queue behind it.
    attempts
        How often a migration is begun that does not get its locks, 1 to 100.
    runner_timeout
        How long to wait for another runner to be done with the namespace; zero: not at all.
    statement_timeout
        The longest a statement of a migration may take; None: what the session has.

    Raises
    ------
    InvalidArgument
        One of them is out of range.
    """

    lock_timeout: timedelta = timedelta(seconds=2)
    attempts: int = 10
    runner_timeout: timedelta = timedelta(minutes=1)
    statement_timeout: timedelta | None = None

    def __post_init__(self) -> None:
        _check("lock_timeout", self.lock_timeout)
        _check("runner_timeout", self.runner_timeout, zero=True)
        if self.statement_timeout is not None:
            _check("statement_timeout", self.statement_timeout)
        if type(self.attempts) is not int or not 1 <= self.attempts <= 100:
            raise InvalidArgument(f"attempts {self.attempts!r} is refused: 1 to 100")


def _check(field: str, value: timedelta, *, zero: bool = False) -> None:
    if not isinstance(value, timedelta) or not timedelta(0) <= value <= _LONGEST or not (value or zero):
        rule = "a timedelta from zero" if zero else "a timedelta above zero"
        raise InvalidArgument(f"{field} {value!s} is refused: {rule}, 7 days at most")


def passes(error: BaseException) -> bool:
    """Tell whether another attempt may succeed: locks that others hold, and the table that all locks are in."""
    if isinstance(error, psycopg.errors.OutOfMemory):
        return "max_locks_per_transaction" in (error.diag.message_hint or "")
    return isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected)


def blocked(
    error: psycopg.Error, where: str, patience: Patience, attempts: int, left: str
) -> MigrationBlocked:
    """Return what to raise when the last attempt met an error of those that pass."""
    if isinstance(error, psycopg.errors.OutOfMemory):
        return MigrationBlocked(
            f"{where} found the server's table of locks full ({error.sqlstate}): {left}; raise "
            "max_locks_per_transaction, or work on fewer namespaces at once"
        )
    return MigrationBlocked(
        f"{where} did not get its locks in {attempts} attempts of "
        f"{patience.lock_timeout.total_seconds():g} s ({error.sqlstate}): {left}; try again"
    )


def failed(error: psycopg.Error, where: str, left: str) -> MigrationError:
    """Return what to raise for an error that stays. Its message may hold a row, and is not shown."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        # Except for this one, which names what the role has no right to, and no row.
        advice = error.diag.message_primary
    else:
        advice = _ADVICE.get(error.sqlstate or "", "the server's log has more")
    return MigrationError(f"{where} failed ({error.sqlstate}, {type(error).__name__}): {left}; {advice}")


def lock_key(namespace: Namespace) -> dict[str, int]:
    """Return the key of the namespace's lock, as the statements take it."""
    return {"key": advisory_key(namespace.name, "migrate")}


def configuration(patience: Patience, queue_slots: int, *, local: bool) -> dict[str, str | bool | None]:
    """Return what the statement ``configure`` takes.

    Without a transaction the one statement takes no lock that writers wait behind, so it may wait for its own for as
    long as it may run.
    """
    limit = patience.statement_timeout
    return {
        "lock_timeout": f"{milliseconds(patience.lock_timeout)}ms" if local else "0",
        "statement_timeout": None if limit is None else f"{milliseconds(limit)}ms",
        "queue_slots": str(queue_slots),
        "local": local,
    }


@contextmanager
def configured_transaction(
    connection: psycopg.Connection[Any], namespace: Namespace, patience: Patience, queue_slots: int
) -> Iterator[psycopg.Cursor[Any]]:
    """Open a transaction that has the settings of a migration, whatever the session's are.

    What an interrupt cuts short is ended and undone, so that the session is free again.
    """
    refuse_open_transaction(connection, "migrate")
    try:
        with transaction(connection, "migrate"), psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(_SQL.render("read_committed", namespace))
            cursor.execute(
                _SQL.render("configure", namespace), configuration(patience, queue_slots, local=True)
            )
            yield cursor
    except BaseException:
        bring_to_rest(connection)
        raise


@contextmanager
def locked_transaction(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    patience: Patience,
    queue_slots: int,
    rest: Rest = time.sleep,
) -> Iterator[psycopg.Cursor[Any]]:
    """Open a transaction that has the namespace's lock and the settings of a migration.

    Raises
    ------
    MigrationBlocked
        Another runner has the lock, who is named.
    """
    for _ in _tries(connection, namespace, patience, rest):
        with configured_transaction(connection, namespace, patience, queue_slots) as cursor:
            if one(cursor, "try_lock", namespace, lock_key(namespace))[0]:
                yield cursor
                return


@contextmanager
def locked_session(
    connection: psycopg.Connection[Any], namespace: Namespace, patience: Patience, rest: Rest
) -> Iterator[psycopg.Cursor[Any]]:
    """Let the session have the namespace's lock and the settings of a migration, outside of any transaction.

    Raises
    ------
    MigrationBlocked
        Another runner has the lock, who is named.
    MigrationError
        A pooler stands between us and the server, which could give the next statement to another session.
    """
    refuse_open_transaction(connection, "migrate")
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        before: dict[str, str] = {}
        locked: bool | None = False
        try:
            if one(cursor, "backend", namespace, {})[0] != connection.info.backend_pid:
                raise MigrationError(
                    f"namespace {namespace}: a migration without a transaction needs a session of its own, and this "
                    "one goes through a pooler: connect to the server itself"
                )
            found = one(cursor, "configured", namespace, {})
            before = dict(zip(("lock_timeout", "statement_timeout", "search_path"), found, strict=True))
            for _ in _tries(connection, namespace, patience, rest):
                locked = None  # until the answer is there
                locked = one(cursor, "try_session_lock", namespace, lock_key(namespace))[0]
                if locked:
                    break
            cursor.execute(_SQL.render("configure", namespace), configuration(patience, 4, local=False))
            yield cursor
        finally:
            bring_to_rest(connection)
            if locked is not False and not connection.closed:
                _release(cursor, namespace, before)


def _release(cursor: psycopg.Cursor[Any], namespace: Namespace, before: Mapping[str, str]) -> None:
    """Make the session what it was before it had the lock, or close it: then the server gives back the lock."""
    try:
        cursor.execute(_SQL.render("restore", namespace), before)
        cursor.execute(_SQL.render("session_unlock", namespace), lock_key(namespace))
    except BaseException:
        cursor.connection.close()
        raise


def _tries(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    patience: Patience,
    rest: Rest,
) -> Iterator[None]:
    """Yield until the time is over, with pauses; then say who has the lock."""
    end = time.monotonic() + patience.runner_timeout.total_seconds()
    pauses = iter(_PAUSES)
    while True:
        yield
        left = end - time.monotonic()
        if left <= 0:
            break
        rest(min(next(pauses, _PAUSES[-1]), left))
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        holder = cursor.execute(_SQL.render("holder", namespace), lock_key(namespace)).fetchone()
    who = f"pid {holder[0]}, application_name {holder[1]!r}" if holder else "it is gone by now"
    raise MigrationBlocked(
        f"namespace {namespace}: another runner has it ({who}), waited {patience.runner_timeout.total_seconds():g} s: "
        "nothing of ours is half done; try again when it is finished"
    )
