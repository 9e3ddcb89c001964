"""Migrations without a transaction: a concurrent index is valid and recorded, or it is built again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from parkkeeper import migrations
from parkkeeper.database import advisory_key
from parkkeeper.errors import MigrationError
from programs import psql

Ship = Callable[[Mapping[str, str]], None]
Ledger = Callable[[], list[int]]

ONE = {"0001_one.sql": "CREATE TABLE {schema}.one (id bigint PRIMARY KEY, more text);\n"}
INDEX = ONE | {
    "0002_index.sql": "-- Built while the table is in use.\n-- migrate: transaction=off\n"
    "CREATE INDEX CONCURRENTLY one_more_idx ON {schema}.one (more)\n    WHERE more IS NOT NULL;\n"
}
UNIQUE = ONE | {
    "0002_index.sql": "-- migrate: transaction=off\n"
    "CREATE UNIQUE INDEX CONCURRENTLY one_more_idx ON {schema}.one (more);\n"
}
DROPPED = INDEX | {
    "0003_drop.sql": "-- migrate: transaction=off\nDROP INDEX CONCURRENTLY IF EXISTS {schema}.one_more_idx;\n"
}


@pytest.fixture
def valid(connection, namespace: str) -> Callable[[], bool | None]:
    """Whether the index can be used; None if there is none."""

    def look() -> bool | None:
        row = connection.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)",
            [f"{namespace}.one_more_idx"],
        ).fetchone()
        return row and row[0]

    return look


def locks_held(connection, namespace: str) -> int:
    key = advisory_key(namespace, "migrate")
    (count,) = connection.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        " AND ((classid::bigint << 32) | objid::bigint) = %s",
        [key],
    ).fetchone()
    return count


def test_the_index_is_built_outside_of_a_transaction_recorded_and_the_session_as_before(
    connection, namespace: str, ship: Ship, ledger: Ledger, valid
) -> None:
    names = ("lock_timeout", "search_path", "statement_timeout")
    shown = {name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in names}
    ship(INDEX)
    assert [m.version for m in migrations.migrate(connection, namespace, "queue")] == [1, 2]
    assert (valid(), ledger(), locks_held(connection, namespace)) == (True, [1, 2], 0)
    assert {name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in names} == shown
    assert migrations.migrate(connection, namespace, "queue") == []
    assert migrations.verify(connection, namespace).differences == ()


def test_an_index_is_dropped_without_blocking_too(
    connection, namespace: str, ship: Ship, ledger: Ledger, valid
) -> None:
    ship(DROPPED)
    migrations.migrate(connection, namespace, "queue")
    assert (valid(), ledger()) == (None, [1, 2, 3])
    assert migrations.verify(connection, namespace).differences == ()


def test_a_build_that_fails_is_named_and_built_anew_by_the_next_run(
    connection, namespace: str, ship: Ship, ledger: Ledger, valid
) -> None:
    ship(ONE)
    migrations.migrate(connection, namespace, "queue")
    table = sql.Identifier(namespace, "one")
    connection.execute(sql.SQL("INSERT INTO {} VALUES (1, 'rosebud'), (2, 'rosebud')").format(table))
    ship(UNIQUE)
    with pytest.raises(
        MigrationError,
        match=r"0002_index\.sql failed \(23505, UniqueViolation\): an invalid index may be left",
    ) as failed:
        migrations.migrate(connection, namespace, "queue")
    assert "rosebud" not in str(failed.value)
    assert (valid(), ledger(), locks_held(connection, namespace)) == (False, [1], 0)
    connection.execute(sql.SQL("DELETE FROM {} WHERE id = 2").format(table))
    assert [m.version for m in migrations.migrate(connection, namespace, "queue")] == [2]
    assert (valid(), ledger()) == (True, [1, 2])


def test_a_runner_that_dies_while_it_builds_leaves_what_the_next_one_repairs(
    connection, connect, namespace: str, ship: Ship, ledger: Ledger, valid, in_thread, until
) -> None:
    ship(ONE)
    migrations.migrate(connection, namespace, "queue")
    ship(INDEX)
    runner, writer = connect(), connect()
    caught: list[BaseException] = []

    def run() -> None:
        try:
            migrations.migrate(runner, namespace, "queue")
        except psycopg.OperationalError as lost:
            caught.append(lost)

    with writer.transaction():
        # The build waits for this transaction, whose row it must see.
        writer.execute(sql.SQL("INSERT INTO {} VALUES (1, 'x')").format(sql.Identifier(namespace, "one")))
        thread = in_thread(run)
        until(lambda: valid() is False)
        connection.execute("SELECT pg_terminate_backend(%s)", [runner.info.backend_pid])
        thread.join(30)
    assert [type(error) for error in caught] == [psycopg.errors.AdminShutdown]
    assert (valid(), ledger()) == (False, [1])
    assert [m.version for m in migrations.migrate(connection, namespace, "queue")] == [2]
    assert (valid(), ledger()) == (True, [1, 2])


def test_an_index_that_was_finished_but_not_recorded_is_recorded_and_not_built_again(
    connection, namespace: str, ship: Ship, ledger: Ledger, valid
) -> None:
    ship(INDEX)
    migrations.migrate(connection, namespace, "queue")
    oid = "SELECT to_regclass(%s)::oid"
    before = connection.execute(oid, [f"{namespace}.one_more_idx"]).fetchone()
    connection.execute(
        sql.SQL("DELETE FROM {} WHERE version = 2").format(sql.Identifier(namespace, "schema_migration"))
    )
    assert [m.version for m in migrations.migrate(connection, namespace, "queue")] == [2]
    assert connection.execute(oid, [f"{namespace}.one_more_idx"]).fetchone() == before


def test_two_runners_at_once_build_it_once_and_do_not_deadlock(
    connection, connect, namespace: str, ship: Ship, ledger: Ledger, in_thread, until
) -> None:
    # Whoever waited for the lock in a statement would hold a snapshot that the build waits for.
    ship(ONE)
    migrations.migrate(connection, namespace, "queue")
    ship(INDEX)
    runners, writer = [connect(), connect()], connect()
    applied: list[int] = []

    def run(session: psycopg.Connection[Any]) -> None:
        applied.extend(m.version for m in migrations.migrate(session, namespace, "queue"))

    building = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ANY (%s)"
    trying = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%try_advisory%%' AND pid = ANY (%s)"
    pids = [runner.info.backend_pid for runner in runners]
    with writer.transaction():
        writer.execute(sql.SQL("INSERT INTO {} VALUES (1, 'x')").format(sql.Identifier(namespace, "one")))
        threads = [in_thread(lambda runner=runner: run(runner)) for runner in runners]
        until(lambda: connection.execute(building, [pids]).fetchone() == (1,))
        until(lambda: connection.execute(trying, [pids]).fetchone() == (1,))
    for thread in threads:
        thread.join(30)
    assert applied == [2]
    assert ledger() == [1, 2]


def test_a_session_behind_a_pooler_is_refused(
    connection, connect, namespace: str, ship: Ship, monkeypatch
) -> None:
    # What tells a pooler: the backend is not the one that the driver was told of.
    ship(ONE)
    migrations.migrate(connection, namespace, "queue")
    ship(INDEX)
    other = connect()
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(lambda _: other.pgconn.backend_pid))
    with pytest.raises(MigrationError, match="goes through a pooler: connect to the server itself"):
        migrations.migrate(connection, namespace, "queue")


def test_the_rendered_script_can_be_applied_by_psql_and_does_not_drop_what_is_recorded(
    connection, dsn: str, namespace: str, ship: Ship, ledger: Ledger, valid, tmp_path: Path
) -> None:
    ship(DROPPED)
    script = migrations.render(namespace, "queue", target=2)
    path = tmp_path / "script.sql"
    path.write_text(script, encoding="utf-8")
    command = [psql(), "--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1", "-f", path, dsn]
    subprocess.run(command, check=True, capture_output=True)
    assert (valid(), ledger()) == (True, [1, 2])
    assert migrations.verify(connection, namespace).differences == ()
    oid = connection.execute("SELECT to_regclass(%s)::oid", [f"{namespace}.one_more_idx"]).fetchone()
    alone = path.with_name("alone.sql")
    alone.write_text(script.partition("-- 0002_index.sql")[2].partition("\n")[2], encoding="utf-8")
    again = subprocess.run([*command[:-2], alone, dsn], capture_output=True, text=True)
    assert again.returncode != 0
    assert "division by zero" in again.stderr
    assert connection.execute("SELECT to_regclass(%s)::oid", [f"{namespace}.one_more_idx"]).fetchone() == oid


@pytest.mark.parametrize(
    "text",
    [
        "-- migrate: transaction=on\nSELECT 1;\n",
        "-- migrate: fast\nSELECT 1;\n",
        "-- migrate: transaction=off\nSELECT 1;\n",
        "-- migrate: transaction=off\nCREATE INDEX CONCURRENTLY ON {schema}.one (more);\n",
        "-- migrate: transaction=off\nCREATE INDEX CONCURRENTLY IF NOT EXISTS a ON {schema}.one (more);\n",
        "-- migrate: transaction=off\nCREATE INDEX a ON {schema}.one (more);\n",
        "-- migrate: transaction=off\nDROP INDEX CONCURRENTLY {schema}.a;\n",
        "-- migrate: transaction=off\nCREATE INDEX CONCURRENTLY a ON {schema}.one (more);\nSELECT 1;\n",
    ],
)
def test_a_file_that_could_not_be_repeated_is_not_shipped(ship: Ship, text: str) -> None:
    ship({"0001_one.sql": text})
    with pytest.raises(ValueError, match=r"0001_one\.sql"):
        migrations.packaged("queue")
