"""`verify`: a namespace is what its migrations make, or what differs is named."""

from __future__ import annotations

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from parkkeeper import migrations
from parkkeeper.database import connect
from parkkeeper.errors import DatabaseNewer, MigrationError, UnknownNamespace
from parkkeeper.queue import QueueStorage


def test_a_fresh_install_of_both_families_has_no_difference_and_leaves_no_trace(
    connection, namespace: str, catalog
) -> None:
    for family in migrations.FAMILIES:
        migrations.migrate(connection, namespace, family, queue_slots=5)
    before = catalog(namespace=namespace), catalog(outside=namespace)
    found = migrations.verify(connection, namespace)
    assert found.differences == ()
    assert found.versions == {f: migrations.packaged(f)[-1].version for f in migrations.FAMILIES}
    assert (catalog(namespace=namespace), catalog(outside=namespace)) == before


@pytest.mark.parametrize("family", migrations.FAMILIES)
def test_an_upgrade_step_by_step_equals_a_fresh_install_at_every_step(
    connection, namespace: str, family: str
) -> None:
    versions = [m.version for m in migrations.packaged(family)]
    # Every step of the short family, some of the long one: a fresh install of it takes a second.
    for version in versions if family == "memory" else versions[:: len(versions) // 4] + versions[-1:]:
        migrations.migrate(connection, namespace, family, target=version, queue_slots=4)
        assert migrations.verify(connection, namespace).differences == (), version


def test_a_ring_in_use_that_has_grown_is_what_its_migrations_make(connection, namespace: str) -> None:
    migrations.migrate(connection, namespace, "queue", queue_slots=4)
    storage = QueueStorage(connection, namespace)
    storage.enqueue("mail", "welcome", {})
    for claim in storage.claim("mail", 10):
        assert storage.fail(claim, "no") == "retryable"
    for _ in range(3):
        storage.rotate()
        storage.prune_oldest()
    storage.grow(6)
    assert migrations.verify(connection, namespace).differences == ()


DAMAGES = {
    "missing index": (
        "DROP INDEX {n}.observation_backlog_idx",
        "index",
        "observation.observation_backlog_idx",
    ),
    "missing table": ("DROP TABLE {n}.turn_idempotency CASCADE", "table", "turn_idempotency"),
    "missing column": (
        "ALTER TABLE {n}.observation DROP formation_error",
        "column",
        "observation.formation_error",
    ),
    "missing constraint": (
        "ALTER TABLE {n}.observation DROP CONSTRAINT observation_attempts_chk",
        "constraint",
        "observation.observation_attempts_chk",
    ),
    "changed default": (
        "ALTER TABLE {n}.observation ALTER formation_attempts SET DEFAULT 7",
        "column",
        "observation.formation_attempts",
    ),
    "changed nullability": (
        "ALTER TABLE {n}.observation ALTER formation_attempts DROP NOT NULL",
        "column",
        "observation.formation_attempts",
    ),
    "changed comment": (
        "COMMENT ON COLUMN {n}.observation.parked_at IS 'x'",
        "column",
        "observation.parked_at",
    ),
    "changed index": (
        "DROP INDEX {n}.observation_parked_idx; CREATE INDEX observation_parked_idx ON {n}.observation (scope)",
        "index",
        "observation.observation_parked_idx",
    ),
    "changed validity": (
        "UPDATE pg_constraint SET convalidated = false WHERE conname = 'observation_attempts_chk'"
        " AND connamespace = '{n}'::regnamespace",
        "constraint",
        "observation.observation_attempts_chk",
    ),
    "extra index": ("CREATE INDEX mine ON {n}.observation (scope, parked_at)", "index", "observation.mine"),
    "extra table": ("CREATE TABLE {n}.mine (id bigint PRIMARY KEY, t text)", "table", "mine"),
    "extra function": (
        "CREATE FUNCTION {n}.mine(a int) RETURNS int LANGUAGE sql AS 'SELECT a'",
        "function",
        "mine(a integer)",
    ),
    "extra enum": ("CREATE TYPE {n}.mine AS ENUM ('a')", "enum", "mine"),
    "extra view": ("CREATE VIEW {n}.mine AS SELECT scope FROM {n}.observation", "view", "mine"),
    "extra sequence": ("CREATE SEQUENCE {n}.mine", "sequence", "mine"),
    "extra trigger": (
        "CREATE TRIGGER mine BEFORE UPDATE ON {n}.observation FOR EACH ROW"
        " EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "trigger",
        "observation.mine",
    ),
    "extra policy": ("CREATE POLICY mine ON {n}.observation", "policy", "observation.mine"),
    "extra statistics": (
        "CREATE STATISTICS {n}.mine ON scope, log_offset FROM {n}.observation",
        "statistics",
        "mine",
    ),
    "changed table": ("ALTER TABLE {n}.observation ENABLE ROW LEVEL SECURITY", "table", "observation"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_was_changed_by_hand_is_named(connection, namespace: str, damage: str) -> None:
    migrations.migrate(connection, namespace, "memory")
    statement, kind, name = DAMAGES[damage]
    connection.execute(statement.replace("{n}", namespace).encode())
    found = [(d.change, d.kind, d.name) for d in migrations.verify(connection, namespace).differences]
    assert (damage.split()[0], kind, name) in found
    assert [d for d in found if d[2].partition(".")[0] != name.partition(".")[0]] == []


def test_what_changed_is_shown_as_it_should_be_and_as_it_is(connection, namespace: str) -> None:
    migrations.migrate(connection, namespace, "memory")
    statement = sql.SQL("ALTER TABLE {} ALTER formation_attempts SET DEFAULT 7")
    connection.execute(statement.format(sql.Identifier(namespace, "observation")))
    (found,) = migrations.verify(connection, namespace).differences
    assert found.detail == "-DEFAULT 0\n+DEFAULT 7"


@pytest.mark.parametrize("name", ["select_x", "user", "observation", "id"])
def test_a_name_that_occurs_in_the_text_of_objects_makes_no_difference(
    connection, namespace: str, name: str
) -> None:
    # Not in the namespace of the test, which a fixture drops.
    try:
        migrations.migrate(connection, name, "memory")
        assert migrations.verify(connection, name).differences == ()
    finally:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


def test_a_session_that_prints_every_name_with_quotes_sees_no_difference(connection, namespace: str) -> None:
    migrations.migrate(connection, namespace, "queue", queue_slots=4)
    connection.execute("SET quote_all_identifiers = on")
    assert migrations.verify(connection, namespace).differences == ()
    assert connection.execute("SHOW quote_all_identifiers").fetchone() == ("on",)


def test_an_error_of_the_database_is_one_of_ours_and_shows_no_row(connection, namespace: str) -> None:
    migrations.migrate(connection, namespace, "memory", target=1)
    connection.execute("SET default_transaction_read_only = on")
    refused = rf"namespace {namespace}: verify failed \(25006, ReadOnlySqlTransaction\): it left .* not write"
    with pytest.raises(MigrationError, match=refused):
        migrations.verify(connection, namespace)
    with pytest.raises(MigrationError, match=r"0002_.* failed \(25006, ReadOnlySqlTransaction\).* not write"):
        migrations.migrate(connection, namespace, "memory")


def test_a_namespace_that_lags_is_compared_with_what_it_has(connection, namespace: str) -> None:
    migrations.migrate(connection, namespace, "memory", target=4)
    found = migrations.verify(connection, namespace)
    assert (found.versions, found.differences) == ({"memory": 4}, ())


def test_what_cannot_be_made_anew_is_an_error(connection, connect, namespace: str) -> None:
    with pytest.raises(UnknownNamespace):
        migrations.verify(connection, namespace)
    migrations.migrate(connection, namespace, "memory")
    role = sql.Identifier(f"{namespace}_role")
    connection.execute(sql.SQL("CREATE ROLE {}").format(role))
    try:
        connection.execute(
            sql.SQL(
                "GRANT USAGE ON SCHEMA {n} TO {r}; GRANT SELECT ON ALL TABLES IN SCHEMA {n} TO {r}"
            ).format(n=sql.Identifier(namespace), r=role)
        )
        session = connect()
        session.execute(sql.SQL("SET ROLE {}").format(role))
        with pytest.raises(MigrationError, match="needs CREATE on the database"):
            migrations.verify(session, namespace)
        session.close()
    finally:
        connection.execute(sql.SQL("DROP OWNED BY {} CASCADE; DROP ROLE {}").format(role, role))
    connection.execute(
        sql.SQL("INSERT INTO {} VALUES ('memory', 9999, 'later', 'x', now(), 'another', 1)").format(
            sql.Identifier(namespace, "schema_migration")
        )
    )
    with pytest.raises(DatabaseNewer):
        migrations.verify(connection, namespace)


def test_settings_by_which_values_come_into_the_log_are_warned_of(connection, namespace: str) -> None:
    migrations.migrate(connection, namespace, "memory")
    assert migrations.verify(connection, namespace).warnings == ()
    connection.execute("SET log_min_duration_statement = 0")
    connection.execute("SET log_parameter_max_length_on_error = 64")
    warned = migrations.verify(connection, namespace).warnings
    assert [warning.split()[0] for warning in warned] == [
        "log_parameter_max_length",
        "log_parameter_max_length_on_error",
    ]
    connection.execute("SET log_parameter_max_length = 0")
    connection.execute("SET log_parameter_max_length_on_error = 0")
    assert migrations.verify(connection, namespace).warnings == ()


@pytest.fixture
def elsewhere(request: pytest.FixtureRequest, server_dsn: str, connection, namespace: str):
    """A session in a database of the encoding that the test names, which knows no letters but ASCII."""
    connection.execute(
        f"CREATE DATABASE {namespace} TEMPLATE template0 ENCODING '{request.param}' "
        "LOCALE_PROVIDER libc LOCALE 'C'"
    )
    with connect(make_conninfo(server_dsn, dbname=namespace)) as elsewhere:
        yield elsewhere
    connection.execute(f"DROP DATABASE {namespace} WITH (FORCE)")


@pytest.mark.parametrize(
    ("elsewhere", "warning"),
    [("LATIN1", "encoding is LATIN1"), ("UTF8", "knows no letters but ASCII")],
    indirect=["elsewhere"],
)
def test_a_database_that_does_not_know_letters_is_warned_of(elsewhere, warning: str) -> None:
    migrations.migrate(elsewhere, "support", "memory")
    (warned,) = migrations.verify(elsewhere, "support").warnings
    assert warning in warned


@pytest.mark.parametrize("elsewhere", ["SQL_ASCII"], indirect=True)
def test_a_database_that_does_not_know_characters_is_refused(elsewhere) -> None:
    with pytest.raises(MigrationError, match="encoding SQL_ASCII is refused"):
        migrations.migrate(elsewhere, "support", "memory")
    assert elsewhere.execute("SELECT to_regnamespace('support') IS NULL").fetchone() == (True,)
