"""The files that are shipped, and the script that `render` makes of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from psycopg import sql

from parkkeeper import migrations
from parkkeeper.database import sql_root
from parkkeeper.errors import InvalidArgument
from parkkeeper.migrations import Migration
from parkkeeper.namespace import Namespace
from programs import psql

SHIPPED = [migration for family in migrations.FAMILIES for migration in migrations.packaged(family)]
each_file = pytest.mark.parametrize("migration", SHIPPED, ids=lambda m: f"{m.family}/{m.label}")
each_family = pytest.mark.parametrize("family", migrations.FAMILIES)


def code(text: str) -> str:
    """Return SQL without comments."""
    return re.sub(r"--[^\n]*", "", text)


@each_file
def test_a_shipped_file_has_no_token_but_the_schemas(migration: Migration) -> None:
    assert set(re.findall(r"\{[A-Za-z_]+\}", migration.sql)) <= {"{schema}"}


@each_file
def test_a_shipped_file_names_no_other_schema_of_users(migration: Migration) -> None:
    assert not re.search(r'(?i)\b(public|information_schema)"?\.', code(migration.sql))


@each_file
def test_a_shipped_file_leaves_transactions_to_the_runner(migration: Migration) -> None:
    if not migration.transaction:
        return
    assert not re.search(
        r"(?im)^\s*(COMMIT|ROLLBACK|START TRANSACTION|BEGIN\s*;|VACUUM|.*\bCONCURRENTLY\b)",
        code(migration.sql),
    )


@each_file
def test_a_shipped_file_says_what_it_is_for(migration: Migration) -> None:
    assert migration.sql.startswith("-- ")
    assert migration.sql.endswith("\n")


def test_the_landmarks_keep_their_numbers() -> None:
    labels = {(m.family, m.label) for m in SHIPPED}
    assert ("queue", "0032_failed_terminal_retention.sql") in labels
    assert ("memory", "0009_parked_not_lost.sql") in labels


def data(connection, namespace: str) -> dict[str, list[str]]:
    """Every row of the namespace, but for times, oids and generated secrets, which differ from run to run."""
    tables = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r' ORDER BY 1",
        [namespace],
    ).fetchall()
    rows = {}
    for (table,) in tables:
        statement = sql.SQL("SELECT to_jsonb(t) FROM {} AS t").format(sql.Identifier(namespace, table))
        rows[table] = sorted(
            repr({key: value is None if differs(key, value) else value for key, value in row.items()})
            for (row,) in connection.execute(statement)
        )
    return rows


def differs(column: str, value: object) -> bool:
    return column.endswith(("_at", "duration_ms", "_oid")) or (column == "value" and len(str(value)) > 40)


@each_family
@pytest.mark.parametrize("tool", ["psycopg", "psql"])
def test_the_rendered_script_applied_by_another_tool_gives_what_migrate_gives(
    connection, dsn: str, namespace: str, catalog, family: str, tool: str, tmp_path: Path
) -> None:
    migrations.migrate(connection, namespace, family, queue_slots=5)
    ours, rows = catalog(namespace=namespace), data(connection, namespace)
    connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(namespace)))

    script = migrations.render(namespace, family, queue_slots=5)
    if tool == "psycopg":
        connection.execute(script.encode())
    else:
        path = tmp_path / "script.sql"
        path.write_text(script, encoding="utf-8")
        command = [psql(), "--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1", "-f", path, dsn]
        subprocess.run(command, check=True, capture_output=True)
    assert catalog(namespace=namespace) == ours
    assert data(connection, namespace) == rows
    migrations.require(connection, namespace, family)
    assert migrations.migrate(connection, namespace, family) == []


def test_both_families_can_be_rendered_into_one_namespace(connection, namespace: str) -> None:
    for family in migrations.FAMILIES:
        connection.execute(migrations.render(namespace, family, queue_slots=4).encode())
    for family in migrations.FAMILIES:
        migrations.require(connection, namespace, family)


def test_a_script_up_to_a_target_is_continued_by_migrate(connection, namespace: str) -> None:
    connection.execute(migrations.render(namespace, "queue", target=31, queue_slots=6).encode())
    pending = [m.version for m in migrations.status(connection, namespace, "queue").pending]
    assert pending[0] == 32
    assert [m.version for m in migrations.migrate(connection, namespace, "queue")] == pending


def test_a_script_that_meets_an_error_leaves_no_half_of_a_migration(connection, namespace: str) -> None:
    script = migrations.render(namespace, "queue", queue_slots=4)
    broken = script.replace("CREATE VIEW", "CREATE VEIW", 1)
    assert broken != script
    with pytest.raises(Exception, match="VEIW"):
        connection.execute(broken.encode())
    connection.rollback()
    assert migrations.migrate(connection, namespace, "queue")
    migrations.require(connection, namespace, "queue")


@each_family
def test_rendering_needs_no_database_and_puts_the_name_in_everywhere(family: str) -> None:
    script = migrations.render("tenant_7", family)
    assert "{schema}" not in script
    assert script.count(Namespace("tenant_7").identifier) >= sum(
        m.sql.count("{schema}") for m in SHIPPED if m.family == family
    )
    for migration in migrations.packaged(family):
        assert f"-- {migration.label} sha256 {migration.sha256}" in script
    with pytest.raises(InvalidArgument, match="target 9999"):
        migrations.render("tenant_7", family, target=9999)


def test_every_file_below_the_folders_of_migrations_is_shipped() -> None:
    for family in migrations.FAMILIES:
        found = {path.name for path in (sql_root() / family / "migrations").iterdir()}
        assert found == {migration.label for migration in migrations.packaged.__wrapped__(family)}
