"""ParkkeeperHook: sessions that cannot hang, whatever extras the connection has."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from parkkeeper.demo.client import until
from parkkeeper.errors import DatabaseUnavailable, InvalidArgument
from parkkeeper.hooks import ParkkeeperHook

SECOND = timedelta(seconds=1)


def settings(connection: psycopg.Connection, *names: str) -> list[str]:
    return [connection.execute("SELECT current_setting(%s)", (name,)).fetchone()[0] for name in names]


def set_extra(dsn: str, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given = conninfo.conninfo_to_dict(dsn)
    connection = {
        "conn_type": "parkkeeper",
        "host": given["host"],
        "port": int(given["port"]),
        "login": given["user"],
        "password": given["password"],
        "schema": given["dbname"],
        "extra": extra,
    }
    monkeypatch.setenv("AIRFLOW_CONN_PARKKEEPER_DEFAULT", json.dumps(connection))


def test_everything_that_can_hang_has_a_timeout() -> None:
    with ParkkeeperHook().session(application_name="me", statement_timeout=90 * SECOND) as connection:
        assert connection.autocommit
        assert settings(
            connection,
            "application_name",
            "statement_timeout",
            "lock_timeout",
            "idle_in_transaction_session_timeout",
            "client_connection_check_interval",
        ) == ["me", "90s", "10s", "1min", "500ms"]


def test_a_long_name_is_cut_to_what_postgres_keeps() -> None:
    with ParkkeeperHook().session(application_name="x" * 100, statement_timeout=SECOND) as connection:
        assert settings(connection, "application_name") == ["x" * 63]


def test_extras_of_the_connection_neither_undo_the_timeouts_nor_change_rows(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {
        "options": "-c statement_timeout=0 -c search_path=elsewhere",
        "cursor": "dictcursor",
        "application_name": "other",
        "sslmode": "prefer",
    }
    set_extra(dsn, extra, monkeypatch)
    with ParkkeeperHook().session(application_name="me", statement_timeout=SECOND) as connection:
        names = ("statement_timeout", "search_path", "application_name")
        assert settings(connection, *names) == ["1s", "elsewhere", "me"]
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_read_only_session_is_refused_every_write() -> None:
    with (
        ParkkeeperHook().session(
            application_name="me", statement_timeout=SECOND, read_only=True
        ) as connection,
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
    ):
        connection.execute("CREATE TABLE written ()")


def test_a_statement_that_still_runs_when_the_context_is_left_is_cancelled(
    connection: psycopg.Connection,
) -> None:
    running = "SELECT FROM pg_stat_activity WHERE pid = %s AND state = 'active'"
    with ParkkeeperHook().session(application_name="me", statement_timeout=600 * SECOND) as session:
        # As behind a pooler: the server does not look whether its client is still there.
        session.execute("SET client_connection_check_interval = 0")
        pid = session.info.backend_pid
        session.pgconn.send_query(b"SELECT pg_sleep(600)")
        assert until(lambda: connection.execute(running, (pid,)).fetchall(), bool, 10 * SECOND)
    assert (
        until(lambda: connection.execute(running, (pid,)).fetchall(), lambda rows: not rows, 10 * SECOND)
        == []
    )


def test_a_server_that_refuses_the_login_is_said_in_one_line(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_extra(conninfo.make_conninfo(dsn, password="guessed"), {}, monkeypatch)
    with (
        pytest.raises(
            DatabaseUnavailable, match=r"^connection parkkeeper_default cannot be used: "
        ) as raised,
        ParkkeeperHook().session(application_name="me", statement_timeout=SECOND),
    ):
        pass
    assert "guessed" not in str(raised.value)


def test_an_extra_that_libpq_does_not_know_is_named(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_extra(dsn, {"colour": "blue"}, monkeypatch)
    with (
        pytest.raises(
            InvalidArgument, match=r'^extra of connection parkkeeper_default is refused: .*"colour"'
        ),
        ParkkeeperHook().session(application_name="me", statement_timeout=SECOND),
    ):
        pass


@pytest.mark.parametrize(("extra", "seconds"), [({}, 10), ({"connect_timeout": 3}, 3)])
def test_the_wait_for_the_server_is_bounded(
    dsn: str, monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], seconds: int
) -> None:
    set_extra(dsn, extra, monkeypatch)
    assert ParkkeeperHook().connection.extra_dejson["connect_timeout"] == seconds
    assert ParkkeeperHook().test_connection() == (True, "Connection successfully tested")
