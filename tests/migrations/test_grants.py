"""Three roles: what each may do is enough for its work, and no more."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from memory_kit import failing, say
from parkkeeper import migrations
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.queue import QueueStorage
from parkkeeper.queue.worker import Worker

Login = Callable[[str], psycopg.Connection[Any]]
LEASE = timedelta(minutes=5)


@pytest.fixture
def login(connection, connect, namespace: str) -> Iterator[Login]:
    """A session of one of the three roles of a namespace that the migrator has made."""
    # Quotes and capitals: the script is to quote the names.
    roles = {name: f'{namespace[5:]} "{name}" Role' for name in ("migrator", "maintainer", "application")}
    for role in roles.values():
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))

    def session(name: str) -> psycopg.Connection[Any]:
        opened = connect()
        opened.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(roles[name])))
        return opened

    try:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(namespace)))
        script = migrations.grants(namespace, **roles)
        connection.execute(
            sql.SQL("GRANT USAGE, CREATE ON SCHEMA {} TO {}").format(
                sql.Identifier(namespace), sql.Identifier(roles["migrator"])
            )
        )
        # As sites do that trust nobody: what the migrator makes is nobody else's to run.
        connection.execute(
            sql.SQL("ALTER DEFAULT PRIVILEGES FOR ROLE {} REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC").format(
                sql.Identifier(roles["migrator"])
            )
        )
        migrator = session("migrator")
        for family in migrations.FAMILIES:
            migrations.migrate(migrator, namespace, family, queue_slots=4)
        connection.execute(script.encode())
        connection.execute(script.encode())  # It can be run again.
        yield session
    finally:
        for role in roles.values():
            connection.execute(
                sql.SQL("DROP OWNED BY {} CASCADE; DROP ROLE {}").format(
                    sql.Identifier(role), sql.Identifier(role)
                )
            )


def produce_and_work(session: psycopg.Connection[Any], namespace: str) -> None:
    """All that producers and workers of the queue do."""
    storage = QueueStorage(session, namespace)
    storage.enqueue_many("mail", "welcome", [{"n": n} for n in range(8)])
    storage.enqueue("mail", "once", {}, unique_key=uuid.uuid4().bytes)
    storage.enqueue("mail", "later", {}, run_at=datetime.now(UTC) + timedelta(hours=1))
    waiting = storage.enqueue("mail", "cancelled", {})
    assert storage.cancel(waiting)
    claims = storage.claim("mail", 9)
    assert storage.extend(claims, LEASE) == 9
    assert storage.complete(claims[:2]) == 2
    assert storage.fail(claims[2], "no") == "retryable"
    assert storage.fail(claims[3], "no", terminal=True) in ("failed", "dead_lettered")
    assert storage.snooze(claims[4:5], datetime.now(UTC) + timedelta(hours=1)) == 1
    assert storage.cancel(claims[5].job_id)
    assert storage.complete(claims[6:]) == 3
    storage.queue_counts("mail")
    storage.job(claims[0].job_id)
    storage.enqueue("mail", "welcome", {})
    Worker(storage, "mail", lambda job: None).run(drain=True)


def remember(session: psycopg.Connection[Any], namespace: str) -> None:
    """All that the application does with the memory."""
    store = MemoryStore(session, namespace)
    store.append("ada", say("the invoice is late"))
    store.append_many("ada", [{"messages": say(f"turn {n}")} for n in range(3)])
    store.form_batch(Chunks(), limit=1)
    store.form_batch(failing("refusal", offsets=[1]), limit=1)
    store.form_batch(Chunks())
    assert store.freshness("ada").parked == 1
    assert store.recall("ada", "invoice")
    assert store.parked("ada")
    store.erase(scope="ada", reason="asked")
    store.append_many("ada", [{"messages": say(f"again {n}")} for n in range(2)])


def maintain(session: psycopg.Connection[Any], namespace: str) -> None:
    """All that maintenance does, but what makes or changes tables."""
    storage = QueueStorage(session, namespace)
    storage.set_queue("mail", dead_letter=True)
    storage.set_namespace(failed_retention=timedelta(hours=1))
    storage.pause("mail")
    storage.resume("mail")
    storage.rescue()
    for ring in ("queue", "lease", "claim"):
        storage.rotate(ring=ring)
        storage.prune_oldest(ring=ring)
    storage.evacuate()
    storage.roll_up()
    storage.rebuild_terminal_counters()
    storage.retry_failed_by_queue("mail")
    for claim in storage.claim("mail", 10):
        storage.fail(claim, "no", terminal=True)
    storage.retry_dead_letters("mail")
    storage.purge_dead_letters("mail", older_than=timedelta(0))
    for _ in range(3):
        storage.rotate()
        storage.prune_oldest()
    storage.ring_status()
    store = MemoryStore(session, namespace)
    store.sweep()
    store.unpark(scope="ada")
    store.pause("ada")
    store.resume("ada")
    store.set_backlog_cap(100)
    store.circuits()
    store.rebuild("ada", Chunks())
    store.expire(timedelta(days=365), reason="old")
    store.verify()
    store.drop("ada", reason="gone")


def test_what_each_role_may_do_is_enough(login: Login, namespace: str) -> None:
    produce_and_work(login("application"), namespace)
    remember(login("application"), namespace)
    maintain(login("maintainer"), namespace)
    migrator = login("migrator")
    assert QueueStorage(migrator, namespace).grow(5).outcome == "grown"
    # The new slot's tables are everybody's too.
    storage = QueueStorage(login("maintainer"), namespace)
    for _ in range(5):
        storage.rotate()
        produce_and_work(login("application"), namespace)
        storage.prune_oldest()


FORBIDDEN = {
    "application": [
        "TRUNCATE {n}.ready_entries",
        "DELETE FROM {n}.done_entries",
        "UPDATE {n}.done_entries SET state = 'completed'",
        "DELETE FROM {n}.ready_entries_0",
        "UPDATE {n}.settings SET value = '0'",
        "DELETE FROM {n}.schema_migration",
        "UPDATE {n}.queue_terminal_rollups SET pruned_failed_count = 0",
        "UPDATE {n}.queue_ring_slots SET generation = 0",
        "UPDATE {n}.claim_ring_state SET generation = 0",
        "ALTER TABLE {n}.observation ADD more text",
        "DROP TABLE {n}.observation",
        "CREATE TABLE {n}.mine ()",
        "DROP SCHEMA {n} CASCADE",
    ],
    "maintainer": [
        "DELETE FROM {n}.schema_migration",
        "TRUNCATE {n}.schema_migration",
        "ALTER TABLE {n}.observation ADD more text",
        "DROP TABLE {n}.observation",
        "CREATE TABLE {n}.mine ()",
        "CREATE INDEX ON {n}.observation (scope)",
        "CREATE OR REPLACE FUNCTION {n}.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ],
    "migrator": ["DROP SCHEMA {n} CASCADE", "CREATE SCHEMA {n}_other"],
}


@pytest.mark.parametrize("role", FORBIDDEN)
def test_what_each_role_may_do_is_not_more(login: Login, namespace: str, role: str) -> None:
    session = login(role)
    for statement in FORBIDDEN[role]:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(statement.replace("{n}", namespace).encode())
            pytest.fail(statement)
    if role != "migrator":
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            QueueStorage(session, namespace).grow(6)


def test_others_may_do_nothing(login: Login, connection, connect, namespace: str) -> None:
    role = sql.Identifier(f"{namespace}_stranger")
    connection.execute(sql.SQL("CREATE ROLE {}").format(role))
    try:
        session = connect()
        session.execute(sql.SQL("SET ROLE {}").format(role))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(f"SELECT FROM {namespace}.ready_entries".encode())
        session.close()
    finally:
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.mark.parametrize("bad", ["", "a" * 64, "a\0b", "b"])
def test_a_name_that_no_role_can_have_is_refused(bad: str) -> None:
    with pytest.raises(InvalidArgument):
        migrations.grants("jobs", migrator=bad, maintainer="b", application="c")
