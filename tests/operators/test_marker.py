"""Words, keys, subjects and errors are in their rows alone: in no log, exception or table of Airflow's."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from airflow.utils.session import create_session
from psycopg import sql
from sqlalchemy import MetaData, Table, inspect

from airflow_env import run_task
from parkkeeper import cli, database
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn
from parkkeeper.operators import FormationBatchOperator, FreshnessOperator, ParkSweepOperator, RebuildOperator

MARK = "qzmarkzq"
SETTINGS = {
    "log_error_verbosity": "default",
    "log_min_duration_statement": "0",
    "log_min_error_statement": "error",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
}


@pytest.fixture
def families() -> tuple[str, ...]:
    return ("memory",)


@pytest.fixture
def server_log(connection: psycopg.Connection[Any]) -> Iterator[Callable[[], str]]:
    """Let the server log every statement, without parameters; what it has logged since."""
    place = connection.execute("SHOW data_directory").fetchone()
    path = Path(place[0]).parent / "server.log"  # type: ignore[index]
    if not path.exists():
        pytest.skip(f"{path}: this server was given, and its log is not at hand")
    begin = path.stat().st_size
    for name, value in SETTINGS.items():
        connection.execute(sql.SQL("ALTER ROLE CURRENT_USER SET {} = {}").format(sql.SQL(name), value))
    yield lambda: path.read_bytes()[begin:].decode("utf-8", "replace")
    for name in SETTINGS:
        connection.execute(sql.SQL("ALTER ROLE CURRENT_USER RESET {}").format(sql.SQL(name)))


class Marked:
    """An extractor whose every failure quotes the turn, in every way in which one can fail."""

    name, version = "marked", "1"

    def extract(self, turn: Turn) -> Any:
        said = turn.messages[0]["content"]
        fates: list[Callable[[], Any]] = [
            lambda: [Memory(said, f"kind of {MARK}")],
            lambda: fail(ExtractionError("refusal", f"{MARK} said {said}")),
            lambda: fail(ValueError(said)),
            lambda: said,
            lambda: [Memory(said + "\x00")],
        ]
        return [] if turn.log_offset < 0 else fates[turn.log_offset % len(fates)]()


def fail(error: Exception) -> Any:
    raise error


def rows_of_airflow() -> Iterator[tuple[str, str]]:
    """Return every row of Airflow's metadata database as text, with its table."""
    with create_session() as session:
        engine = session.get_bind()
        for name in inspect(engine).get_table_names():
            for row in session.execute(Table(name, MetaData(), autoload_with=engine).select()):
                yield name, repr(row)


def rows_of_database(connection: psycopg.Connection[Any]) -> Iterator[tuple[str, str]]:
    """Return every row of every table of the database as text, the catalogue's too, and what statistics show."""
    tables = connection.execute(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND oid <> 'pg_statistic'::regclass"
    ).fetchall()
    for name in [*(name for (name,) in tables), "pg_stats", "pg_stat_activity"]:
        query = f"SELECT t::text FROM {name} AS t".encode()  # noqa: S608
        for (row,) in connection.execute(query):
            yield name, row


def marked(rows: Iterator[tuple[str, str]]) -> set[str]:
    return {name for name, row in rows if MARK in row.lower()}


def test_a_marker_is_in_its_rows_alone_and_gone_after_an_erasure(
    server_log: Callable[[], str],
    dsn: str,
    migrated: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("parkkeeper.operators.memory.load", lambda name: Marked())
    monkeypatch.setenv("PARKKEEPER_DSN", dsn)
    raised: list[str] = []

    def refused(call: Callable[[], Any]) -> None:
        with pytest.raises(Exception) as error:
            call()
        raised.append("".join(traceback.format_exception(error.value)))

    with database.connect(dsn) as connection:
        store = MemoryStore(connection, migrated)

        def append(number: int, **other: Any) -> None:
            turn = {"subject": f"{MARK} {number % 3}", "idempotency_key": f"{MARK} {number}"} | other
            store.append("s", [{"role": "user", "content": f"{MARK} {number} words"}], **turn)

        for number in range(25):
            append(number)
        append(1)
        refused(lambda: append(1, subject=f"{MARK} other"))
        refused(lambda: append(99, idempotency_key=f"{MARK}\x00"))
        refused(lambda: store.append("s", [{"role": MARK, "content": MARK}]))
        refused(lambda: store.recall("s", f"{MARK}\x00"))
        for scope in ("s", None):
            ran = run_task(
                lambda scope=scope: FormationBatchOperator(
                    task_id="form", namespace=migrated, max_attempts=1, scope=scope
                ),
                conf={"reason": "now"},
            )
            assert ran.state == "success"
        assert run_task(lambda: ParkSweepOperator(task_id="sweep", namespace=migrated)).state == "success"
        rebuilt = run_task(lambda: RebuildOperator(task_id="rebuild", namespace=migrated, scope="s"))
        assert (rebuilt.state, rebuilt.xcoms["failed"]) == ("success", 20)
        assert run_task(lambda: FreshnessOperator(task_id="fresh", namespace=migrated)).state == "success"
        for command in ("freshness", "parked", "rebuilds", "circuit"):
            scope = [] if command == "circuit" else ["--scope", "s"]
            assert cli.main(["memory", command, "-n", migrated, *scope]) == 0

        found = store.freshness("s")
        assert (found.parked, found.by_class) == (20, {"refusal": 5, "other": 5, "malformed": 10})
        assert len(store.recall("s", f"{MARK} words").memories) == 5
        connection.execute("ANALYZE")
        assert marked(rows_of_database(connection)) == {
            f"{migrated}.{table}" for table in ("observation", "turn_message", "memory")
        }
        for number in range(3):
            assert store.erase(subject=f"{MARK} {number}", reason="subject_request").clean
        refused(lambda: append(1))
        assert marked(rows_of_database(connection)) == set()

    printed = capfd.readouterr()
    assert re.search("duration: .*INSERT INTO", server_log(), re.DOTALL)
    everything = {
        "server log": server_log(),
        "logs": caplog.text,
        "output": printed.out + printed.err,
        "exceptions": "".join(raised),
    }
    assert {place for place, text in everything.items() if MARK in text.lower()} == set()
    assert marked(rows_of_airflow()) == set()
