"""Erasure: what goes, what is left behind to tell of it, and what the numbers say afterwards."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from memory_kit import PATIENCE, Database, Scripted, failing, in_thread, say, until
from parkkeeper.errors import InvalidArgument, InvalidName, TransactionOpen
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.migrations import migrate

NONE = {"observation": 0, "turn_message": 0, "memory": 0, "idempotency_digest": 0}


def dump(db: Database) -> str:
    """Return every row of every table of the namespace as text."""
    tables = db(
        "SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p')",
        (db.namespace.name,),
    )
    found = [db(f"SELECT t::text FROM {{schema}}.{name} AS t ORDER BY 1") for (name,) in tables]  # noqa: S608
    return "\n".join(row[0] for rows in found for row in rows)


def statistics(db: Database) -> str:
    """Return what the planner keeps of the rows of the namespace as text."""
    for (name,) in db("SELECT tablename FROM pg_tables WHERE schemaname = %s", (db.namespace.name,)):
        db(f"ANALYZE {{schema}}.{name}")
    return "\n".join(
        row[0] for row in db("SELECT s::text FROM pg_stats AS s WHERE schemaname = %s", (db.namespace.name,))
    )


def test_what_a_subject_said_goes_with_all_that_came_of_it(store: MemoryStore, db: Database) -> None:
    store.append("s", say("one", "two"), subject="ann", idempotency_key="k")
    store.append("s", say("three"), subject="ann")
    store.append("s", say("other"), subject="bob")
    store.append("t", say("four"), subject="ann")
    store.form_batch(Chunks())
    receipt = store.erase(subject="ann", reason="subject_request")
    assert receipt.deleted == {"observation": 3, "turn_message": 4, "memory": 4, "idempotency_digest": 1}
    assert (receipt.residual, receipt.clean) == (NONE, True)
    assert db("SELECT text FROM {schema}.memory") == [("other",)]
    assert db("SELECT content FROM {schema}.turn_message") == [("other",)]
    assert db.one("SELECT count(*) FROM {schema}.projection_dependency") == 1
    assert [store.turn_status("s", offset) for offset in range(4)] == [
        "erased",
        "erased",
        "formed",
        "unknown",
    ]


def test_nothing_of_a_marker_is_left_after_erasure_nor_was_ever_logged(
    store: MemoryStore, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def answer(turn: Turn) -> list[Memory]:
        if turn.log_offset % 2:
            raise ExtractionError(
                "refusal" if turn.log_offset == 1 else "malformed", turn.messages[0]["content"]
            )
        return [Memory(turn.messages[0]["content"], "what MARKER fears")]

    for offset in range(60):
        store.append("s", say(f"MARKER {offset} words"), subject="MARKER", idempotency_key=f"MARKER {offset}")
    store.form_batch(Scripted(answer))
    assert store.freshness("s").parked == 1
    assert "MARKER" in dump(db)
    assert "log_offset" in statistics(db)
    assert not re.search("marker", statistics(db), re.IGNORECASE)
    receipt = store.erase(subject="MARKER", reason="subject_request")
    assert (receipt.deleted["observation"], receipt.clean) == (60, True)
    assert not re.search("marker", dump(db), re.IGNORECASE)
    assert not re.search("marker", caplog.text, re.IGNORECASE)
    assert db.one("SELECT count(*) FROM {schema}.turn_idempotency WHERE erased_at IS NOT NULL") == 60


def test_what_was_sampled_of_kinds_of_memory_goes_with_an_upgrade(
    connection: psycopg.Connection[Any], db: Database, namespace: str
) -> None:
    migrate(connection, namespace, "memory", target=20)
    store = MemoryStore(connection, namespace)
    store.append_many("s", [{"messages": say("x")}] * 9)
    store.form_batch(Scripted(lambda turn: [Memory("x", "what MARKER fears")]))
    assert "MARKER" in statistics(db)
    before = db("SELECT pg_relation_filenode(%s)", (f"{namespace}.memory",))
    migrate(connection, namespace, "memory")
    assert "MARKER" not in statistics(db)
    assert db("SELECT pg_relation_filenode(%s)", (f"{namespace}.memory",)) == before  # nothing was rewritten


def test_the_text_of_an_error_goes_when_its_turn_does(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"), subject="ann")
    store.append("s", say("y"), subject="bob")
    store.form_batch(failing("refusal", "the provider repeats MARKER", offsets=[0]))
    assert db.turn(0, "formation_error") == "the provider repeats MARKER"
    store.erase(subject="ann", reason="subject_request")
    assert "MARKER" not in dump(db)


@pytest.mark.parametrize("fate", ["formed", "parked", "pending"])
def test_the_watermark_goes_past_what_is_erased(store: MemoryStore, fate: str) -> None:
    store.append_many(
        "s", [{"messages": say("x"), "subject": ("ann", "bob")[offset > 1]} for offset in range(4)]
    )
    errors = {"formed": failing("refusal", offsets=[]), "parked": failing("refusal", offsets=[0, 1])}
    store.form_batch(errors.get(fate, failing("malformed", offsets=[0, 1])))
    store.erase(subject="ann", reason="request")
    found = store.freshness("s")
    assert (found.stored, found.formed, found.formed_strict) == (4, 3, 3)
    assert (found.parked, found.erased, found.backlog, found.by_class) == (0, 2, 0, {})


def test_an_erased_scope_is_caught_up(store: MemoryStore) -> None:
    store.append_many("s", [{"messages": say("x")}] * 3)
    receipt = store.erase(scope="s", reason="scope_closed")
    assert receipt.deleted["observation"] == 3
    found = store.freshness("s")
    assert (found.stored, found.formed, found.formed_strict, found.erased, found.backlog) == (3, 2, 2, 3, 0)
    assert store.append("s", say("again")).log_offset == 3
    assert store.freshness("s").backlog == 1


def test_conditions_narrow_each_other_and_other_turns_stay(store: MemoryStore, db: Database) -> None:
    turns = [
        store.append(scope, say("x"), subject=subject) for scope in ("s", "t") for subject in ("ann", "bob")
    ]
    assert store.erase(scope="s", subject="ann", reason="r").deleted["observation"] == 1
    assert (
        store.erase(scope="t", observation_ids=[turn.observation_id for turn in turns], reason="r").deleted[
            "observation"
        ]
        == 2
    )
    assert store.erase(observation_ids=[], reason="r").deleted == NONE
    assert db("SELECT scope, data_subject_id FROM {schema}.observation") == [("s", "bob")]


def test_erasing_what_is_not_there_is_a_clean_receipt(store: MemoryStore) -> None:
    receipt = store.erase(subject="nobody", reason="subject_request")
    assert (receipt.deleted, receipt.residual, receipt.clean) == (NONE, NONE, True)


def test_a_receipt_is_kept_and_names_nobody(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"), subject="MARKER")
    receipt = store.erase(subject="MARKER", reason="subject_request")
    again = store.erase(subject="MARKER", reason="subject_request")
    rows = db(
        "SELECT request_id, reason, scope, by_ids, subject_digest, deleted, residual, clean, erased_at IS NOT NULL "
        "FROM {schema}.erasure_request ORDER BY erased_at"
    )
    assert [row[0] for row in rows] == [receipt.request_id, again.request_id]
    assert rows[0][1:4] == ("subject_request", None, False)
    assert rows[0][4] == rows[1][4] and len(rows[0][4]) == 32  # whoever knows the subject can find it
    assert rows[0][5:] == (receipt.deleted, NONE, True, True)
    assert "MARKER" not in str(rows)


def test_a_turn_that_comes_while_erasing_is_counted_as_left(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    """Such a turn was stored after the erasure chose what to erase, and is not passed over in silence."""
    store.append("s", say("x"), subject="ann")
    erasing = another(application_name="erasing")
    with store.connection.transaction():
        store.connection.execute(
            f"SELECT 1 FROM {store.namespace.identifier}.observation FOR UPDATE".encode()  # noqa: S608
        )
        erasure = in_thread(lambda: erasing.erase(subject="ann", reason="request"))
        until(lambda: db.waiting_for_a_lock("erasing"))
        another().append("t", say("late"), subject="ann")
    receipt = erasure.result(PATIENCE)
    assert receipt.deleted["observation"] == 1
    assert (receipt.residual["observation"], receipt.residual["turn_message"], receipt.clean) == (1, 1, False)
    assert store.erase(subject="ann", reason="request").clean


def test_an_erasure_that_fails_half_way_leaves_everything(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"), subject="ann", idempotency_key="k")
    store.form_batch(Chunks())
    before = dump(db)
    db("ALTER TABLE {schema}.erasure_request ADD CONSTRAINT never_chk CHECK (false)")
    with pytest.raises(psycopg.errors.CheckViolation):
        store.erase(subject="ann", reason="request")
    assert dump(db) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"reason": "r"}, "at least one of scope, subject and observation_ids"),
        ({"subject": "ann", "reason": "Ann asked for it"}, "reason is refused: a code"),
        ({"subject": "ann", "reason": ""}, "reason is refused"),
        ({"subject": "ann", "reason": "x" * 65}, "reason is refused"),
        ({"subject": "", "reason": "r"}, "subject is refused"),
        ({"subject": "a\x00", "reason": "r"}, "subject is refused"),
    ],
)
def test_what_cannot_be_erased_by_is_refused(
    store: MemoryStore, arguments: dict[str, Any], said: str
) -> None:
    store.append("s", say("x"), subject="ann")
    with pytest.raises(InvalidArgument, match=said) as refused:
        store.erase(**arguments)
    assert "Ann" not in str(refused.value)
    assert store.freshness("s").erased == 0


def test_erasing_refuses_a_bad_scope_and_a_transaction_of_the_caller(store: MemoryStore) -> None:
    with pytest.raises(InvalidName):
        store.erase(scope="", reason="r")
    with store.connection.transaction(), pytest.raises(TransactionOpen):
        store.erase(scope="s", reason="r")
