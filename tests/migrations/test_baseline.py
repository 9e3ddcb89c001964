"""A schema with tables and no ledger: refused by all, and taken over only when it is what the migrations make."""

from __future__ import annotations

import pytest
from psycopg import sql

from parkkeeper import migrations
from parkkeeper.errors import LedgerMissing, MigrationDrift, MigrationError, UnknownNamespace

READERS = [migrations.migrate, migrations.plan, migrations.status, migrations.require]


def lose_the_ledger(connection, namespace: str) -> None:
    connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(namespace, "schema_migration")))


@pytest.mark.parametrize("action", READERS, ids=lambda action: action.__name__)
@pytest.mark.parametrize(
    "made", ["TABLE {}.orders (id bigint)", "VIEW {}.orders AS SELECT 1 AS one", "SEQUENCE {}.orders"]
)
def test_a_schema_with_objects_of_others_is_refused_and_told_what_to_do(
    connection, namespace: str, catalog, action, made: str
) -> None:
    name = sql.Identifier(namespace)
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    connection.execute(sql.SQL("CREATE " + made).format(name))  # type: ignore[arg-type]
    before = catalog(namespace=namespace)
    with pytest.raises(
        LedgerMissing, match=r"holds orders and no ledger.*parkkeeper baseline.*another namespace"
    ):
        action(connection, namespace, "memory")
    assert catalog(namespace=namespace) == before


def test_an_empty_schema_that_a_dba_made_is_not_refused(connection, namespace: str) -> None:
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(namespace)))
    assert migrations.status(connection, namespace, "memory").applied == ()


@pytest.mark.parametrize("family", migrations.FAMILIES)
def test_tables_whose_ledger_is_lost_are_taken_over(connection, namespace: str, family: str, catalog) -> None:
    migrations.migrate(connection, namespace, family, queue_slots=5)
    before = catalog(namespace=namespace)
    lose_the_ledger(connection, namespace)
    taken = migrations.baseline(connection, namespace, family)
    assert [row.version for row in taken] == [m.version for m in migrations.packaged(family)]
    migrations.require(connection, namespace, family)
    assert catalog(namespace=namespace) == before
    assert migrations.verify(connection, namespace).differences == ()
    with pytest.raises(MigrationError, match=r"knows the .* family: there is nothing to take over"):
        migrations.baseline(connection, namespace, family)


def test_an_older_install_is_taken_over_as_what_it_is_and_goes_on_from_there(
    connection, namespace: str
) -> None:
    migrations.migrate(connection, namespace, "memory", target=4)
    lose_the_ledger(connection, namespace)
    with pytest.raises(MigrationDrift, match=r"missing .*; nothing was written"):
        migrations.baseline(connection, namespace, "memory")
    with pytest.raises(LedgerMissing):
        migrations.status(connection, namespace, "memory")
    assert [m.version for m in migrations.baseline(connection, namespace, "memory", target=4)] == [1, 2, 3, 4]
    assert migrations.migrate(connection, namespace, "memory")
    assert migrations.verify(connection, namespace).differences == ()


def test_both_families_are_taken_over_one_after_the_other(connection, namespace: str) -> None:
    for family in migrations.FAMILIES:
        migrations.migrate(connection, namespace, family, queue_slots=4)
    lose_the_ledger(connection, namespace)
    for family in migrations.FAMILIES:
        migrations.baseline(connection, namespace, family)
        migrations.require(connection, namespace, family)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("DROP INDEX {n}.observation_backlog_idx", "missing index observation.observation_backlog_idx"),
        ("DROP TABLE {n}.settings", "missing table settings"),
        ("DELETE FROM {n}.settings WHERE name = 'digest_key'", "missing setting digest_key"),
    ],
)
def test_what_is_not_as_the_migrations_make_it_is_not_taken_over(
    connection, namespace: str, damage: str, named: str
) -> None:
    migrations.migrate(connection, namespace, "memory")
    lose_the_ledger(connection, namespace)
    connection.execute(damage.replace("{n}", namespace).encode())
    with pytest.raises(MigrationDrift, match=named):
        migrations.baseline(connection, namespace, "memory")
    with pytest.raises(LedgerMissing):
        migrations.status(connection, namespace, "memory")


def test_what_is_not_there_is_not_taken_over(connection, namespace: str) -> None:
    with pytest.raises(UnknownNamespace):
        migrations.baseline(connection, namespace, "memory")
