"""Interrupts that come in the middle of a statement: the session comes to rest, and what is in hand is handed back."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from interrupts import Interruptible
from memory_kit import Database, failing, in_thread, say, until
from parkkeeper import database
from parkkeeper.database import bring_to_rest
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors.chunks import Chunks


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_an_interrupt_while_a_claim_waits_for_a_lock_hands_the_turn_back(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database, interrupt: type[BaseException]
) -> None:
    def stop(number: int, frame: object) -> None:
        raise interrupt

    db(
        "CREATE FUNCTION {schema}.hold() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock(hashtext(TG_TABLE_SCHEMA)); RETURN NEW; END $$"
    )
    db(
        "CREATE TRIGGER hold BEFORE UPDATE ON {schema}.observation FOR EACH ROW "
        "WHEN (NEW.claim_token IS NOT NULL) EXECUTE FUNCTION {schema}.hold()"
    )
    store.append("s", say("x"))
    worker = another(application_name="worker")

    def interrupt_the_claim() -> None:
        until(lambda: db.waiting_for_a_lock("worker"))
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with store.connection.transaction():
            store.connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [store.namespace.name])
            sent = in_thread(interrupt_the_claim)
            with pytest.raises(interrupt):
                worker.form_batch(Chunks())
            sent.result()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert db.turn(0, "formation_attempts", "claim_token") == (0, None)
    assert worker.form_batch(Chunks()).formed == 1


def test_whichever_statement_of_a_batch_is_interrupted_no_turn_stays_in_hand(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    interrupted = 0
    while True:
        offset = store.append("s", say("x")).log_offset
        worker = another(connection_class=Interruptible)
        worker.connection.interrupt_at(interrupted + 1)
        try:
            worker.form_batch(Chunks())
            break
        except KeyboardInterrupt:
            interrupted += 1
        attempts, token, formed = db.turn(
            offset, "formation_attempts", "claim_token", "formed_at IS NOT NULL"
        )
        assert (attempts, token) == (int(formed), None), f"interrupted in statement {interrupted}"
        store.form_batch(Chunks())
    assert interrupted > 5
    assert db.one("SELECT count(*) FROM {schema}.observation WHERE formed_at IS NULL") == 0


@pytest.mark.parametrize("wait", [2, 3])
def test_a_session_is_used_again_after_an_interrupt_in_a_pipeline(
    connect: Callable[..., Any], wait: int
) -> None:
    connection = connect(connection_class=Interruptible)
    connection.execute("CREATE TEMPORARY TABLE noted (n int)")
    # psycopg raises an error of its own instead when it is interrupted while it leaves the pipeline.
    with pytest.raises((KeyboardInterrupt, psycopg.OperationalError)), connection.transaction():
        connection.execute("SELECT 1")
        connection.interrupt_at(wait)
        connection.cursor().executemany("INSERT INTO noted VALUES (%(n)s)", [{"n": n} for n in range(4)])
    bring_to_rest(connection)
    assert connection.info.transaction_status == TransactionStatus.IDLE
    assert connection.execute("SELECT count(*) FROM noted").fetchone() == (0,)


def test_a_session_that_does_not_come_to_rest_in_time_is_closed(
    connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection: psycopg.Connection[Any] = connect(connection_class=Interruptible)
    connection.interrupt_at(1)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        connection.execute("SELECT pg_sleep(3600)")
    monkeypatch.setattr(database, "REST_WITHIN", 0)
    bring_to_rest(connection)
    assert connection.closed


CALLS: dict[str, Callable[[MemoryStore], Any]] = {
    "append": lambda s: s.append("s", say("x"), idempotency_key="k"),
    "form_batch": lambda s: s.form_batch(failing("auth", offsets=[2])),
    "unpark": lambda s: s.unpark(),
    "sweep": lambda s: s.sweep(),
    "rebuild": lambda s: s.rebuild("s", failing("auth", offsets=[0])),
    "cancel_rebuild": lambda s: s.cancel_rebuild("s"),
    "freshness": lambda s: s.freshness("s"),
    "recall": lambda s: s.recall("s", "x"),
    "pause": lambda s: s.pause("t"),
    "erase": lambda s: s.erase(subject="nobody", reason="test"),
    "expire": lambda s: s.expire(timedelta(days=1), reason="test"),
    "drop": lambda s: s.drop("t", reason="test"),
}


@pytest.mark.parametrize("done", [False, True])
def test_whichever_statement_is_interrupted_the_session_is_free_and_nothing_stays_in_hand(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database, done: bool
) -> None:
    store.append_many("s", [{"messages": say("x")}] * 3)
    store.form_batch(failing("refusal", offsets=[1]), limit=2)
    worker = another(connection_class=Interruptible)
    for name, call in CALLS.items():
        interrupted = 0
        while True:
            worker.connection.interrupt_at(interrupted + 1, done=done)  # type: ignore[attr-defined]
            try:
                call(worker)
                break
            except (KeyboardInterrupt, psycopg.OperationalError):
                interrupted += 1
            where = f"{name}, statement {interrupted}"
            assert worker.connection.info.transaction_status == TransactionStatus.IDLE, where
            assert all(each.state != "running" for each in store.rebuilds()), where
            assert not any(each.probing for each in store.circuits()), where
            assert db.one("SELECT count(claim_token) FROM {schema}.observation") == 0, where
            db.come_due()
        assert interrupted
    worker.connection.interrupt_at(0)  # type: ignore[attr-defined]
    assert store.verify() == []


def test_an_interrupt_leaves_the_callers_own_transaction_to_the_caller(
    store: MemoryStore, another: Callable[..., MemoryStore]
) -> None:
    worker = another(connection_class=Interruptible)
    with worker.connection.transaction():
        worker.append("s", say("kept"))
        worker.connection.interrupt_at(1, done=True)  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            worker.freshness("s")
    assert store.freshness("s").stored == 1
