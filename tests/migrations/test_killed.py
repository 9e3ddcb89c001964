"""Killed at every statement of every migration, a run leaves what the next run turns into an undisturbed install."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from interrupts import Interruptible
from load import FULL
from parkkeeper import database, migrations
from parkkeeper.migrations import Migration, apply

pytestmark = pytest.mark.attack

KILL = "\nSELECT pg_terminate_backend(pg_backend_pid());\n"
MOMENT = timedelta(seconds=30)
# What a semicolon may stand in without ending a statement.
_TOKEN = re.compile(
    r"'(?:[^']|'')*'|\"[^\"]*\"|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?\*/|BEGIN ATOMIC\b.*?\bEND;|;", re.DOTALL
)


def ends(text: str) -> list[int]:
    """Return where each statement of a migration ends."""
    return [
        found.end()
        for found in _TOKEN.finditer(text)
        if found.group().endswith(";") and found.group()[0] in ";B"
    ]


def test_the_ends_of_statements_are_found_whatever_holds_a_semicolon() -> None:
    text = "SELECT ';', \";\"; -- ;\nDO $x$ BEGIN; $$;$$ END $x$; /* ; */ SELECT 'it''s;';"
    assert [text[:end].count("S") + text[:end].count("D") for end in ends(text)] == [1, 3, 4]


@pytest.fixture
def killed(dsn: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Migration, int], None]:
    """Run one migration in a session that is killed at a place in its text; past the end: after its ledger line."""
    render, record = Migration.render, apply._record

    def run(migration: Migration, place: int) -> None:
        with monkeypatch.context() as patch, database.connect(dsn) as session:
            if place <= len(migration.sql):
                cut = Migration(
                    migration.family,
                    migration.version,
                    migration.name,
                    migration.sql[:place] + KILL + migration.sql[place:],
                    migration.sha256,
                )
                patch.setattr(Migration, "render", lambda _, space: render(cut, space))
            else:

                def record_and_die(*arguments: Any) -> Any:
                    record(*arguments)
                    session.execute(KILL.encode())

                patch.setattr(apply, "_record", record_and_die)
            with pytest.raises(psycopg.errors.AdminShutdown):
                migrations.migrate(
                    session, namespace, migration.family, target=migration.version, queue_slots=4
                )

    return run


def places(migration: Migration) -> Iterator[int]:
    """Where to kill: before the first statement, after each, and after the line in the ledger."""
    yield 0
    yield from ends(migration.sql)
    yield len(migration.sql) + 1


@pytest.mark.slow
@pytest.mark.parametrize("family", migrations.FAMILIES)
def test_a_backend_that_is_killed_at_any_statement_leaves_nothing_and_the_next_run_ends_the_same(
    connection, namespace: str, catalog, killed, family: str
) -> None:
    for migration in migrations.packaged(family):
        before = catalog(namespace=namespace)
        found = list(places(migration))
        for place in found if FULL else {*found[::3], found[-1]}:
            killed(migration, place)
            assert [
                m.version for m in migrations.plan(connection, namespace, family, target=migration.version)
            ] == [migration.version], (migration.label, place)
        assert catalog(namespace=namespace) == before, migration.label
        migrations.migrate(connection, namespace, family, target=migration.version, queue_slots=4)
    assert migrations.verify(connection, namespace).differences == ()


RUNNER = """
import sys
from parkkeeper import database, migrations
dsn, namespace, family, version = sys.argv[1:]
render = migrations.Migration.render

def slow(migration, space):
    return render(migration, space) + (";SELECT pg_sleep(60);" if migration.version == int(version) else "")

migrations.Migration.render = slow
with database.connect(dsn, application_name="doomed") as connection:
    migrations.migrate(connection, namespace, family, queue_slots=4)
"""


@pytest.mark.parametrize("family", migrations.FAMILIES)
def test_a_runner_that_is_killed_in_a_migration_is_succeeded_by_the_next_one(
    connection, dsn: str, namespace: str, until, family: str
) -> None:
    halfway = migrations.packaged(family)[len(migrations.packaged(family)) // 2]
    command = [sys.executable, "-c", RUNNER, dsn, namespace, family, str(halfway.version)]
    process = subprocess.Popen(command)
    try:
        asleep = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = 'doomed' AND wait_event = 'PgSleep'"
        )
        until(lambda: connection.execute(asleep).fetchone() == (1,))
    finally:
        # With no time to say goodbye: the server finds out by itself, and gives the namespace's lock back.
        process.kill()
        process.wait()
    applied = migrations.migrate(connection, namespace, family, queue_slots=4)
    assert applied[0].version == halfway.version
    assert migrations.verify(connection, namespace).differences == ()


@pytest.mark.parametrize("done", [False, True], ids=["while it runs", "when it is just over"])
def test_a_session_whose_run_was_interrupted_at_any_statement_is_free_again(
    connection, connect, namespace: str, ship: Callable[[Mapping[str, str]], None], ledger, done: bool
) -> None:
    ship(
        {
            "0001_one.sql": "CREATE TABLE {schema}.one (id bigint);\n",
            "0002_index.sql": "-- migrate: transaction=off\nCREATE INDEX CONCURRENTLY one_idx ON {schema}.one (id);\n",
        }
    )
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
    session = connect(connection_class=Interruptible)
    interrupted = 0
    while True:
        session.interrupt_at(interrupted + 1, done=done)
        try:
            migrations.migrate(session, namespace, "queue")
            break
        except KeyboardInterrupt:
            interrupted += 1
        where = f"interrupted in wait {interrupted}"
        if session.closed:  # as it is where it could not be made what it was
            session = connect(connection_class=Interruptible)
        assert session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE, where
        assert connection.execute(held, [session.info.backend_pid]).fetchone() == (0,), where
        assert session.execute("SHOW search_path").fetchone() != ("",), where
        migrations.migrate(session, namespace, "queue", patience=migrations.Patience(runner_timeout=MOMENT))
        assert ledger() == [1, 2], where
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(namespace)))
    assert interrupted > 20
