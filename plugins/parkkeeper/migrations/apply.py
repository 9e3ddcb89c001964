"""Applying migrations: each one whole, under the namespace's lock, again when a lock was not had."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from parkkeeper.database import refuse_open_transaction, statements
from parkkeeper.errors import MigrationError
from parkkeeper.migrations.files import QUEUE_SLOTS, Migration, check
from parkkeeper.migrations.ledger import AppliedMigration, ledger_exists, one, plan, row_of, status
from parkkeeper.migrations.locking import (
    Patience,
    Rest,
    blocked,
    configured_transaction,
    failed,
    locked_session,
    locked_transaction,
    passes,
)
from parkkeeper.namespace import Namespace

T = TypeVar("T")

_SQL = statements("namespace")
_log = logging.getLogger(__name__)


def migrate(
    connection: psycopg.Connection[Any],
    namespace: str | Namespace,
    family: str,
    *,
    target: int | None = None,
    queue_slots: int = 16,
    patience: Patience = Patience(),  # noqa: B008 (frozen)
) -> list[AppliedMigration]:
    """Bring `namespace` to the newest migration of `family`, or to `target`, a transaction each.

    The schema is created if it is missing. Two runners at once are safe: each transaction takes the
    namespace's advisory lock and looks at the ledger again under it.

    Parameters
    ----------
    target
        The last version to apply; None means all. What is applied already stays: no migration goes down.
    queue_slots
        How many slots the queue's ring is made with, 4 to 256; used only when the ring is first made.
    patience
        How long to wait for locks and for another runner, and how often to try.

    Returns
    -------
    list of AppliedMigration
        What this call applied, oldest first; empty when there was nothing to do.

    Raises
    ------
    InvalidNamespace, InvalidArgument
        Before anything is sent to the database.
    MigrationDrift, DatabaseNewer, LedgerMissing
        Before anything is changed.
    MigrationBlocked
        A lock was not had; earlier migrations of this call stand, the blocked one left nothing.
    MigrationError
        A migration failed, which is named; or the ledger exists and cannot be read.
    """
    space = Namespace.of(namespace)
    check(family, target, queue_slots)
    refuse_open_transaction(connection, "migrate")
    return bring(connection, space, family, target, queue_slots, patience, time.sleep)


def bring(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    family: str,
    target: int | None,
    queue_slots: int,
    patience: Patience,
    rest: Rest,
) -> list[AppliedMigration]:
    """Do what :func:`migrate` does; `rest` waits between two tries, and is asked before each migration."""
    done: list[AppliedMigration] = []
    while pending := _pending(connection, namespace, family, target, patience, rest):
        rest(0)
        applied = _apply_with_retry(connection, namespace, pending[0], queue_slots, patience, rest)
        if applied is not None:
            done.append(applied)
    return done


def make_namespace(cursor: psycopg.Cursor[Any], namespace: Namespace) -> None:
    """Make the schema, the ledger and the settings; a schema that a DBA made needs no right to make one."""
    if not one(cursor, "schema_exists", namespace, {"schema": namespace.name})[0]:
        cursor.execute(_SQL.render("create_schema", namespace))
    if not ledger_exists(cursor, namespace):
        cursor.execute(_SQL.render("create_ledger", namespace))


def _pending(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    family: str,
    target: int | None,
    patience: Patience,
    rest: Rest,
) -> list[Migration]:
    """Return what is to be applied; a ledger that is locked is waited for as a table is."""

    def look(_: int) -> list[Migration]:
        with configured_transaction(connection, namespace, patience, QUEUE_SLOTS.start):
            return plan(connection, namespace, family, target=target)

    return _patiently(f"namespace {namespace}: the ledger", "nothing was changed", patience, rest, look)


def _apply_with_retry(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    migration: Migration,
    queue_slots: int,
    patience: Patience,
    rest: Rest,
) -> AppliedMigration | None:
    def attempt(retries: int) -> AppliedMigration | None:
        if migration.transaction:
            return _apply(connection, namespace, migration, queue_slots, patience, rest, retries)
        return _apply_alone(connection, namespace, migration, patience, rest, retries)

    left = (
        "it left nothing"
        if migration.transaction
        else "an invalid index may be left, which the next run replaces"
    )
    return _patiently(f"namespace {namespace}: {migration.path}", left, patience, rest, attempt)


def _patiently(where: str, left: str, patience: Patience, rest: Rest, attempt: Callable[[int], T]) -> T:
    """Call `attempt` with how often it was called before, until it gets its locks, and name `where` if it fails."""

    def report(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        _log.info(
            "%s did not get its locks (%s), attempt %d of %d: it is tried again",
            where,
            getattr(error, "sqlstate", None),
            state.attempt_number,
            patience.attempts,
        )

    retrying = Retrying(
        retry=retry_if_exception(passes),
        stop=stop_after_attempt(patience.attempts),
        wait=wait_random_exponential(multiplier=0.2, max=5),
        before_sleep=report,
        sleep=rest,
        reraise=True,
    )
    try:
        return retrying(lambda: attempt(retrying.statistics["attempt_number"] - 1))
    except psycopg.OperationalError as error:
        if passes(error):
            raise blocked(error, where, patience, patience.attempts, left) from None
        error.add_note(f"at {where}: {left}")
        raise
    except psycopg.Error as error:
        raise failed(error, where, left) from None


def _apply(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    migration: Migration,
    queue_slots: int,
    patience: Patience,
    rest: Rest,
    retries: int,
) -> AppliedMigration | None:
    """Apply one migration under the namespace's lock; None when another runner has applied it meanwhile."""
    with locked_transaction(connection, namespace, patience, queue_slots, rest) as cursor:
        began = time.perf_counter()
        if migration not in status(connection, namespace, migration.family).pending:
            return None
        make_namespace(cursor, namespace)
        cursor.execute(migration.render(namespace).encode())
        return _record(cursor, namespace, migration, began, retries)


