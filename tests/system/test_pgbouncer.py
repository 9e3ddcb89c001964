"""All but a concurrent index through pgbouncer in transaction mode, where each statement may meet another session."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo, sql

from memory_kit import Database, Scripted, failing, say
from parkkeeper import database, migrations
from parkkeeper.demo.airflow import connection_json
from parkkeeper.errors import MigrationError
from parkkeeper.memory import MemoryStore, SweepPolicy
from parkkeeper.memory.extractors import Memory, Turn
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.migrations import files
from parkkeeper.queue import QueueStorage, Worker
from ringside import age, differences, end_jobs, keep_claims, prune_all, run_out, terminal, until

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.system

HOUR = timedelta(hours=1)
LEFT_BEHIND = """
    SELECT current_setting('statement_timeout'), current_setting('lock_timeout'),
           current_setting('default_transaction_read_only'), current_setting('search_path'),
           (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
           (SELECT count(*) FROM pg_listening_channels()),
           (SELECT count(*) FROM pg_prepared_statements)
"""


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_sessions_of_others(pooled: Connection) -> Iterator[None]:
    """What a session has after a test, it had before: settings, locks, channels, prepared statements."""
    yield
    found = {pooled.execute(LEFT_BEHIND).fetchone() for _ in range(20)}
    assert found == {("0", "0", "off", '"$user", public', 0, 0, 0)}


class Heard(logging.Handler):
    """What was logged, whatever Airflow makes of the root logger."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    heard, logger = Heard(), logging.getLogger(database.__name__)
    logger.addHandler(heard)
    yield heard.messages
    logger.removeHandler(heard)


@pytest.fixture
def client(pooled: Connection, pooled_dsn: str) -> Iterator[Connection]:
    """A session as the command line and the examples open it."""
    with database.connect(pooled_dsn) as connection:
        yield connection


@pytest.fixture
def storage(client: Connection, namespace: str) -> QueueStorage:
    migrations.migrate(client, namespace, "queue", queue_slots=4)
    storage = QueueStorage(client, namespace)
    keep_claims(storage)
    return storage


@pytest.fixture
def store(client: Connection, namespace: str) -> MemoryStore:
    migrations.migrate(client, namespace, "memory")
    return MemoryStore(client, namespace)


def test_a_job_s_whole_life(storage: QueueStorage) -> None:
    for n in range(12):  # more than it takes until a statement would be prepared
        storage.enqueue("q", "work", {"n": n}, unique_key=str(n))
        [claim] = storage.claim("q")
        assert storage.extend([claim], HOUR) == 1
        assert storage.complete([claim]) == 1
    failed = end_jobs(storage, 3)
    assert storage.rotate().outcome == "rotated"
    assert storage.plan_prune().outcome.outcome == "pruned"
    [pruned] = prune_all(storage)
    assert (pruned.carried_failed_rows, pruned.pruned_completed) == (3, 12)
    assert storage.retry_failed(failed[:1]).retried == failed[:1]
    assert storage.retry_failed_by_queue("q", limit=1).retried == failed[1:2]
    age(storage, failed[2:], timedelta(days=30))
    assert len(storage.claim("q", 2)) == 2
    run_out(storage)
    assert storage.rescue().rescued == 2
    scheduled = storage.enqueue("q", "work", {}, run_at=datetime.now(UTC) + HOUR)
    assert storage.cancel(scheduled)
    assert storage.rotate(ring="claim").outcome == "rotated"
    assert storage.rotate(ring="lease").outcome == "skipped_idle"
    assert storage.roll_up().outcome == "rolled_up"
    storage.rebuild_terminal_counters()
    assert storage.queue_counts("q").terminal == 14
    assert storage.grow(5).outcome == "grown"
    assert set(terminal(storage)) == {failed[2], scheduled}
    assert differences(storage) == []


def test_dead_letters(storage: QueueStorage) -> None:
    storage.set_queue("q", dead_letter=True)
    storage.enqueue_many("q", "work", [{}] * 3)
    claims = storage.claim("q", 3)
    assert storage.fail(claims[0], "no such file", terminal=True) == "dead_lettered"
    assert storage.fail_many([(claim, "no") for claim in claims[1:]], terminal=True) == ["dead_lettered"] * 2
    assert len(storage.retry_dead_letters("q", limit=1).retried) == 1
    assert storage.purge_dead_letters("q", older_than=timedelta(0)).purged == 2
    assert differences(storage) == []


def test_a_worker_waits_and_works_without_listening(storage: QueueStorage, pooled_dsn: str) -> None:
    done: set[int] = set()
    stop = threading.Event()

    def handle(job: Any) -> None:
        done.add(job.args["n"])

    with database.connect(pooled_dsn) as session, ThreadPoolExecutor(1) as pool:
        worker = Worker(QueueStorage(session, storage.namespace), "q", handle, concurrency=4)
        working = pool.submit(worker.run, stop)
        try:
            for n in range(30):
                storage.enqueue("q", "work", {"n": n})
            until(lambda: len(done) == 30)
            assert session.execute("SELECT count(*) FROM pg_listening_channels()").fetchone() == (0,)
        finally:
            stop.set()
        assert working.result().completed == 30
    assert differences(storage) == []


def test_a_turn_s_whole_life(store: MemoryStore, connection: Connection, namespace: str) -> None:
    db = Database(connection, namespace)
    for n in range(12):
        store.append("s", say(f"word{n}"), subject="p1", idempotency_key=str(n))
    outcome = store.form_batch(failing("refusal", offsets=[3]), concurrency=2)
    assert (outcome.formed, outcome.parked) == (11, 1)
    assert [turn.log_offset for turn in store.parked("s")] == [3]
    assert store.unpark(scope="s") == 1
    assert store.form_batch(failing("malformed"), max_attempts=1).parked == 1
    assert store.sweep(SweepPolicy(unpark_classes=("malformed",))).unparked == 1
    assert store.form_batch(Chunks()).formed == 1
    found = store.freshness("s")
    assert (found.stored, found.formed_strict, found.parked, found.backlog) == (12, 11, 0, 0)
    assert [memory.text for memory in store.recall("s", "word3").memories] == ["word3"]

    def newly(turn: Turn) -> list[Memory]:
        return [Memory(f"new{turn.log_offset}")]

    while not (rebuilt := store.rebuild("s", Scripted(newly), limit=5)).done:
        pass
    assert rebuilt.rebuilt == 12
    assert len(store.recall("s", "new3").memories) == 1
    assert store.verify() == []
    assert store.erase(subject="p1", reason="subject_request").clean
    assert db.one("SELECT count(*) FROM {schema}.turn_message") == 0
    store.append("t", say("x"))
    assert store.drop("t", reason="gone").clean
    assert store.verify() == []


def test_two_runners_through_it_apply_each_migration_once(
    pooled: Connection, pooled_dsn: str, namespace: str
) -> None:
    def run(_: int) -> list[int]:
        with database.connect(pooled_dsn) as connection:
            return [row.version for row in migrations.migrate(connection, namespace, "queue", queue_slots=4)]

    with ThreadPoolExecutor(2) as pool:
        ran = list(pool.map(run, range(2)))
    assert sorted(ran[0] + ran[1]) == [migration.version for migration in migrations.packaged("queue")]
    assert migrations.verify(pooled, namespace).differences == ()


def test_a_concurrent_index_is_refused_before_anything_is_done(
    client: Connection, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "queue" / "migrations"
    folder.mkdir(parents=True)
    (folder / "0001_a.sql").write_text("CREATE TABLE {schema}.a (x int);")
    (folder / "0002_i.sql").write_text(
        "-- migrate: transaction=off\nCREATE INDEX CONCURRENTLY a_x ON {schema}.a (x);"
    )
    monkeypatch.setattr(files, "sql_root", lambda: tmp_path)
    migrations.packaged.cache_clear()
    try:
        with pytest.raises(MigrationError, match="goes through a pooler: connect to the server itself"):
            migrations.migrate(client, namespace, "queue")
        assert client.execute("SELECT to_regclass(%s)", [f"{namespace}.a_x"]).fetchone() == (None,)
        assert [row.version for row in migrations.status(client, namespace, "queue").applied] == [1]
    finally:
        migrations.packaged.cache_clear()


def test_a_task_s_session_leaves_no_setting_and_no_read_only_mode(
    pooled: Connection, pooled_dsn: str, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    from parkkeeper.hooks import ParkkeeperHook  # It brings Airflow, which no other test here needs.

    monkeypatch.setenv("AIRFLOW_CONN_PARKKEEPER_DEFAULT", connection_json(pooled_dsn))
    with (
        ParkkeeperHook().session(
            application_name="af:page", statement_timeout=timedelta(seconds=5), read_only=True
        ) as session,
    ):
        for n in range(12):
            assert session.execute("SELECT %s + 1", [n]).fetchone() == (n + 1,)
    assert ["a pooler stands before the database" in warning for warning in warnings] == [True]


def test_timeouts_of_the_database_hold_through_it_and_nobody_is_warned(
    pooled: Connection,
    pooled_dsn: str,
    connection: Connection,
    namespace: str,
    warnings: list[str],
) -> None:
    name = sql.Identifier(namespace)
    connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
    try:
        connection.execute(sql.SQL("ALTER DATABASE {} SET statement_timeout = '7s'").format(name))
        with database.connect(conninfo.make_conninfo(pooled_dsn, dbname=namespace)) as session:
            assert session.execute("SHOW statement_timeout").fetchone() == ("7s",)
        assert warnings == []
    finally:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
