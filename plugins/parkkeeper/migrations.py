"""The runner of migrations: plain ``.sql`` files, a transaction each, a ledger with the hash of each.

See ``docs/explanation/migrations.md`` for what is promised: additive only, no down migrations, drift is an
error, a database newer than the package is refused.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from parkkeeper.database import advisory_key, milliseconds, sql_root, statements, transaction
from parkkeeper.errors import (
    DatabaseNewer,
    DatabaseOutdated,
    InvalidArgument,
    MigrationBlocked,
    MigrationDrift,
    MigrationError,
    UnknownNamespace,
)
from parkkeeper.namespace import Namespace

FAMILIES = ("queue", "memory")
QUEUE_SLOTS = range(4, 257)

#: How long a statement of a migration waits for a lock, and so how long writers queue behind it.
LOCK_TIMEOUT = timedelta(seconds=5)
ATTEMPTS = 5

_FILE = re.compile(r"([0-9]{4})_([a-z0-9_]+)\.sql")
_SQL = statements("namespace")


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: `sha256` is of its text before the schema name is put in, with LF line ends."""

    family: str
    version: int
    name: str
    sql: str
    sha256: str

    @property
    def label(self) -> str:
        """The file's name below the family's folder, as errors and tables show it."""
        return f"{self.version:04d}_{self.name}.sql"


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """One row of the ledger: `applied_at` is the database's time, `duration_ms` is in milliseconds."""

    family: str
    version: int
    name: str
    sha256: str
    applied_at: datetime
    duration_ms: int


@dataclass(frozen=True, slots=True)
class Status:
    """What a namespace has of a family (`applied`) and what this package would still apply (`pending`)."""

    namespace: str
    family: str
    applied: tuple[AppliedMigration, ...]
    pending: tuple[Migration, ...]


@cache
def packaged(family: str) -> tuple[Migration, ...]:
    """Return the migrations of `family` that this package ships, by version.

    Raises
    ------
    InvalidArgument
        There is no such family.
    """
    if family not in FAMILIES:
        raise InvalidArgument(f"family {family!r} is refused: one of {', '.join(FAMILIES)}")
    found = []
    for path in sorted((sql_root() / family / "migrations").glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path.name}: a migration is called NNNN_name.sql")
        # Read as text, which turns any line end into LF: a checkout with CRLF has the same hash.
        text = path.read_text(encoding="utf-8")
        digest = hashlib.sha256(text.encode()).hexdigest()
        found.append(Migration(family, int(match[1]), match[2], text, digest))
    if len({migration.version for migration in found}) != len(found):
        raise ValueError(f"family {family}: two migrations have the same number")
    return tuple(found)


