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

#: Pages that a statement of a few index probes looks at, with room for a deeper index.
FEW = 60
CHANGE = {"scope": "s", "formed": 0, "parked": 0, "erased": 0, "reopened": None}


def pages(db: Database, file: str, name: str, values: dict[str, Any]) -> int:
    """Run a statement, undo it, and return how many pages it looked at."""
    explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statements(file).render(name, db.namespace)
    with db.connection.transaction(force_rollback=True):
        plan = db.connection.execute(explain, values).fetchone()[0][0]["Plan"]  # type: ignore[index]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.fixture
def pinned(store: MemoryStore, connect: Callable[..., Any], db: Database) -> MemoryStore:
    """A scope of 600 turns that were formed, but for some parked, while an old snapshot is open."""
    db("ALTER TABLE {schema}.observation SET (autovacuum_enabled = off)")
    old = connect()
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT 1")
    store.append_many("s", [{"messages": say("x")}] * 600)
    store.form_batch(failing("refusal", offsets=range(500, 520)), limit=600)
    assert store.freshness("s").parked == 20
    return store


def test_the_watermark_is_found_without_a_walk_over_what_it_has_passed(
    pinned: MemoryStore, db: Database
) -> None:
    assert pages(db, "memory/watermark", "recompute", CHANGE) < FEW


def test_a_batch_claims_without_a_walk_over_what_it_has_claimed(pinned: MemoryStore, db: Database) -> None:
    last = db.turn(599, "observation_id", "scope", "log_offset", "ingested_at")
    pinned.append("s", say("next"))
    values = {
        "scope": "s",
        "token": uuid.uuid4(),
        "after": last[3],
        "after_offset": last[2],
        "max_attempts": 6,
        "lease": timedelta(minutes=5),
    }
    assert pages(db, "memory/claim", "claim", values) < FEW


def test_freshness_is_read_without_a_walk_over_the_log(pinned: MemoryStore, db: Database) -> None:
    assert pages(db, "memory/reading", "freshness", {"scope": "s", "walk": 1001}) < FEW


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


def test_parked_turns_that_were_formed_since_are_not_walked_over_either(
    pinned: MemoryStore, db: Database
) -> None:
    pinned.unpark()
    pinned.form_batch(Chunks(), limit=20)
    assert pages(db, "memory/watermark", "recompute", CHANGE) < FEW
    assert pages(db, "memory/reading", "freshness", {"scope": "s", "walk": 1001}) < FEW
