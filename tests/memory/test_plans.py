"""What a step costs does not grow with what lies behind it, even while an old snapshot keeps all of that alive."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from memory_kit import Database, failing, say
from parkkeeper.database import statements
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors.chunks import Chunks

TURNS = 5_000
#: Pages that a statement of a few index probes looks at, with room for a deeper index.
FEW = 60
CHANGE = {"scope": "s", "formed": 0, "parked": 0, "erased": 0, "reopened": None, "replaced": False}

#: Every turn was claimed, parked, unparked, claimed again and formed, but for the last one, which is parked still.
PAST = (
    "UPDATE {schema}.watermark SET log_offset = %(turns)s - 1",
    "UPDATE {schema}.watermark_formed SET formed_offset = %(turns)s - 1, formed_strict_offset = %(turns)s - 2, "
    "formed = %(turns)s - 1, parked = 1",
    "INSERT INTO {schema}.parked_class VALUES ('s', 'other', 1)",
    "INSERT INTO {schema}.observation (scope, log_offset, occurred_at) "
    "SELECT 's', number, now() FROM generate_series(1, %(turns)s - 1) AS number",
    "UPDATE {schema}.observation SET formation_attempts = 1, next_attempt_at = now()",
    "UPDATE {schema}.observation SET parked_at = clock_timestamp()",
    "UPDATE {schema}.observation SET parked_at = NULL, next_attempt_at = clock_timestamp() "
    "WHERE log_offset < %(turns)s - 1",
    "UPDATE {schema}.observation SET formed_at = now() WHERE parked_at IS NULL",
)


def pages(db: Database, file: str, name: str, values: dict[str, Any]) -> int:
    """Run a statement, undo it, and return how many pages it looked at."""
    explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statements(file).render(name, db.namespace)
    with db.connection.transaction(force_rollback=True):
        plan = db.connection.execute(explain, values).fetchone()[0][0]["Plan"]  # type: ignore[index]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.fixture
def pinned(store: MemoryStore, connect: Callable[..., Any], db: Database) -> MemoryStore:
    """A scope with a long past, of which an old snapshot that is still open keeps every version."""
    db("ALTER TABLE {schema}.observation SET (autovacuum_enabled = off)")
    old = connect()
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT 1")
    store.append("s", say("x"))
    for statement in PAST:
        db(statement, {"turns": TURNS})
    db(
        "UPDATE {schema}.watermark_formed SET oldest_parked_at = "
        "(SELECT parked_at FROM {schema}.observation WHERE parked_at IS NOT NULL)"
    )
    db("ANALYZE {schema}.observation")
    found = store.freshness("s")
    assert (found.stored, found.formed, found.parked_ranges) == (TURNS, TURNS - 1, ((TURNS - 1, TURNS - 1),))
    return store


def test_the_watermark_is_found_without_a_walk_over_what_it_has_passed(
    pinned: MemoryStore, db: Database
) -> None:
    assert pages(db, "memory/watermark", "recompute", CHANGE) < FEW
    assert pages(db, "memory/watermark", "recompute", CHANGE | {"parked": -1}) < FEW


def test_unparked_turns_in_front_of_the_watermark_are_not_walked_over(
    pinned: MemoryStore, db: Database
) -> None:
    pinned.unpark()
    pinned.form_batch(Chunks())
    db("UPDATE {schema}.observation SET formed_at = NULL WHERE log_offset = 0")
    db(
        "UPDATE {schema}.watermark_formed SET formed_offset = -1, formed_strict_offset = -1, formed = formed - 1"
    )
    assert pages(db, "memory/watermark", "recompute", CHANGE) < FEW
    assert pages(db, "memory/reading", "freshness", {"scope": "s", "walk": 1001}) < FEW


def test_freshness_is_read_without_a_walk_over_turns_that_were_parked_before(
    pinned: MemoryStore, db: Database
) -> None:
    assert pinned.freshness("s").oldest_parked_at == db.turn(TURNS - 1, "parked_at")
    assert pages(db, "memory/reading", "freshness", {"scope": "s", "walk": 1001}) < FEW


def test_the_longest_parked_turn_is_found_without_a_walk_over_those_before_it(
    pinned: MemoryStore, db: Database
) -> None:
    pinned.append("s", say("x"))
    assert pinned.form_batch(failing("refusal")).parked == 1
    assert pages(db, "memory/watermark", "recompute", CHANGE | {"parked": 1}) < FEW
    pinned.unpark(limit=1)
    assert pinned.freshness("s").oldest_parked_at == db.turn(TURNS, "parked_at")
    assert pages(db, "memory/watermark", "recompute", CHANGE | {"parked": -1}) < FEW


def test_freshness_is_read_without_a_walk_over_the_log(pinned: MemoryStore, db: Database) -> None:
    pinned.unpark()
    pinned.form_batch(Chunks())
    assert pinned.freshness("s").formed_strict == TURNS - 1
    assert pages(db, "memory/reading", "freshness", {"scope": "s", "walk": 1001}) < FEW


def test_a_page_of_parked_turns_begins_where_the_last_one_ended(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"))
    for statement in PAST[:5]:
        db(statement, {"turns": TURNS})
    db("UPDATE {schema}.observation SET formation_attempts = 1, parked_at = clock_timestamp()")
    db("VACUUM (ANALYZE) {schema}.observation")
    values = {"after_scope": "s", "after_offset": TURNS - 10, "limit": 100}
    assert pages(db, "memory/parking", "parked", values | {"scope": "s"}) < FEW // 4
    assert pages(db, "memory/parking", "parked", values | {"scope": None}) < FEW // 4
    assert [turn.log_offset for turn in store.parked("s", after=("s", TURNS - 3))] == [TURNS - 2, TURNS - 1]
    assert store.parked("t", after=("s", 0)) == []
    assert len(store.parked("s", after=("a", TURNS))) == 100


def test_a_batch_claims_without_a_walk_over_what_it_has_claimed(pinned: MemoryStore, db: Database) -> None:
    last = db.one("SELECT max(next_attempt_at) FROM {schema}.observation WHERE formed_at IS NOT NULL")
    pinned.append("s", say("next"))
    values = {
        "scope": "s",
        "token": uuid.uuid4(),
        "after": last,
        "after_offset": TURNS,
        "max_attempts": 6,
        "at_once": ["refusal"],
        "extractor": "chunks",
        "version": "1",
        "identity": "",
        "lease": timedelta(minutes=5),
    }
    assert pages(db, "memory/claim", "claim", values) < FEW


def test_recall_looks_through_one_scope_and_not_through_all_that_use_the_word(
    store: MemoryStore, db: Database
) -> None:
    store.append_many("crowd", [{"messages": say(*[f"green {'y' * 300}"] * 100)}] * 60)
    store.append("s", say("green"))
    store.form_batch(Chunks())
    db("ANALYZE {schema}.memory")
    assert db.one("SELECT pg_relation_size('{schema}.memory') / 8192") > 5 * FEW
    values = {"scope": "s", "words": "'green'", "scope_word": "'\x01s'", "limit": 10}
    assert pages(db, "memory/reading", "recall", values) < FEW
