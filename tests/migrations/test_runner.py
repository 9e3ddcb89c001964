"""How migrations are applied: one transaction each, under one lock, nowhere but in the namespace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from parkkeeper import migrations
from parkkeeper.errors import MigrationBlocked, MigrationError, TransactionOpen
from parkkeeper.migrations import Patience

Ship = Callable[[Mapping[str, str]], None]
Ledger = Callable[[], list[int]]
Exists = Callable[[str], bool]

ONE = {"0001_one.sql": "CREATE TABLE {schema}.one (id bigint PRIMARY KEY);\n"}
TWO = ONE | {"0002_two.sql": "ALTER TABLE {schema}.one ADD COLUMN more text;\n"}


def test_only_the_schema_token_is_replaced(connection, namespace: str, ship: Ship) -> None:
    ship(
        {
            "0001_braces.sql": "CREATE TABLE {schema}.braces AS\n"
            "SELECT '{}'::int[] AS none, '{{1,2},{3,4}}'::int[] AS two,\n"
            "  '{#' AS comment, '{{ x }}' AS template, '{0}' AS positional, '%s %(a)s %%' AS percent,\n"
            "  '{schema_name}' AS longer, '{SCHEMA}' AS upper, '\\n' AS backslash,\n"
            '  $tag${"a": {}}$tag$::jsonb AS json;\n'
        }
    )
    migrations.migrate(connection, namespace, "queue")
    row = connection.execute(sql.SQL("SELECT * FROM {}.braces").format(sql.Identifier(namespace))).fetchone()
    texts = ("{#", "{{ x }}", "{0}", "%s %(a)s %%", "{schema_name}", "{SCHEMA}", "\\n")
    assert row == ([], [[1, 2], [3, 4]], *texts, {"a": {}})


@pytest.mark.parametrize(
    "last",
    ["SELECT 1/0", "INSERT INTO {schema}.one SELECT 1 UNION ALL SELECT 1", "SELECT nonsense", "SELECT ("],
    ids=["division", "unique", "undefined", "syntax"],
)
def test_a_migration_that_fails_at_its_last_statement_leaves_nothing(
    connection, namespace: str, ship: Ship, ledger: Ledger, catalog, last: str
) -> None:
    ship(ONE)
    migrations.migrate(connection, namespace, "queue")
    before = catalog(namespace=namespace)
    ship(
        ONE
        | {
            "0002_good.sql": "CREATE TABLE {schema}.good (id bigint);",
            "0003_bad.sql": "CREATE TABLE {schema}.bad (id bigint);\nDROP TABLE {schema}.good;\n" + last,
            "0004_never.sql": "CREATE TABLE {schema}.never (id bigint);",
        }
    )
    with pytest.raises(
        MigrationError, match=r"queue/migrations/0003_bad\.sql failed \(\w{5}, \w+\): it left nothing"
    ):
        migrations.migrate(connection, namespace, "queue")
    assert ledger() == [1, 2]
    names = {row[2] for row in catalog(namespace=namespace) - before if row[0] == "relation"}
    assert names == {"good"}


def test_the_first_migrations_failure_leaves_no_schema(connection, namespace: str, ship: Ship) -> None:
    ship({"0001_bad.sql": "CREATE TABLE {schema}.bad (id bigint); SELECT 1/0;"})
    with pytest.raises(MigrationError, match=r"0001_bad\.sql failed \(22012, DivisionByZero\)"):
        migrations.migrate(connection, namespace, "queue")
    assert connection.execute("SELECT to_regnamespace(%s)", [namespace]).fetchone() == (None,)


def test_a_failure_tells_nothing_of_the_rows_it_met(connection, namespace: str, ship: Ship) -> None:
    ship(ONE | {"0002_secret.sql": "CREATE TABLE {schema}.words AS SELECT 'rosebud' AS word;"})
    migrations.migrate(connection, namespace, "queue")
    ship(
        ONE
        | {
            "0002_secret.sql": "CREATE TABLE {schema}.words AS SELECT 'rosebud' AS word;",
            "0003_bad.sql": "ALTER TABLE {schema}.words ALTER COLUMN word TYPE integer USING word::integer;",
        }
    )
    with pytest.raises(MigrationError) as failed:
        migrations.migrate(connection, namespace, "queue")
    assert "rosebud" not in str(failed.value)
    assert failed.value.__cause__ is None
    assert failed.value.__suppress_context__


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE stray (id bigint)",
        "CREATE FUNCTION stray() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TYPE stray AS ENUM ('a')",
        "CREATE SEQUENCE stray",
        "CREATE VIEW stray AS SELECT 1 AS one",
    ],
    ids=lambda statement: statement.split()[1].lower(),
)
def test_an_unqualified_name_fails_rather_than_makes_an_object_elsewhere(
    connection, namespace: str, ship: Ship, catalog, statement: str
) -> None:
    before = catalog(outside=namespace)
    ship({"0001_stray.sql": statement + ";"})
    with pytest.raises(MigrationError, match=r"0001_stray\.sql failed \(3F000, InvalidSchemaName\)"):
        migrations.migrate(connection, namespace, "queue")
    assert catalog(outside=namespace) == before


@pytest.mark.parametrize("family", migrations.FAMILIES)
def test_no_object_is_made_outside_the_namespace(connection, namespace: str, catalog, family: str) -> None:
    before = catalog(outside=namespace)
    assert migrations.migrate(connection, namespace, family)
    assert catalog(outside=namespace) == before
    assert catalog(namespace=namespace)


def test_the_session_is_as_it_was_afterwards(connection, namespace: str, ship: Ship) -> None:
    names = ("lock_timeout", "search_path", "transaction_isolation", "statement_timeout")
    shown = {name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in names}
    ship(TWO)
    migrations.migrate(connection, namespace, "queue")
    assert {name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in names} == shown


def test_a_schema_that_a_dba_made_needs_no_right_to_make_one(
    connection, connect, namespace: str, ship: Ship
) -> None:
    ship(ONE)
    role, name = sql.Identifier(f"{namespace}_role"), sql.Identifier(namespace)
    connection.execute(sql.SQL("CREATE ROLE {}").format(role))
    try:
        connection.execute(sql.SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(name, role))
        session = connect()
        session.execute(sql.SQL("SET ROLE {}").format(role))
        assert [m.version for m in migrations.migrate(session, namespace, "queue")] == [1]
        session.close()
    finally:
        connection.execute(sql.SQL("DROP OWNED BY {} CASCADE; DROP ROLE {}").format(role, role))


def test_migrate_refuses_to_be_part_of_the_callers_transaction(
    connection, namespace: str, ship: Ship
) -> None:
    ship(ONE)
    with connection.transaction(), pytest.raises(TransactionOpen, match="migrate"):
        migrations.migrate(connection, namespace, "queue")


def waiting(connection: psycopg.Connection[Any], backend: int) -> str | None:
    """Which transaction of `backend` is waiting for a lock, if any."""
    row = connection.execute(
        "SELECT virtualtransaction FROM pg_locks WHERE pid = %s AND NOT granted", [backend]
    ).fetchone()
    return row and row[0]


def tried(connection: psycopg.Connection[Any], backend: int) -> bool:
    """Whether the last statement of `backend` was about the namespace's lock, or waits for one."""
    row = connection.execute(
        "SELECT wait_event_type = 'Lock' OR query LIKE '%%try_advisory%%' OR query IN ('ROLLBACK', 'COMMIT')"
        " FROM pg_stat_activity WHERE pid = %s",
        [backend],
    ).fetchone()
    return bool(row and row[0])


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_two_runners_at_once_apply_each_migration_once(
    connection, connect, namespace: str, ship: Ship, ledger: Ledger, in_thread, until, isolation: str
) -> None:
    # The first migration waits for a lock of ours, so that both runners are inside at the same time.
    files = {
        "0001_gate.sql": "SELECT pg_advisory_xact_lock_shared(hashtext('{schema}'));\n" + ONE["0001_one.sql"]
    }
    ship(files | {f"000{n}_t.sql": f"CREATE TABLE {{schema}}.t{n} (id bigint);" for n in range(2, 9)})
    sessions = [connect(), connect()]
    applied: dict[int, list[int]] = {}

    def run(index: int) -> None:
        sessions[index].execute(f"SET default_transaction_isolation = '{isolation}'".encode())
        applied[index] = [m.version for m in migrations.migrate(sessions[index], namespace, "queue")]

    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f'"{namespace}"'])
        threads = [in_thread(lambda index=index: run(index)) for index in range(2)]
        observer = connect()
        until(lambda: any(waiting(observer, session.info.backend_pid) for session in sessions))
        # The other one tries for the namespace's lock meanwhile.
        until(lambda: all(tried(observer, session.info.backend_pid) for session in sessions))
    for thread in threads:
        thread.join(30)
    assert sorted(applied[0] + applied[1]) == list(range(1, 9)) == ledger()


