"""Which errors a retry may cure: driven by the database's own errors, not by made-up ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from psycopg import sql

from airflow_env import run_task
from parkkeeper import migrations
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory.errors import InvalidTurn
from parkkeeper.operators import (
    FormationBatchOperator,
    FreshnessOperator,
    ParkSweepOperator,
    RotateRingOperator,
)
from parkkeeper.operators.errors import translated
from parkkeeper.queue.errors import ConservationBroken

Connect = Callable[..., psycopg.Connection]

CONTENT = "the words of a customer"


@pytest.fixture
def held(connect: Connect, namespace: str) -> psycopg.Connection:
    """A table with one row that another session has locked."""
    other = connect()
    other.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(namespace)))
    table = sql.Identifier(namespace, "held")
    other.execute(
        sql.SQL("CREATE TABLE {} (word text CONSTRAINT held_short_chk CHECK (length(word) < 4))").format(
            table
        )
    )
    other.execute(sql.SQL("INSERT INTO {} VALUES ('a')").format(table))
    other.autocommit = False
    other.execute(sql.SQL("SELECT FROM {} FOR UPDATE").format(table))
    return other


def retried(error: BaseException) -> bool:
    return isinstance(error, AirflowException) and not isinstance(error, AirflowFailException)


def test_a_lock_that_was_not_had_is_retried(
    held: psycopg.Connection, connect: Connect, namespace: str
) -> None:
    session = connect()
    session.execute("SET lock_timeout = '20ms'")
    with pytest.raises(AirflowException, match=r"LockNotAvailable.*55P03") as raised, translated():
        session.execute(sql.SQL("SELECT FROM {} FOR UPDATE").format(sql.Identifier(namespace, "held")))
    assert retried(raised.value)


def test_a_deadlock_is_retried(held: psycopg.Connection, connect: Connect, namespace: str) -> None:
    keys = {"first": 1, "second": 2}
    lock = "SELECT pg_advisory_xact_lock(hashtext(%s), %s)"
    session = connect()
    session.execute("SET deadlock_timeout = '10ms'")
    session.autocommit = False
    session.execute(lock, (namespace, keys["first"]))
    held.execute(lock, (namespace, keys["second"]))
    held.pgconn.send_query(f"SELECT pg_advisory_xact_lock(hashtext('{namespace}'), {keys['first']})".encode())
    with pytest.raises(AirflowException, match=r"DeadlockDetected.*40P01") as raised, translated():
        session.execute(lock, (namespace, keys["second"]))
    assert retried(raised.value)


def test_a_statement_that_took_too_long_is_retried(connect: Connect) -> None:
    session = connect()
    session.execute("SET statement_timeout = '10ms'")
    with pytest.raises(AirflowException, match=r"QueryCanceled.*57014") as raised, translated():
        session.execute("SELECT pg_sleep(60)")
    assert retried(raised.value)


def test_a_lost_connection_is_retried(connect: Connect, connection: psycopg.Connection) -> None:
    session = connect()
    connection.execute("SELECT pg_terminate_backend(%s, 5000)", (session.info.backend_pid,))
    for _ in ("while it is found out", "and after"):
        with pytest.raises(AirflowException) as raised, translated():
            session.execute("SELECT 1")
        assert retried(raised.value)


def test_a_row_that_is_refused_fails_for_good_and_is_not_shown(
    held: psycopg.Connection, connect: Connect, namespace: str
) -> None:
    session = connect()
    with pytest.raises(AirflowFailException) as raised, translated():
        session.execute(
            sql.SQL("INSERT INTO {} VALUES (%s)").format(sql.Identifier(namespace, "held")), (CONTENT,)
        )
    assert "CheckViolation (sqlstate 23514, constraint held_short_chk)" in str(raised.value)
    assert CONTENT not in str(raised.value)
    assert (raised.value.__cause__, raised.value.__suppress_context__) == (None, True)


@pytest.mark.parametrize("error", [InvalidArgument, InvalidTurn, ConservationBroken])
def test_what_parkkeeper_refuses_fails_for_good(error: type[Exception]) -> None:
    with pytest.raises(AirflowFailException, match=rf"{error.__name__}: why"), translated():
        raise error("why")


def test_a_migration_that_did_not_get_its_locks_is_retried(
    connection: psycopg.Connection, connect: Connect, namespace: str
) -> None:
    migrations.migrate(connection, namespace, "memory", target=1)
    other = connect()
    other.autocommit = False
    other.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(namespace, "observation")))
    with pytest.raises(AirflowException, match="did not get its locks") as raised, translated():
        migrations.migrate(
            connection,
            namespace,
            "memory",
            patience=migrations.Patience(lock_timeout=timedelta(milliseconds=20), attempts=1),
        )
    assert retried(raised.value)


@pytest.mark.parametrize("operator", [RotateRingOperator, ParkSweepOperator])
def test_a_namespace_without_the_tables_fails_for_good_and_says_what_to_do(
    connection: psycopg.Connection, namespace: str, operator: type
) -> None:
    ran = run_task(lambda: operator(task_id="task", namespace=namespace, retries=3))
    assert ran.state == "failed"
    assert isinstance(ran.error, AirflowFailException)
    assert f"UnknownNamespace: namespace {namespace} has no {operator.requires} tables" in str(ran.error)
    assert "parkkeeper migrate" in str(ran.error)
    assert connection.execute("SELECT to_regnamespace(%s)", (namespace,)).fetchone() == (None,)


def test_tables_that_lack_a_migration_fail_for_good(connection: psycopg.Connection, namespace: str) -> None:
    migrations.migrate(connection, namespace, "memory", target=9)
    ran = run_task(lambda: FreshnessOperator(task_id="task", namespace=namespace, retries=3))
    assert ran.state == "failed"
    assert "DatabaseOutdated" in str(ran.error)


@pytest.mark.parametrize(
    "arguments", [{"conn_id": "mistyped"}, {"extractor": "llm", "llm_conn_id": "mistyped"}]
)
def test_a_connection_that_is_not_defined_fails_for_good(namespace: str, arguments: dict[str, str]) -> None:
    ran = run_task(
        lambda: FormationBatchOperator(task_id="task", namespace=namespace, retries=3, **arguments)
    )
    assert ran.state == "failed"
    assert isinstance(ran.error, AirflowFailException)
    assert str(ran.error) == (
        "The conn_id `mistyped` isn't defined: define it in Airflow, or name another one"
    )


def test_a_server_that_is_not_there_is_retried_and_its_password_not_shown(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "me", "password": "hunter2"}
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", json.dumps(nowhere))
    ran = run_task(
        lambda: FreshnessOperator(task_id="task", namespace=namespace, conn_id="nowhere", retries=0)
    )
    assert retried(ran.error)
    assert str(ran.error).startswith("connection nowhere cannot be used: ")
    assert "\n" not in str(ran.error)
    assert "hunter2" not in str(ran.error)
