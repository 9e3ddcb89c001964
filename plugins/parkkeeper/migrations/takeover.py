"""Taking over tables whose ledger is lost, or that another tool made from the same files."""

from __future__ import annotations

from typing import Any

import psycopg

from parkkeeper.database import statements
from parkkeeper.errors import LedgerMissing, MigrationDrift, MigrationError, UnknownNamespace
from parkkeeper.migrations.apply import make_namespace
from parkkeeper.migrations.catalog import compare, objects, translated
from parkkeeper.migrations.files import check, packaged
from parkkeeper.migrations.ledger import AppliedMigration, one, row_of, status
from parkkeeper.migrations.locking import Patience, locked_transaction
from parkkeeper.migrations.scratch import fresh
from parkkeeper.namespace import Namespace

_SQL = statements("namespace")
_SHOWN = 5


def baseline(
    connection: psycopg.Connection[Any],
    namespace: str | Namespace,
    family: str,
    *,
    target: int | None = None,
    patience: Patience = Patience(),  # noqa: B008 (frozen)
) -> list[AppliedMigration]:
    """Write into the ledger what is there already, after it was compared with a fresh install.

    For a schema that was restored without its ledger, or whose tables another tool made from these files. Runs no
    migration. What the schema has beyond the family's objects does not matter.

    Parameters
    ----------
    target
        The newest migration whose tables are there; None means the newest of all.

    Returns
    -------
    list of AppliedMigration
        The lines of the ledger, with a duration of zero.

    Raises
    ------
    UnknownNamespace
        There is no such schema.
    MigrationDrift
        Something that the migrations make is missing or not as they make it; nothing was written.
    MigrationError
        The ledger knows the family already, or the role may not make a schema in this database, or the database
        refused something else.
    MigrationBlocked
        Another runner works on the namespace, or a lock was not had.
    """
    space = Namespace.of(namespace)
    check(family, target)
    migrations = [m for m in packaged(family) if target is None or m.version <= target]
    with (
        translated(space, "baseline", patience),
        locked_transaction(connection, space, patience, 16) as cursor,
    ):
        if not one(cursor, "schema_exists", space, {"schema": space.name})[0]:
            raise UnknownNamespace(f"namespace {space} does not exist: there is nothing to take over")
        if _known(connection, space, family):
            raise MigrationError(
                f"namespace {space} has a ledger that knows the {family} family: there is nothing to take over"
            )
        with fresh(cursor, space, {family: migrations[-1].version}, patience) as scratch:
            differences = [
                f"{difference.change} {difference.kind} {difference.name}"
                for difference in compare(objects(cursor, scratch, named=space), objects(cursor, space))
                if difference.change != "extra" and difference.name != "schema_migration"
            ]
            settings = {name for (name,) in cursor.execute(_SQL.render("settings", scratch))}
        if not differences:
            kept = {name for (name,) in cursor.execute(_SQL.render("settings", space))}
            differences = [f"missing setting {name}" for name in sorted(settings - kept)]
        if differences:
            more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
            raise MigrationDrift(
                f"namespace {space} is not what {migrations[-1].path} and those before it make: "
                f"{', '.join(differences[:_SHOWN])}{more}; nothing was written"
            )
        make_namespace(cursor, space)
        done = []
        for migration in migrations:
            (applied_at,) = one(cursor, "record", space, row_of(migration, duration_ms=0))
            done.append(
                AppliedMigration(family, migration.version, migration.name, migration.sha256, applied_at, 0)
            )
        return done


def _known(connection: psycopg.Connection[Any], namespace: Namespace, family: str) -> bool:
    try:
        return bool(status(connection, namespace, family).applied)
    except LedgerMissing:
        return False
