"""The ledger: what was applied is known by its hash; a ledger that cannot be believed stops everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from parkkeeper import migrations
from parkkeeper.errors import (
    DatabaseNewer,
    DatabaseOutdated,
    InvalidArgument,
    LedgerMissing,
    MigrationDrift,
    MigrationError,
    UnknownNamespace,
)

Ship = Callable[[Mapping[str, str]], None]
Ledger = Callable[[], list[int]]

ONE = {"0001_one.sql": "CREATE TABLE {schema}.one (\n    id bigint PRIMARY KEY\n);\n"}
TWO = ONE | {"0002_two.sql": "CREATE TABLE {schema}.two (id bigint PRIMARY KEY);\n"}
THREE = TWO | {"0005_five.sql": "CREATE TABLE {schema}.five (id bigint PRIMARY KEY);\n"}

READERS = [migrations.migrate, migrations.plan, migrations.status, migrations.require]
everyone = pytest.mark.parametrize("action", READERS, ids=lambda action: action.__name__)


def test_the_ledger_tells_what_was_applied_when_and_by_whom(connection, namespace: str, ship: Ship) -> None:
    ship(THREE)
    applied = migrations.migrate(connection, namespace, "queue")
    assert [(row.version, row.name) for row in applied] == [(1, "one"), (2, "two"), (5, "five")]
    assert migrations.status(connection, namespace, "queue").applied == tuple(applied)
    statement = sql.SQL(
        "SELECT count(*) FROM {}.schema_migration"
        " WHERE applied_by = session_user AND applied_at <= clock_timestamp() AND duration_ms >= 0"
    ).format(sql.Identifier(namespace))
    assert connection.execute(statement).fetchone() == (3,)


def test_a_second_run_applies_nothing(connection, namespace: str, ship: Ship, catalog) -> None:
    ship(THREE)
    migrations.migrate(connection, namespace, "queue")
    before = catalog(namespace=namespace)
    assert migrations.migrate(connection, namespace, "queue") == []
    assert catalog(namespace=namespace) == before
    assert migrations.plan(connection, namespace, "queue") == []
    migrations.require(connection, namespace, "queue")


def test_the_plan_is_what_migrate_then_applies_and_reads_only(
    connection, namespace: str, ship: Ship, catalog
) -> None:
    ship(THREE)
    before = catalog()
    assert [m.label for m in migrations.plan(connection, namespace, "queue")] == list(THREE)
    assert [m.label for m in migrations.plan(connection, namespace, "queue", target=2)] == list(TWO)
    assert catalog() == before
    assert [m.version for m in migrations.migrate(connection, namespace, "queue", target=2)] == [1, 2]
    assert [m.label for m in migrations.status(connection, namespace, "queue").pending] == ["0005_five.sql"]
    assert [m.version for m in migrations.migrate(connection, namespace, "queue")] == [5]
    assert migrations.migrate(connection, namespace, "queue", target=1) == []


@pytest.mark.parametrize("target", [0, 3, 99, -1, True, 2.0, "2"])
def test_a_target_that_is_no_migration_is_refused(
    connection, namespace: str, ship: Ship, catalog, target: int
) -> None:
    ship(THREE)
    before = catalog()
    with pytest.raises(InvalidArgument, match=rf"target {target} is refused.*there are 1 to 5"):
        migrations.migrate(connection, namespace, "queue", target=target)
    assert catalog() == before


@pytest.mark.parametrize("slots", [3, 0, -4, 257, 16.5, True, None], ids=str)
def test_a_ring_of_an_impossible_size_is_refused(connection, namespace: str, catalog, slots) -> None:
    before = catalog()
    with pytest.raises(InvalidArgument, match="queue_slots"):
        migrations.migrate(connection, namespace, "queue", queue_slots=slots)
    with pytest.raises(InvalidArgument, match="queue_slots"):
        migrations.render(namespace, "queue", queue_slots=slots)
    assert catalog() == before


@everyone
def test_an_unknown_family_is_refused_by_name(connection, namespace: str, action) -> None:
    with pytest.raises(InvalidArgument, match=r"family 'cache' is refused: one of queue, memory"):
        action(connection, namespace, "cache")


def test_one_release_has_one_hash_whatever_the_line_ends_of_the_checkout(
    connection, namespace: str, ship: Ship
) -> None:
    ship(TWO)
    unix = migrations.packaged("queue")
    migrations.migrate(connection, namespace, "queue")
    for ends in ("\r\n", "\r"):
        ship({name: text.replace("\n", ends) for name, text in TWO.items()})
        assert migrations.packaged("queue") == unix
        migrations.require(connection, namespace, "queue")


def test_the_hash_is_of_the_text_before_the_schema_is_put_in(
    connect, connection, namespace: str, ship: Ship
) -> None:
    ship(ONE)
    (applied,) = migrations.migrate(connection, namespace, "queue")
    other = f"{namespace}_b"
    try:
        (elsewhere,) = migrations.migrate(connection, other, "queue")
    finally:
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(other)))
    assert elsewhere.sha256 == applied.sha256 == migrations.packaged("queue")[0].sha256


@everyone
def test_a_file_that_reads_differently_than_when_applied_is_named(
    connection, namespace: str, ship: Ship, ledger: Ledger, action
) -> None:
    ship(TWO)
    migrations.migrate(connection, namespace, "queue")
    ship(THREE | {"0002_two.sql": TWO["0002_two.sql"] + "-- a comment\n"})
    with pytest.raises(MigrationDrift, match=r"queue/migrations/0002_two\.sql is not what was applied"):
        action(connection, namespace, "queue")
    assert ledger() == [1, 2]


@everyone
def test_a_database_newer_than_the_package_is_refused(
    connection, namespace: str, ship: Ship, ledger: Ledger, action
) -> None:
    ship(THREE)
    migrations.migrate(connection, namespace, "queue")
    ship(TWO)
    with pytest.raises(DatabaseNewer, match=r"0005_five is applied but unknown"):
        action(connection, namespace, "queue")
    assert ledger() == [1, 2, 5]


@everyone
def test_a_lower_number_that_was_never_applied_is_refused(
    connection, namespace: str, ship: Ship, ledger: Ledger, action
) -> None:
    ship({name: text for name, text in THREE.items() if name != "0002_two.sql"})
    migrations.migrate(connection, namespace, "queue")
    ship(THREE)
    with pytest.raises(MigrationDrift, match=r"0002_two\.sql was never applied although 0005 was"):
        action(connection, namespace, "queue")
    assert ledger() == [1, 5]


def test_a_namespace_without_tables_and_one_that_lags_are_told_apart(
    connection, namespace: str, ship: Ship
) -> None:
    ship(THREE)
    with pytest.raises(
        UnknownNamespace, match=rf"has no queue tables: run `parkkeeper migrate.*{namespace}`"
    ):
        migrations.require(connection, namespace, "queue")
    migrations.migrate(connection, namespace, "queue", target=2)
    with pytest.raises(
        DatabaseOutdated, match=r"lacks queue migration 0005_five\.sql: run `parkkeeper migrate"
    ):
        migrations.require(connection, namespace, "queue")


def test_families_in_one_namespace_do_not_count_for_each_other(
    connection, namespace: str, ship: Ship
) -> None:
    ship(THREE)
    migrations.migrate(connection, namespace, "queue")
    connection.execute(
        sql.SQL("UPDATE {}.schema_migration SET family = 'memory' WHERE version = 5").format(
            sql.Identifier(namespace)
        )
    )
    assert [m.version for m in migrations.status(connection, namespace, "queue").pending] == [5]


@everyone
@pytest.mark.parametrize(
    "damage",
    [
        "ALTER TABLE {}.schema_migration RENAME COLUMN sha256 TO checksum",
        "ALTER TABLE {}.schema_migration RENAME TO old_ledger;"
        "CREATE VIEW {}.schema_migration AS SELECT 1 AS version",
    ],
    ids=["renamed column", "another relation"],
)
def test_a_ledger_that_cannot_be_read_is_an_error_and_never_nothing_applied(
    connection, namespace: str, ship: Ship, catalog, action, damage: str
) -> None:
    ship(TWO)
    migrations.migrate(connection, namespace, "queue")
    name = sql.Identifier(namespace)
    connection.execute(sql.SQL(damage).format(*[name] * damage.count("{}")))  # type: ignore[arg-type]
    before = catalog(namespace=namespace)
    with pytest.raises(
        MigrationError, match=rf"ledger of namespace {namespace} cannot be read \(42703\)"
    ) as refused:
        action(connection, namespace, "queue")
    assert not isinstance(refused.value, UnknownNamespace)
    assert catalog(namespace=namespace) == before


HIDINGS = {
    "emptied": "TRUNCATE {}.schema_migration",
    "behind a view": "ALTER TABLE {}.schema_migration RENAME TO hidden;"
    "CREATE VIEW {}.schema_migration AS SELECT * FROM {}.hidden WHERE false",
}


@everyone
@pytest.mark.parametrize("hiding", HIDINGS)
def test_tables_without_a_line_in_the_ledger_are_an_error_and_never_nothing_applied(
    connection, namespace: str, ship: Ship, action, hiding: str
) -> None:
    ship(TWO)
    migrations.migrate(connection, namespace, "queue")
    hide, name = HIDINGS[hiding], sql.Identifier(namespace)
    connection.execute(sql.SQL(hide).format(*[name] * hide.count("{}")))  # type: ignore[arg-type]
    with pytest.raises(LedgerMissing, match=rf"namespace {namespace} holds one, and its ledger has no line"):
        action(connection, namespace, "queue")


def test_a_ledger_whose_lines_are_hidden_from_the_role_is_an_error(
    connection, connect, namespace: str, ship: Ship
) -> None:
    ship(TWO)
    migrations.migrate(connection, namespace, "queue")
    names = {"n": sql.Identifier(namespace), "r": sql.Identifier(f"{namespace}_role")}
    connection.execute(
        sql.SQL(
            "ALTER TABLE {n}.schema_migration ENABLE ROW LEVEL SECURITY; CREATE ROLE {r};"
            "GRANT USAGE ON SCHEMA {n} TO {r}; GRANT SELECT ON ALL TABLES IN SCHEMA {n} TO {r}"
        ).format(**names)
    )
    session = connect()
    try:
        session.execute(sql.SQL("SET ROLE {r}").format(**names))
        with pytest.raises(LedgerMissing, match="that this role can see"):
            migrations.status(session, namespace, "queue")
    finally:
        session.close()
        connection.execute(sql.SQL("DROP OWNED BY {r} CASCADE; DROP ROLE {r}").format(**names))


def test_a_ledger_is_read_whatever_dates_look_like(connection, connect, namespace: str, ship: Ship) -> None:
    ship(TWO)
    session = connect()
    session.execute("SET datestyle = 'German'")
    assert len(migrations.migrate(session, namespace, "queue")) == 2
    assert migrations.status(session, namespace, "queue") == migrations.status(connection, namespace, "queue")


@everyone
@pytest.mark.parametrize("right", ["table", "schema"])
def test_a_ledger_that_may_not_be_read_is_an_error_and_never_nothing_applied(
    connection, connect, namespace: str, ship: Ship, action, right: str
) -> None:
    ship(TWO)
    migrations.migrate(connection, namespace, "queue")
    role = sql.Identifier(f"{namespace}_role")
    name = sql.Identifier(namespace)
    connection.execute(sql.SQL("CREATE ROLE {}").format(role))
    try:
        if right == "table":
            connection.execute(sql.SQL("GRANT USAGE, CREATE ON SCHEMA {} TO {}").format(name, role))
        session = connect()
        session.execute(sql.SQL("SET ROLE {}").format(role))
        with pytest.raises(
            MigrationError, match=rf"ledger of namespace {namespace} cannot be read \(42501\)"
        ):
            action(session, namespace, "queue")
        session.execute("RESET ROLE")
    finally:
        connection.execute(sql.SQL("DROP OWNED BY {}; DROP ROLE {}").format(role, role))


def test_the_callers_own_row_factory_does_not_change_how_the_ledger_is_read(
    connect, namespace: str, ship: Ship
) -> None:
    ship(TWO)
    session = connect()
    session.row_factory = psycopg.rows.dict_row
    assert [m.version for m in migrations.migrate(session, namespace, "queue")] == [1, 2]
    migrations.require(session, namespace, "queue")


def test_the_callers_own_kind_of_cursor_does_not_change_how_the_ledger_is_read(
    connection, namespace: str, ship: Ship
) -> None:
    ship(ONE)
    connection.cursor_factory = psycopg.ClientCursor
    assert [row.version for row in migrations.migrate(connection, namespace, "queue")] == [1]
    assert [row.version for row in migrations.status(connection, namespace, "queue").applied] == [1]


def test_what_a_package_must_not_ship_is_refused(ship: Ship) -> None:
    for files in ({"1_one.sql": ""}, {"0001-one.sql": ""}, {"\u0660\u0660\u0660\u0661_one.sql": ""}):
        ship(files)
        with pytest.raises(ValueError, match=r"a migration is called NNNN_name\.sql"):
            migrations.packaged("queue")
    ship({"0001_one.sql": "", "0001_two.sql": ""})
    with pytest.raises(ValueError, match="two migrations have the same number"):
        migrations.packaged("queue")


def test_a_migration_is_a_value(ship: Ship) -> None:
    ship(ONE)
    (migration,) = migrations.packaged("queue")
    with pytest.raises(AttributeError):
        migration.version = 2  # type: ignore[misc]
    assert replace(migration, version=7).label == "0007_one.sql"
