"""Transactions of our own, what is tried again, and named SQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from parkkeeper import database
from parkkeeper.errors import TransactionOpen, UnknownNamespace
from parkkeeper.namespace import Namespace


def test_a_transaction_of_our_own_refuses_to_join_the_callers(connection) -> None:
    with connection.transaction():
        assert database.in_transaction(connection)
        with (
            pytest.raises(TransactionOpen, match="rotate is a transaction of its own"),
            database.transaction(connection, "rotate"),
        ):
            pytest.fail("it must not be entered")
    connection.execute("BEGIN")
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1/0")
    with pytest.raises(TransactionOpen), database.transaction(connection, "rotate"):
        pytest.fail("it must not be entered")
    connection.execute("ROLLBACK")
    with database.transaction(connection, "rotate"):
        assert database.in_transaction(connection)
    assert not database.in_transaction(connection)


def test_a_connection_that_opens_transactions_by_itself_is_refused(connection) -> None:
    connection.autocommit = False
    with pytest.raises(TransactionOpen, match="autocommit"), database.transaction(connection, "prune"):
        pytest.fail("it must not be entered")


def test_a_transaction_that_fails_is_rolled_back(connection) -> None:
    connection.execute("CREATE TEMP TABLE t (id int)")
    with pytest.raises(ZeroDivisionError), database.transaction(connection, "prune"):
        connection.execute("INSERT INTO t VALUES (1)")
        raise ZeroDivisionError
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_a_deadlock_is_tried_again(connect, in_thread, until) -> None:
    victim, other, observer = connect(), connect(), connect()
    first, second = 817_001, 817_002
    lock = "SELECT pg_advisory_xact_lock(%s)"
    # Whose timer runs out finds the deadlock and is its victim: the other's never does.
    victim.execute("SET deadlock_timeout = '50ms'")
    other.execute("SET deadlock_timeout = '1h'")
    ready = threading.Event()
    waiting = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"
    attempts: list[int] = []

    def cross() -> None:
        assert ready.wait(30)
        with other.transaction():
            other.execute(lock, [second])
            other.execute(lock, [first])

    def work() -> str:
        attempts.append(1)
        with victim.transaction():
            victim.execute(lock, [first])
            ready.set()
            if len(attempts) == 1:
                pid = other.info.backend_pid
                until(lambda: observer.execute(waiting, [pid]).fetchone() is not None)
            victim.execute(lock, [second])
        return "done"

    in_thread(cross)
    assert database.retried(victim, work) == "done"
    assert len(attempts) > 1


@pytest.mark.parametrize("sqlstate", ["40P01", "55P03", "40001"])
def test_what_stays_in_the_way_surfaces_after_a_bounded_number_of_attempts(connection, sqlstate: str) -> None:
    attempts: list[int] = []

    def work() -> None:
        attempts.append(1)
        connection.execute(f"DO $$ BEGIN RAISE SQLSTATE '{sqlstate}'; END $$".encode())

    with pytest.raises(database.TRANSIENT):
        database.retried(connection, work, attempts=3)
    assert len(attempts) == 3


def test_another_error_is_not_tried_again(connection) -> None:
    attempts: list[int] = []

    def work() -> None:
        attempts.append(1)
        connection.execute("SELECT 1/0")

    with pytest.raises(psycopg.errors.DivisionByZero):
        database.retried(connection, work)
    assert len(attempts) == 1


def test_inside_the_callers_transaction_only_the_caller_can_try_again(connection) -> None:
    attempts: list[int] = []

    def work() -> None:
        attempts.append(1)
        connection.execute("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$")

    with pytest.raises(psycopg.errors.DeadlockDetected), connection.transaction():
        database.retried(connection, work)
    assert len(attempts) == 1


@pytest.mark.parametrize("statement", ["SELECT * FROM {}.jobs", "SELECT {}.claim()", "CREATE TABLE {}.t ()"])
def test_a_missing_schema_says_how_to_make_it(connection, namespace: str, statement: str) -> None:
    space = Namespace(namespace)
    with (
        pytest.raises(UnknownNamespace, match=rf"parkkeeper migrate --family queue --namespace {namespace}"),
        database.known_namespace(space, "queue"),
    ):
        connection.execute(statement.format(space.identifier).encode())


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], database.Statements]:
    monkeypatch.setattr(database, "sql_root", lambda: tmp_path)

    def make(text: str) -> database.Statements:
        (tmp_path / "some.sql").write_text(text, encoding="utf-8")
        return database.Statements("some")

    return make


def test_a_statement_is_found_by_name_and_only_known_tokens_are_replaced(write) -> None:
    found = write(
        "-- A file's own words.\n\n-- name: first\n-- Why.\nSELECT '{}', '{{1,2},{3}}', '{#'"
        " FROM {schema}.t_{slot}\n\n"
        "-- name: second\nSELECT %(value)s\n"
    )
    assert list(found) == ["first", "second"]
    space = Namespace("tenant")
    assert (
        found.render("first", space, slot=3)
        == b"-- Why.\nSELECT '{}', '{{1,2},{3}}', '{#' FROM \"tenant\".t_3"
    )
    assert found.render("first", space, slot=4).endswith(b"t_4")
    assert found.render("second", space) == b"SELECT %(value)s"
    with pytest.raises(KeyError):
        found.render("first", space)
    with pytest.raises(KeyError):
        found.render("third", space)


@pytest.mark.parametrize("slot", ["1; DROP TABLE t", None, "x"])
def test_a_token_takes_whole_numbers_only(write, slot) -> None:
    found = write("-- name: one\nSELECT {slot}\n")
    with pytest.raises((ValueError, TypeError)):
        found.render("one", Namespace("tenant"), slot=slot)


def test_a_name_that_occurs_twice_is_refused(write) -> None:
    with pytest.raises(ValueError, match="occurs twice"):
        write("-- name: one\nSELECT 1\n-- name: one\nSELECT 2\n")


def test_an_advisory_key_differs_by_namespace_and_action_and_fits_a_bigint(connection) -> None:
    keys = {database.advisory_key(*parts) for parts in (("a", "b"), ("ab",), ("a", "c"), ("b", "a"))}
    assert len(keys) == 4
    assert database.advisory_key("a", "b") in keys
    for key in keys:
        connection.execute("SELECT pg_advisory_xact_lock(%s::bigint)", [key])
