"""The migrations as a script, for a site that applies them with its own tool."""

from __future__ import annotations

from collections.abc import Mapping

from psycopg import sql

from parkkeeper.database import statements
from parkkeeper.migrations.apply import drop_index
from parkkeeper.migrations.files import Migration, check, packaged
from parkkeeper.migrations.ledger import row_of
from parkkeeper.migrations.locking import Patience, configuration, lock_key
from parkkeeper.namespace import Namespace

_SQL = statements("namespace")


def render(
    namespace: str | Namespace,
    family: str,
    *,
    target: int | None = None,
    queue_slots: int = 16,
    patience: Patience = Patience(),  # noqa: B008 (frozen)
) -> str:
    """Return the family's migrations for `namespace` as a script that a site applies with its own tool.

    Each migration is one transaction that takes the lock and writes the ledger as :func:`migrate` does, so
    that either may go on where the other stopped. One without a transaction has the session's lock instead, and
    needs a tool that sends its statements one by one, as psql does.
    """
    space = Namespace.of(namespace)
    check(family, target, queue_slots)
    settings = configuration(patience, queue_slots, local=True)
    schema = [_SQL.render(name, space).decode() + ";" for name in ("create_schema", "create_ledger")]
    parts = [f"-- {family} family for namespace {space}\n{_transaction(space, settings, *schema)}"]
    for migration in packaged(family):
        if target is None or migration.version <= target:
            if migration.transaction:
                record = _literal("record", space, row_of(migration, duration_ms=0))
                body = _transaction(space, settings, migration.render(space).rstrip(), record)
            else:
                body = _alone(space, migration, patience)
            parts.append(f"-- {migration.label} sha256 {migration.sha256}\n{body}")
    return "\n\n".join(parts) + "\n"


def _transaction(namespace: Namespace, settings: Mapping[str, str | bool | None], *statements: str) -> str:
    """Return a transaction that begins as the runner's own do."""
    configure = _literal("configure", namespace, settings)
    lock = _literal("lock", namespace, lock_key(namespace))
    return "\n".join(["BEGIN ISOLATION LEVEL READ COMMITTED;", configure, lock, *statements, "COMMIT;"])


def _alone(namespace: Namespace, migration: Migration, patience: Patience) -> str:
    """Return a migration without a transaction; what a run that was cut off has left is dropped first."""
    lines = [
        _literal("session_lock", namespace, lock_key(namespace)),
        _literal("configure", namespace, configuration(patience, 4, local=False)),
        # First, so that a part that was applied before fails before it changes anything.
        _literal("refuse_applied", namespace, row_of(migration, duration_ms=0)),
    ]
    if migration.index:
        lines.append(drop_index(migration, namespace) + ";")
    lines.append(migration.render(namespace).rstrip())
    if migration.index:
        lines.append(
            _literal("refuse_invalid", namespace, {"index": f"{namespace.identifier}.{migration.index}"})
        )
    lines.append(_literal("record", namespace, row_of(migration, duration_ms=0)))
    lines.append("RESET lock_timeout;\nRESET statement_timeout;\nRESET search_path;")
    lines.append(_literal("session_unlock", namespace, lock_key(namespace)))
    return "\n".join(lines)


def _literal(name: str, namespace: Namespace, values: Mapping[str, str | int | bool | None]) -> str:
    """Return a named statement with quoted literals where it would have its values bound."""
    literals = {key: sql.Literal(value).as_string() for key, value in values.items()}
    return _SQL.render(name, namespace).decode() % literals + ";"
