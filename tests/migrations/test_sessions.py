"""Sessions: a timeout on all that can hang, and errors that name the server and never the password."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import conninfo

from parkkeeper import database
from parkkeeper.errors import DatabaseUnavailable, InvalidArgument

SECRET = "tr0ub4dor"


def test_a_session_ends_whatever_hangs(connect) -> None:
    session = connect(
        application_name="nightly",
        statement_timeout=timedelta(seconds=7),
        lock_timeout=timedelta(milliseconds=1500),
        idle_in_transaction_session_timeout=timedelta(seconds=9),
    )
    shown = {
        name: session.execute("SELECT current_setting(%s)", [name]).fetchone()[0]
        for name in (
            "application_name",
            "statement_timeout",
            "lock_timeout",
            "idle_in_transaction_session_timeout",
            "client_connection_check_interval",
        )
    }
    assert shown == {
        "application_name": "nightly",
        "statement_timeout": "7s",
        "lock_timeout": "1500ms",
        "idle_in_transaction_session_timeout": "9s",
        "client_connection_check_interval": "500ms",
    }
    assert session.autocommit


def test_the_defaults_leave_nothing_without_a_limit(connection) -> None:
    for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        assert connection.execute("SELECT current_setting(%s)", [name]).fetchone() != ("0",)


def test_options_of_the_connection_string_are_kept(dsn: str) -> None:
    with database.connect(
        conninfo.make_conninfo(dsn, options="-c work_mem=5MB -c lock_timeout=1s")
    ) as session:
        assert session.execute("SHOW work_mem").fetchone() == ("5MB",)
        assert session.execute("SHOW lock_timeout").fetchone() == ("10s",)


def test_times_can_be_read_whatever_a_role_likes_them_to_look_like(dsn: str) -> None:
    with database.connect(
        conninfo.make_conninfo(dsn, options="-c datestyle=German -c intervalstyle=sql_standard")
    ) as session:
        row = session.execute("SELECT '2026-12-01 10:00+00'::timestamptz, '-1 day 2 h'::interval").fetchone()
    assert row == (datetime(2026, 12, 1, 10, tzinfo=UTC), timedelta(days=-1, hours=2))


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (timedelta(), 0),
        (timedelta(microseconds=1), 1),
        (timedelta(milliseconds=1), 1),
        (timedelta(milliseconds=1, microseconds=1), 2),
        (timedelta(days=1), 86_400_000),
    ],
)
def test_a_timeout_is_never_rounded_down_to_none(duration: timedelta, expected: int) -> None:
    assert database.milliseconds(duration) == expected


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def refused(dsn: str) -> str:
    with pytest.raises(DatabaseUnavailable) as unavailable:
        database.connect(dsn, connect_timeout=timedelta(seconds=2))
    assert unavailable.value.__suppress_context__
    message = str(unavailable.value)
    assert SECRET not in message
    assert message.isprintable()
    return message


def test_an_unreachable_server_is_named_in_one_line() -> None:
    port = closed_port()
    message = refused(f"postgresql://someone:{SECRET}@127.0.0.1:{port}/orders")
    assert message.startswith(f"database orders at 127.0.0.1:{port} cannot be reached: ")
    assert refused(f"host=127.0.0.1 port={port} user=someone password={SECRET} dbname=orders") == message


def test_a_wrong_password_is_not_repeated(dsn: str) -> None:
    message = refused(conninfo.make_conninfo(dsn, password=SECRET))
    assert "authentication failed" in message


@pytest.mark.parametrize("address", ["127.0.0.1,127.0.0.1", "no-such-host.invalid"])
def test_a_list_of_hosts_and_an_unknown_one_are_named(address: str) -> None:
    assert address in refused(f"host={address} port={closed_port()} user=a password={SECRET} dbname=d")


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://someone:a@{SECRET}@127.0.0.1:5/orders",
        f"postgresql://someone:a/{SECRET}@127.0.0.1:5/orders",
        f"postgresql://someone:{SECRET}/b@127.0.0.1:5/orders",
        f"postgresql://someone:a%{SECRET}@127.0.0.1:5/orders",
        f"postgresql://someone:{SECRET}@[127.0.0.1:5/orders",
        f"mysql://someone:{SECRET}@127.0.0.1:5/orders",
        f"host=127.0.0.1 password={SECRET} nonsense=1",
        f"host=127.0.0.1 password='{SECRET}",
        f"host=127.0.0.1 port=five password={SECRET}",
        f"{SECRET}",
        "host=127.0.0.1\ud800",
        "host=127.0.0.1\x00 port=5",
    ],
    ids=ascii,
)
def test_a_connection_string_that_cannot_be_read_is_not_repeated(dsn: str) -> None:
    with pytest.raises(InvalidArgument, match="dsn is refused") as unreadable:
        database.connect(dsn)
    assert SECRET not in str(unreadable.value)
    assert unreadable.value.__context__ is None


def test_a_session_that_was_lost_is_not_called_an_open_transaction(connect) -> None:
    session = connect()
    session.close()
    assert not database.in_transaction(session)
    with pytest.raises(psycopg.OperationalError), database.transaction(session, "rotate"):
        pass
