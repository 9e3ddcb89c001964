"""Dropping a whole namespace: what goes is counted and said, and what is not the memory's never goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from memory_kit import Database, Scripted, failing, say
from parkkeeper.errors import (
    ForeignObjects,
    InvalidArgument,
    MigrationBlocked,
    TransactionOpen,
    UnknownNamespace,
)
from parkkeeper.memory import MemoryStore, NamespaceInUse, drop_namespace
from parkkeeper.memory.extractors import Memory
from parkkeeper.migrations import Patience, migrate, status, verify
from parkkeeper.queue import QueueStorage

SHORT = Patience(lock_timeout=timedelta(milliseconds=50))


@pytest.fixture
def filled(store: MemoryStore) -> MemoryStore:
    """Two scopes: three turns formed, one parked, one pending, one erased."""
    store.append_many("s", [{"messages": say(f"word {n}", "and"), "language": "en"} for n in range(3)])
    store.append("t", say("rosebud"), subject="ann", idempotency_key="k")
    store.form_batch(failing("refusal", offsets=[2]), scope="s")
    store.form_batch(failing("refusal", offsets=[]), scope="t")
    store.erase(subject="ann", reason="test")
    store.append("t", say("pending"))
    store.set_backlog_cap(7)
    return store


@pytest.fixture
def elsewhere(connection: psycopg.Connection[Any], namespace: str) -> Iterator[str]:
    """Another schema, of somebody else's."""
    name = f"{namespace}_other"
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    yield name
    connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


def exists(connection: psycopg.Connection[Any], namespace: str) -> bool:
    return bool(connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", [namespace]).fetchone()[0])  # type: ignore[index]


def test_all_of_it_goes_and_the_receipt_counts_what_was_there(
    filled: MemoryStore, connection: psycopg.Connection[Any], namespace: str
) -> None:
    receipt = drop_namespace(connection, namespace, reason="offboarding")
    assert (receipt.namespace, receipt.reason, receipt.schema_dropped) == (namespace, "offboarding", True)
    assert receipt.dropped == {
        "scope": 2,
        "observation": 4,
        "parked": 1,
        "turn_message": 7,
        "memory": 4,
        "idempotency_digest": 1,
        "erasure_request": 1,
    }
    assert not exists(connection, namespace)
    with pytest.raises(UnknownNamespace):
        drop_namespace(connection, namespace, reason="offboarding")


def test_a_queue_in_the_same_namespace_stays_as_it_is(
    filled: MemoryStore, connection: psycopg.Connection[Any], namespace: str
) -> None:
    migrate(connection, namespace, "queue", queue_slots=4)
    jobs = QueueStorage(connection, namespace)
    jobs.enqueue("mail", "send")
    assert drop_namespace(connection, namespace, reason="offboarding").schema_dropped is False
    found = verify(connection, namespace)
    assert (dict(found.versions).keys(), found.differences) == ({"queue"}, ())
    assert jobs.queue_counts("mail").available == 1
    settings = sql.SQL("SELECT name FROM {} WHERE name IN ('digest_key', 'memory_backlog_cap')")
    assert connection.execute(settings.format(sql.Identifier(namespace, "settings"))).fetchall() == []
    assert status(connection, namespace, "memory").applied == ()
    migrate(connection, namespace, "memory")
    assert filled.freshness("s").stored == 0


def test_turns_in_hand_are_lost_only_when_that_was_said(
    store: MemoryStore, connect: Callable[..., Any], namespace: str
) -> None:
    store.append("s", say("x"))
    other = connect()

    def answer(despite_claims: bool) -> list[Memory]:
        drop_namespace(other, namespace, reason="test", despite_claims=despite_claims)
        return [Memory("x")]

    refused: list[str] = []

    def work(turn: object) -> list[Memory]:
        with pytest.raises(NamespaceInUse, match="workers have 1 turns and 0 rebuilds in hand") as raised:
            answer(False)
        refused.append(str(raised.value))
        assert exists(other, namespace)
        return answer(True)

    with pytest.raises(UnknownNamespace):
        store.form_batch(Scripted(work))
    assert len(refused) == 1
    assert not exists(other, namespace)


def test_what_is_not_parkkeepers_keeps_the_namespace_and_is_named(
    filled: MemoryStore, connection: psycopg.Connection[Any], namespace: str, db: Database, elsewhere: str
) -> None:
    before = filled.freshness("s")
    db("CREATE TABLE {schema}.ledger_of_theirs (id int)")
    with pytest.raises(ForeignObjects, match=r"its schema holds .*table .*ledger_of_theirs"):
        drop_namespace(connection, namespace, reason="test")
    db("DROP TABLE {schema}.ledger_of_theirs")
    connection.execute(
        sql.SQL("CREATE VIEW {} AS SELECT * FROM {}").format(
            sql.Identifier(elsewhere, "theirs"), sql.Identifier(namespace, "turn_message")
        )
    )
    with pytest.raises(ForeignObjects, match=r"depends on it: view .*theirs depends on table"):
        drop_namespace(connection, namespace, reason="test")
    assert filled.freshness("s") == before
    assert filled.verify() == []


def test_a_lock_that_is_not_had_drops_nothing(
    filled: MemoryStore, connection: psycopg.Connection[Any], namespace: str, db: Database, monkeypatch: Any
) -> None:
    monkeypatch.setattr("parkkeeper.memory.dropping.Patience", lambda: SHORT)
    with db.connection.transaction():
        MemoryStore(db.connection, namespace).append("t", say("not committed"))
        with pytest.raises(MigrationBlocked, match="nothing was dropped; try again"):
            drop_namespace(connection, namespace, reason="test")
    assert filled.freshness("t").stored == 3


def test_what_cannot_be_done_is_refused_before_anything_goes(
    store: MemoryStore, connection: psycopg.Connection[Any], namespace: str
) -> None:
    with pytest.raises(InvalidArgument, match="reason"):
        drop_namespace(connection, namespace, reason="No Code")
    with connection.transaction(), pytest.raises(TransactionOpen, match="drop_namespace"):
        drop_namespace(connection, namespace, reason="test")
    assert exists(connection, namespace)