def migrate(
    connection: psycopg.Connection[Any],
    namespace: str | Namespace,
    family: str,
    *,
    target: int | None = None,
    queue_slots: int = 16,
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

    Returns
    -------
    list of AppliedMigration
        What this call applied, oldest first; empty when there was nothing to do.

    Raises
    ------
    InvalidNamespace, InvalidArgument
        Before anything is sent to the database.
    MigrationDrift, DatabaseNewer
        Before anything is changed.
    MigrationBlocked
        A lock was not had; earlier migrations of this call stand, the blocked one left nothing.
    MigrationError
        A migration failed, which is named; or the ledger exists and cannot be read.
    """
    space = Namespace.of(namespace)
    _check(family, target, queue_slots)
    done: list[AppliedMigration] = []
    while pending := plan(connection, space, family, target=target):
        applied = _apply_with_retry(connection, space, pending[0], queue_slots)
        if applied is not None:
            done.append(applied)
    return done


def plan(
    connection: psycopg.Connection[Any], namespace: str | Namespace, family: str, *, target: int | None = None
) -> list[Migration]:
    """Return what :func:`migrate` would apply, oldest first; reads only, raises what `status` does."""
    _check(family, target)
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
                f"namespace {space}: {family}/migrations/{migration.label} is not what was applied "
                f"(ledger {row.sha256[:12]}, package {migration.sha256[:12]}): "
                "reinstall the release that was applied"
            )
    newest = max((row.version for row in applied), default=0)
    known = {row.version for row in applied}
    pending = tuple(m for m in shipped.values() if m.version not in known)
    for migration in pending:
        if migration.version < newest:
            raise MigrationDrift(
                f"namespace {space}: {family}/migrations/{migration.label} was never applied "
                f"although {newest:04d} was: reinstall the release that was applied"
            )
    return Status(space.name, family, applied, pending)


def require(connection: psycopg.Connection[Any], namespace: str | Namespace, family: str) -> None:
    """Check that `namespace` has exactly the migrations of `family` that this package was written for.

    Raises
    ------
    UnknownNamespace
        It has none of them; the message says how to make them.
    DatabaseOutdated, DatabaseNewer, MigrationDrift
        It has fewer, more or other ones.
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


def render(
    namespace: str | Namespace, family: str, *, target: int | None = None, queue_slots: int = 16
) -> str:
    """Return the family's migrations for `namespace` as a script that a site applies with its own tool.

    Each migration is one transaction that takes the lock and writes the ledger as :func:`migrate` does, so
    that either may go on where the other stopped.
    """
    space = Namespace.of(namespace)
    _check(family, target, queue_slots)
    schema = [_SQL.render(name, space).decode() + ";" for name in ("create_schema", "create_ledger")]
    parts = [f"-- {family} family for namespace {space}\n{_script(space, queue_slots, *schema)}"]
    for migration in packaged(family):
        if target is None or migration.version <= target:
            record = _literal("record", space, _row(migration, duration_ms=0))
            body = _script(space, queue_slots, _render(migration, space).rstrip(), record)
            parts.append(f"-- {migration.label} sha256 {migration.sha256}\n{body}")
    return "\n\n".join(parts) + "\n"


def _script(namespace: Namespace, queue_slots: int, *statements: str) -> str:
    """Return a transaction that begins as the runner's own do."""
    configure = _literal("configure", namespace, _configuration(queue_slots))
    lock = _literal("lock", namespace, _lock(namespace))
    return "\n".join(["BEGIN ISOLATION LEVEL READ COMMITTED;", configure, lock, *statements, "COMMIT;"])


def _literal(name: str, namespace: Namespace, values: Mapping[str, str | int]) -> str:
    """Return a named statement with quoted literals where it would have its values bound."""
    literals = {key: sql.Literal(value).as_string() for key, value in values.items()}
    return _SQL.render(name, namespace).decode() % literals + ";"


def _render(migration: Migration, namespace: Namespace) -> str:
    return migration.sql.replace("{schema}", namespace.identifier)


def _check(family: str, target: int | None, queue_slots: int = QUEUE_SLOTS.start) -> None:
    versions = [migration.version for migration in packaged(family)]
    if target is not None and (type(target) is not int or target not in versions):
        raise InvalidArgument(
            f"target {target} is refused: no such {family} migration; "
            f"there are {versions[0]} to {versions[-1]}"
        )
    if type(queue_slots) is not int or queue_slots not in QUEUE_SLOTS:
        raise InvalidArgument(
            f"queue_slots {queue_slots} is refused: {QUEUE_SLOTS.start} to {QUEUE_SLOTS.stop - 1} slots"
        )


def _ledger(
    connection: psycopg.Connection[Any], namespace: Namespace, family: str
) -> tuple[AppliedMigration, ...]:
    try:
        with connection.cursor(row_factory=tuple_row) as cursor:
            if not _one(cursor, "ledger_exists", namespace, {"ledger": f"{namespace}.schema_migration"}):
                return ()
            rows = cursor.execute(_SQL.render("ledger", namespace), {"family": family}).fetchall()
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        raise MigrationError(
            f"ledger of namespace {namespace} cannot be read ({error.sqlstate}): "
            f"{namespace}.schema_migration is not as it was made, or this role may not read it"
        ) from None
    return tuple(AppliedMigration(family, *row) for row in rows)


def _one(cursor: psycopg.Cursor[Any], name: str, namespace: Namespace, values: Mapping[str, Any]) -> Any:
    """Run a named statement that returns one value, and return that."""
    row = cursor.execute(_SQL.render(name, namespace), values).fetchone()
    assert row is not None
    return row[0]


def _apply_with_retry(
    connection: psycopg.Connection[Any], namespace: Namespace, migration: Migration, queue_slots: int
) -> AppliedMigration | None:
    where = f"namespace {namespace}: {migration.family}/migrations/{migration.label}"
    try:
        return Retrying(
            retry=retry_if_exception_type((psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.2, max=5),
            reraise=True,
        )(_apply, connection, namespace, migration, queue_slots)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise MigrationBlocked(
            f"{where} did not get its locks in {ATTEMPTS} attempts of {LOCK_TIMEOUT.total_seconds():g} s "
            f"({error.sqlstate}): it left nothing; try again"
        ) from None
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        # Its message may hold a row.
        raise MigrationError(
            f"{where} failed ({error.sqlstate}, {type(error).__name__}): it left nothing; "
            "the server's log has more"
        ) from None


def _apply(
    connection: psycopg.Connection[Any], namespace: Namespace, migration: Migration, queue_slots: int
) -> AppliedMigration | None:
    """Apply one migration under the namespace's lock; None when another runner has applied it meanwhile."""
    with transaction(connection, "migrate"), connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(_SQL.render("read_committed", namespace))
        cursor.execute(_SQL.render("configure", namespace), _configuration(queue_slots))
        cursor.execute(_SQL.render("lock", namespace), _lock(namespace))
        began = time.perf_counter()
        _bootstrap(cursor, namespace)
        if any(row.version == migration.version for row in _ledger(connection, namespace, migration.family)):
            return None
        cursor.execute(_render(migration, namespace).encode())
        duration_ms = round((time.perf_counter() - began) * 1000)
        applied_at = _one(cursor, "record", namespace, _row(migration, duration_ms))
    return AppliedMigration(
        migration.family, migration.version, migration.name, migration.sha256, applied_at, duration_ms
    )


def _configuration(queue_slots: int) -> dict[str, str]:
    return {"lock_timeout": f"{milliseconds(LOCK_TIMEOUT)}ms", "queue_slots": str(queue_slots)}


def _lock(namespace: Namespace) -> dict[str, int]:
    return {"key": advisory_key(namespace.name, "migrate")}


def _row(migration: Migration, duration_ms: int) -> dict[str, str | int]:
    return {
        "family": migration.family,
        "version": migration.version,
        "name": migration.name,
        "sha256": migration.sha256,
        "duration_ms": duration_ms,
    }


def _bootstrap(cursor: psycopg.Cursor[Any], namespace: Namespace) -> None:
    """Make the schema, the ledger and the settings; a schema that a DBA made needs no right to make one."""
    if not _one(cursor, "schema_exists", namespace, {"schema": namespace.name}):
        cursor.execute(_SQL.render("create_schema", namespace))
    if not _one(cursor, "ledger_exists", namespace, {"ledger": f"{namespace}.schema_migration"}):
        cursor.execute(_SQL.render("create_ledger", namespace))
