"""Shards: batches that go round a part of the scopes each, and together round all of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from memory_kit import PATIENCE, Database, Scripted, in_thread, say
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import Memory, Turn

SCOPES = [f"scope {number}" for number in range(60)]


def test_each_scope_is_in_one_shard_whenever_it_is_asked_for(store: MemoryStore) -> None:
    for scope in SCOPES:
        store.append_many(scope, [{"messages": say("x")}] * 2)
    shards: list[set[str]] = []
    for number in range(4):
        first, again = Scripted(lambda turn: [Memory("x")]), Scripted(lambda turn: [Memory("x")])
        store.form_batch(first, shard=(number, 4), limit=7)  # begins in some scopes
        store.form_batch(again, shard=(number, 4))
        shards.append({turn.scope for turn in [*first.seen, *again.seen]})
    assert Counter(scope for shard in shards for scope in shard) == Counter(SCOPES)
    assert all(shards)
    assert store.due_scopes() == 0


def test_batches_of_all_shards_at_once_form_each_turn_once(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    for scope in SCOPES:
        store.append_many(scope, [{"messages": say("x")}] * 2)
    seen: list[tuple[str, int]] = []
    start = threading.Barrier(3)

    def note(turn: Turn) -> list[Memory]:
        seen.append((turn.scope, turn.log_offset))
        return [Memory("x")]

    def work(number: int) -> int:
        mine = another()
        start.wait(PATIENCE)
        return mine.form_batch(Scripted(note), shard=(number, 3), limit=1000).formed

    done = [in_thread(lambda number=number: work(number)) for number in range(3)]  # type: ignore[misc]
    assert sum(future.result(PATIENCE) for future in done) == 120
    assert Counter(seen) == Counter((scope, offset) for scope in SCOPES for offset in range(2))
    assert db.one("SELECT count(*) FROM {schema}.memory") == 120


def test_only_scopes_with_a_turn_that_is_due_are_counted(store: MemoryStore, db: Database) -> None:
    for scope in ("formed", "paused", "later", "due", "also due"):
        store.append_many(scope, [{"messages": say("x")}] * 3)
    store.form_batch(Scripted(lambda turn: []), scope="formed")
    store.pause("paused")
    db("UPDATE {schema}.observation SET next_attempt_at = now() + interval '1 hour' WHERE scope = 'later'")
    assert store.due_scopes() == 2
