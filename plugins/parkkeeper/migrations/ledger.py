"""What the ledger of a namespace says, compared with what this package ships."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from parkkeeper.database import statements
from parkkeeper.errors import (
    DatabaseNewer,
    DatabaseOutdated,
    LedgerMissing,
    MigrationDrift,
    MigrationError,
    UnknownNamespace,
)
from parkkeeper.migrations.files import Migration, check, packaged
from parkkeeper.namespace import Namespace

_SQL = statements("namespace")
_MADE = re.compile(r"^CREATE TABLE \{schema\}\.([a-z_]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """One row of the ledger: `applied_at` is the database's time, `duration_ms` is in milliseconds.

    `retries` is how often it was begun in vain before, because a lock was not had; 0 unless this call applied it.
    """

    family: str
    version: int
    name: str
    sha256: str
    applied_at: datetime
    duration_ms: int
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """What a namespace has of a family (`applied`) and what this package would still apply (`pending`)."""

    namespace: str
    family: str
    applied: tuple[AppliedMigration, ...]
    pending: tuple[Migration, ...]


def plan(
    connection: psycopg.Connection[Any], namespace: str | Namespace, family: str, *, target: int | None = None
) -> list[Migration]:
    """Return what :func:`migrate` would apply, oldest first; reads only, raises what `status` does."""
    check(family, target)
    return [m for m in status(connection, namespace, family).pending if target is None or m.version <= target]


def status(connection: psycopg.Connection[Any], namespace: str | Namespace, family: str) -> Status:
    """Compare the ledger of `namespace` with this package.

    Raises
    ------
    DatabaseNewer
        The ledger holds a version that this package does not have.
    MigrationDrift
        An applied migration reads differently here, or one with a lower number than an applied one was not
        applied.
    LedgerMissing
        The schema holds something already, and no ledger says what; or it holds the family's tables, and the ledger
        has no line of the family.
    MigrationError
        The ledger exists and cannot be read.
    """
    space = Namespace.of(namespace)
    shipped = {migration.version: migration for migration in packaged(family)}
    applied = _ledger(connection, space, family)
    for row in applied:
        migration = shipped.get(row.version)
        if migration is None:
            raise DatabaseNewer(
                f"namespace {space}: {family} migration {row.version:04d}_{row.name} is applied "
                "but unknown to this package: upgrade airflow-provider-parkkeeper here"
            )
        if migration.sha256 != row.sha256:
            raise MigrationDrift(
                f"namespace {space}: {migration.path} is not what was applied "
                f"(ledger {row.sha256[:12]}, package {migration.sha256[:12]}): "
                "reinstall the release that was applied"
            )
    newest = max((row.version for row in applied), default=0)
    known = {row.version for row in applied}
    pending = tuple(m for m in shipped.values() if m.version not in known)
    for migration in pending:
        if migration.version < newest:
            raise MigrationDrift(
                f"namespace {space}: {migration.path} was never applied "
                f"although {newest:04d} was: reinstall the release that was applied"
            )
    return Status(space.name, family, applied, pending)


def require(connection: psycopg.Connection[Any], namespace: str | Namespace, family: str) -> None:
    """Check that `namespace` has exactly the migrations of `family` that this package was written for.

    Raises
    ------
    UnknownNamespace
        It has none of them; the message says how to make them.
    DatabaseOutdated, DatabaseNewer, MigrationDrift, LedgerMissing
        It has fewer, more or other ones, or no ledger that says which.
    """
    found = status(connection, namespace, family)
    if not found.applied:
        raise UnknownNamespace(
            f"namespace {found.namespace} has no {family} tables: "
            f"run `parkkeeper migrate --family {family} --namespace {found.namespace}`"
        )
    if found.pending:
        raise DatabaseOutdated(
            f"namespace {found.namespace} lacks {family} migration {found.pending[0].label}: "
            f"run `parkkeeper migrate --family {family} --namespace {found.namespace}`"
        )


def ledger_exists(cursor: psycopg.Cursor[Any], namespace: Namespace) -> bool:
    """Tell whether the namespace has a ledger; it may be one that cannot be read."""
    return bool(one(cursor, "ledger_exists", namespace, {"ledger": f"{namespace}.schema_migration"})[0])


def row_of(migration: Migration, duration_ms: int) -> dict[str, str | int]:
    """Return what the statement ``record`` writes."""
    return {
        "family": migration.family,
        "version": migration.version,
        "name": migration.name,
        "sha256": migration.sha256,
        "duration_ms": duration_ms,
    }


def one(cursor: psycopg.Cursor[Any], name: str, namespace: Namespace, values: Mapping[str, Any]) -> Any:
    """Run a named statement that returns one row, and return that."""
    row = cursor.execute(_SQL.render(name, namespace), values, binary=True).fetchone()
    assert row is not None
    return row


def _ledger(
    connection: psycopg.Connection[Any], namespace: Namespace, family: str
) -> tuple[AppliedMigration, ...]:
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        raise MigrationError(
            f"namespace {namespace}: the database's encoding SQL_ASCII is refused, because it does not know what a "
            "character is: make the database with ENCODING 'UTF8'"
        )
    try:
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            names = {
                "ledger": f"{namespace}.schema_migration",
                "schema": namespace.name,
                "first_tables": [made for first in packaged(family)[:1] for made in _MADE.findall(first.sql)],
            }
            exists, others, made = one(cursor, "look", namespace, names)
            if not exists and others:
                raise LedgerMissing(
                    f"namespace {namespace} holds {', '.join(others)} and no ledger of migrations: nothing was "
                    "changed; if they are Parkkeeper's, run `parkkeeper baseline`, else choose another namespace"
                )
            if not exists:
                return ()
            rows = cursor.execute(
                _SQL.render("ledger", namespace), {"family": family}, binary=True
            ).fetchall()
            if made and not rows:
                raise LedgerMissing(
                    f"namespace {namespace} holds {', '.join(made)}, and its ledger has no line of the {family} "
                    "family that this role can see: nothing was changed; if no policy or view hides them and the "
                    "tables are Parkkeeper's, run `parkkeeper baseline`"
                )
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        raise MigrationError(
            f"ledger of namespace {namespace} cannot be read ({error.sqlstate}): "
            f"{namespace}.schema_migration is not as it was made, or this role may not read it"
        ) from None
    return tuple(AppliedMigration(family, *row) for row in rows)
