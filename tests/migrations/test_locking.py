"""Locks: one runner a namespace, writers that wait no longer than they must, and who is in the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from parkkeeper import migrations
from parkkeeper.database import advisory_key
from parkkeeper.errors import InvalidArgument, MigrationBlocked
from parkkeeper.migrations import Patience

Ship = Callable[[Mapping[str, str]], None]
Ledger = Callable[[], list[int]]

ONE = {"0001_one.sql": "CREATE TABLE {schema}.one (id bigint PRIMARY KEY);\n"}
TWO = ONE | {"0002_two.sql": "ALTER TABLE {schema}.one ADD COLUMN more text;\n"}
SHORT = Patience(timedelta(milliseconds=50), attempts=2, runner_timeout=timedelta(milliseconds=100))


@pytest.mark.parametrize("session", [True, False], ids=["session lock", "transaction lock"])
def test_a_runner_that_is_in_the_way_is_named(
    connection, connect, namespace: str, ship: Ship, session: bool
) -> None:
    ship(ONE)
    holder = connect(application_name="the other tool")
    function = "pg_advisory_lock" if session else "pg_advisory_xact_lock"
    with holder.transaction():
        holder.execute(f"SELECT {function}(%s)".encode(), [advisory_key(namespace, "migrate")])
        with pytest.raises(
            MigrationBlocked,
            match=rf"namespace {namespace}: another runner has it "
            rf"\(pid {holder.info.backend_pid}, application_name 'the other tool'\), waited 0\.1 s",
        ):
            migrations.migrate(connection, namespace, "queue", patience=SHORT)
    holder.close()
    assert connection.execute("SELECT to_regnamespace(%s)", [namespace]).fetchone() == (None,)
    assert migrations.migrate(connection, namespace, "queue")


def test_a_runner_of_another_namespace_is_not_in_the_way(
    connection, connect, namespace: str, ship: Ship
) -> None:
    ship(ONE)
    holder = connect()
    with holder.transaction():
        holder.execute("SELECT pg_advisory_xact_lock(%s)", [advisory_key(namespace + "_b", "migrate")])
        assert migrations.migrate(connection, namespace, "queue", patience=SHORT)


def test_a_runner_waits_for_the_one_before_it(
    connection, connect, namespace: str, ship: Ship, ledger: Ledger, in_thread, until
) -> None:
    ship(ONE)
    runner, holder = connect(), connect()
    with holder.transaction():
        holder.execute("SELECT pg_advisory_xact_lock(%s)", [advisory_key(namespace, "migrate")])
        thread = in_thread(lambda: migrations.migrate(runner, namespace, "queue"))
        query = (
            "SELECT query LIKE '%%try_advisory%%' OR query = 'COMMIT' FROM pg_stat_activity WHERE pid = %s"
        )
        until(lambda: connection.execute(query, [runner.info.backend_pid]).fetchone() == (True,))
    thread.join(30)
    assert ledger() == [1]


def test_writers_queue_behind_a_migration_for_no_longer_than_its_lock_timeout(
    connection, connect, namespace: str, ship: Ship, ledger: Ledger, in_thread, until
) -> None:
    """A reader blocks the migration, the migration would block writers: they go on while the reader is still there."""
    ship(ONE)
    migrations.migrate(connection, namespace, "queue")
    ship(TWO)
    table = sql.Identifier(namespace, "one")
    reader, writer, runner = connect(), connect(), connect()
    written, stop = [0], threading.Event()
    applied: list[migrations.AppliedMigration] = []
    patience = Patience(timedelta(milliseconds=100), attempts=100)

    def write() -> None:
        while not stop.is_set():
            # Far above the migration's timeout: it fails only if the migration does not let go in time.
            with writer.transaction():
                writer.execute("SET LOCAL lock_timeout = '20s'")
                statement = sql.SQL("INSERT INTO {} (id) VALUES (%s)").format(table)
                writer.execute(statement, [written[0]])
            written[0] += 1

    queued = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %s AND NOT granted)"
    with reader.transaction():
        reader.execute(sql.SQL("SELECT count(*) FROM {}").format(table))
        thread = in_thread(
            lambda: applied.extend(migrations.migrate(runner, namespace, "queue", patience=patience))
        )
        until(lambda: connection.execute(queued, [runner.info.backend_pid]).fetchone() == (True,))
        writers = in_thread(write)
        until(lambda: connection.execute(queued, [writer.info.backend_pid]).fetchone() == (True,))
        behind = written[0]
        until(lambda: written[0] > behind + 10)
        assert ledger() == [1]
    thread.join(30)
    stop.set()
    writers.join(30)
    assert ledger() == [1, 2]
    assert applied[0].retries >= 1


def test_a_ledger_that_is_locked_is_waited_for_no_longer_than_the_lock_timeout(
    connection, connect, namespace: str, ship: Ship, ledger: Ledger
) -> None:
    ship(ONE)
    migrations.migrate(connection, namespace, "queue")
    ship(TWO)
    # The session's own timeouts would let it wait for longer.
    holder = connect()
    with holder.transaction():
        holder.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(namespace, "schema_migration")))
        with pytest.raises(
            MigrationBlocked,
            match=rf"namespace {namespace}: the ledger did not get its locks in 2 attempts of 0\.05 s \(55P03\)",
        ):
            migrations.migrate(connection, namespace, "queue", patience=SHORT)
    migrations.migrate(connection, namespace, "queue", patience=SHORT)
    assert ledger() == [1, 2]


def test_a_retry_is_reported_with_the_file_and_the_attempt(
    connection, connect, namespace: str, ship: Ship, caplog: pytest.LogCaptureFixture
) -> None:
    ship(ONE)
    migrations.migrate(connection, namespace, "queue")
    ship(TWO)
    holder = connect()
    with holder.transaction(), caplog.at_level("INFO", "parkkeeper"):
        holder.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(namespace, "one")))
        with pytest.raises(MigrationBlocked):
            migrations.migrate(connection, namespace, "queue", patience=SHORT)
    (message,) = caplog.messages
    assert "0002_two.sql did not get its locks (55P03), attempt 1 of 2" in message


def test_a_deadlock_is_tried_again(
    connection, connect, namespace: str, ship: Ship, ledger: Ledger, in_thread, until
) -> None:
    ship(ONE | {"0002_other.sql": "CREATE TABLE {schema}.other (id bigint);\n"})
    migrations.migrate(connection, namespace, "queue")
    cross = "LOCK TABLE {schema}.one;\nLOCK TABLE {schema}.other;\n"
    ship(ONE | {"0002_other.sql": "CREATE TABLE {schema}.other (id bigint);\n", "0003_cross.sql": cross})
    runner, other = connect(), connect()
    runner.execute("SET deadlock_timeout = '20ms'")
    other.execute("SET deadlock_timeout = '1h'")
    applied: list[migrations.AppliedMigration] = []
    waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %s AND NOT granted)"
    with other.transaction():
        other.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(namespace, "other")))
        thread = in_thread(
            lambda: applied.extend(
                migrations.migrate(runner, namespace, "queue", patience=Patience(timedelta(seconds=20)))
            )
        )
        until(lambda: connection.execute(waiting, [runner.info.backend_pid]).fetchone() == (True,))
        # Closes the cycle; whose timer runs out first is its victim: the runner.
        other.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(namespace, "one")))
    thread.join(30)
    assert ledger() == [1, 2, 3]
    assert applied[0].retries >= 1


def test_a_statement_that_takes_too_long_is_undone_and_named(
    connection, namespace: str, ship: Ship, ledger: Ledger
) -> None:
    ship(ONE | {"0002_slow.sql": "SELECT pg_sleep(60);"})
    with pytest.raises(psycopg.errors.QueryCanceled) as cancelled:
        migrations.migrate(
            connection, namespace, "queue", patience=Patience(statement_timeout=timedelta(milliseconds=200))
        )
    (note,) = cancelled.value.__notes__
    assert "queue/migrations/0002_slow.sql" in note
    assert ledger() == [1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lock_timeout", timedelta(0)),
        ("lock_timeout", timedelta(days=8)),
        ("lock_timeout", 5),
        ("runner_timeout", timedelta(seconds=-1)),
        ("statement_timeout", timedelta(0)),
        ("attempts", 0),
        ("attempts", 101),
        ("attempts", True),
    ],
)
def test_patience_out_of_range_is_refused_by_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"{field} .* is refused"):
        Patience(**{field: value})