def _apply_alone(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    migration: Migration,
    patience: Patience,
    rest: Rest,
    retries: int,
) -> AppliedMigration | None:
    """Run the one statement of a migration without a transaction, and record it when its index can be used.

    A run that was cut off leaves either an invalid index, which is dropped here and built again, or a valid one and
    no line in the ledger, which is recorded.
    """
    with locked_session(connection, namespace, patience, rest) as cursor:
        began = time.perf_counter()
        if migration not in status(connection, namespace, migration.family).pending:
            return None
        valid = _index_is_valid(cursor, namespace, migration)
        if valid is False:
            cursor.execute(drop_index(migration, namespace).encode())
        if not valid:
            cursor.execute(migration.render(namespace).encode())
        if migration.index and not _index_is_valid(cursor, namespace, migration):
            raise MigrationError(
                f"namespace {namespace}: {migration.path} left the index {migration.index} invalid: "
                "it is not recorded, and the next run builds it again"
            )
        return _record(cursor, namespace, migration, began, retries)


def drop_index(migration: Migration, namespace: Namespace) -> str:
    """Return the statement that drops what a migration without a transaction has left half built."""
    return f"DROP INDEX CONCURRENTLY IF EXISTS {namespace.identifier}.{migration.index}"


def _index_is_valid(cursor: psycopg.Cursor[Any], namespace: Namespace, migration: Migration) -> bool | None:
    if migration.index is None:
        return None
    valid: bool | None = one(
        cursor, "index_is_valid", namespace, {"index": f"{namespace.identifier}.{migration.index}"}
    )[0]
    return valid


def _record(
    cursor: psycopg.Cursor[Any], namespace: Namespace, migration: Migration, began: float, retries: int
) -> AppliedMigration:
    duration_ms = round((time.perf_counter() - began) * 1000)
    (applied_at,) = one(cursor, "record", namespace, row_of(migration, duration_ms))
    return AppliedMigration(
        migration.family,
        migration.version,
        migration.name,
        migration.sha256,
        applied_at,
        duration_ms,
        retries,
    )