def test_two_first_runs_in_one_namespace_do_not_collide(
    connect, namespace: str, ship: Ship, ledger: Ledger
) -> None:
    ship(TWO)
    barrier = threading.Barrier(4)
    failures: list[BaseException] = []

    def run(session: psycopg.Connection[Any]) -> None:
        try:
            barrier.wait(10)
            migrations.migrate(session, namespace, "queue")
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(connect(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert ledger() == [1, 2]


def test_a_migration_that_does_not_get_its_lock_is_named_and_leaves_nothing(
    connection, connect, namespace: str, ship: Ship, ledger: Ledger
) -> None:
    ship(ONE)
    migrations.migrate(connection, namespace, "queue")
    ship(TWO)
    holder = connect()
    with holder.transaction():
        holder.execute(sql.SQL("LOCK TABLE {}.one IN ACCESS SHARE MODE").format(sql.Identifier(namespace)))
        with pytest.raises(
            MigrationBlocked, match=r"0002_two\.sql did not get its locks in 2 attempts of 0\.05 s \(55P03\)"
        ):
            migrations.migrate(
                connection, namespace, "queue", patience=Patience(timedelta(milliseconds=50), attempts=2)
            )
        assert ledger() == [1]
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert [m.version for m in migrations.migrate(connection, namespace, "queue")] == [2]


def test_a_run_goes_on_by_itself_when_the_lock_goes(
    connection, connect, namespace: str, ship: Ship, ledger: Ledger, in_thread, until
) -> None:
    ship(ONE)
    migrations.migrate(connection, namespace, "queue")
    ship(TWO)
    runner, holder = connect(), connect()
    backend = runner.info.backend_pid
    seen: set[str | None] = set()
    applied: list[migrations.AppliedMigration] = []

    def tried_twice() -> bool:
        seen.add(waiting(connection, backend))
        return len(seen - {None}) >= 2

    with holder.transaction():
        holder.execute(sql.SQL("LOCK TABLE {}.one IN ACCESS SHARE MODE").format(sql.Identifier(namespace)))
        thread = in_thread(
            lambda: applied.extend(
                migrations.migrate(
                    runner, namespace, "queue", patience=Patience(timedelta(milliseconds=100), attempts=100)
                )
            )
        )
        until(tried_twice)
    thread.join(30)
    assert ledger() == [1, 2]
    assert applied[0].retries >= 1


def test_a_runner_that_is_cancelled_says_so_itself(
    connection, connect, namespace: str, ship: Ship, in_thread, until
) -> None:
    # Whoever cancels (an operator's on_kill, a statement timeout) is told by the driver's own error.
    ship({"0001_slow.sql": "SELECT pg_sleep(60);"})
    runner = connect()
    caught: list[BaseException] = []

    def run() -> None:
        try:
            migrations.migrate(runner, namespace, "queue")
        except BaseException as failure:
            caught.append(failure)

    thread = in_thread(run)
    backend = runner.info.backend_pid
    query = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = %s AND query LIKE '%%pg_sleep%%'"
    until(lambda: connection.execute(query, [backend]).fetchone() is not None)
    thread.join(30)
    assert [type(failure) for failure in caught] == [psycopg.errors.QueryCanceled]
