"""Pauses and caps: what is left alone, what is refused, and that neither touches a turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from memory_kit import PATIENCE, Database, Scripted, in_thread, say, until
from outages import outage
from parkkeeper.errors import InvalidArgument, InvalidName
from parkkeeper.memory import BacklogFull, FormationPaused, MemoryStore
from parkkeeper.memory.extractors import Memory, Turn
from parkkeeper.memory.extractors.chunks import Chunks

TURN = {"messages": say("MARKER")}


def test_no_turn_of_a_paused_scope_is_claimed(store: MemoryStore, db: Database) -> None:
    store.append_many("s", [TURN] * 2)
    store.append("t", say("x"))
    assert store.pause("s")
    assert not store.pause("s")
    outcome = store.form_batch(Chunks(), limit=1)  # the paused one takes no place among the scopes of a batch
    assert (outcome.formed, outcome.backlog, outcome.paused) == (1, 2, False)
    asked = store.form_batch(Chunks(), scope="s")
    assert (asked.formed, asked.backlog, asked.paused) == (0, 2, True)
    assert store.freshness("s").paused_at is not None
    assert db("SELECT DISTINCT formation_attempts FROM {schema}.observation WHERE scope = 's'") == [(0,)]
    assert store.append("s", say("more")).log_offset == 2
    assert store.resume("s")
    assert not store.resume("s")
    assert store.form_batch(Chunks()).formed == 3
    assert store.freshness("s").paused_at is None


def test_a_paused_extractor_is_given_no_turn_and_no_canary(store: MemoryStore, db: Database) -> None:
    store.append_many("s", [TURN] * 3)
    down = outage("500")
    assert store.form_batch(down).circuit == "open"
    db("UPDATE {schema}.formation_circuit SET next_probe_at = now() - interval '1 second'")
    assert store.pause(extractor="scripted")
    again = outage("500")
    outcome = store.form_batch(again)
    assert (outcome.paused, again.seen, again.canaries) == (True, [], [])
    assert store.form_batch(Chunks()).formed == 3
    assert store.resume(extractor="scripted")
    assert len(store.form_batch(again).circuit) and again.canaries


@pytest.mark.parametrize("what", [{"scope": "s"}, {"extractor": "scripted"}], ids=str)
def test_a_batch_that_runs_takes_no_further_turn_once_paused(
    store: MemoryStore, another: Callable[..., MemoryStore], what: dict[str, str]
) -> None:
    store.append_many("s", [TURN] * 3)
    meanwhile = another()

    def answer(turn: Turn) -> list[Memory]:
        meanwhile.pause(**what)
        return [Memory("x")]

    assert store.form_batch(Scripted(answer)).formed == 1
    assert store.freshness("s").backlog == 2


def test_a_rebuild_of_what_is_paused_is_refused(store: MemoryStore) -> None:
    store.append("s", say("x"))
    store.form_batch(Chunks())
    store.pause("s")
    with pytest.raises(FormationPaused, match="scope s is paused"):
        store.rebuild("s", Chunks())
    store.resume("s")
    store.pause(extractor="chunks")
    with pytest.raises(FormationPaused, match="extractor chunks is paused"):
        store.rebuild("s", Chunks())
    assert store.rebuilds() == []


def test_what_is_decided_is_listed_and_goes_with_the_scope(store: MemoryStore) -> None:
    store.pause("s")
    store.pause(extractor="llm")
    store.set_backlog_cap(7, scope="t")
    store.set_backlog_cap(99)
    found = store.settings()
    assert found.backlog_cap == 99 and list(found.paused_extractors) == ["llm"]
    assert [(scope.scope, scope.paused_at is None, scope.backlog_cap) for scope in found.scopes] == [
        ("s", False, None),
        ("t", True, 7),
    ]
    store.drop("s", reason="account_closed")
    store.set_backlog_cap(None, scope="t")
    store.set_backlog_cap(None)
    assert (store.settings().scopes, store.settings().backlog_cap) == ([], None)


def test_an_append_over_the_cap_of_its_scope_is_refused_and_stores_nothing(
    store: MemoryStore, db: Database
) -> None:
    store.set_backlog_cap(3, scope="s")
    with pytest.raises(BacklogFull):
        store.append_many("s", [TURN] * 4)
    assert store.freshness("s").stored == 0
    store.append_many("s", [TURN] * 2)
    with pytest.raises(BacklogFull, match="scope s, which is 2, would be over its cap of 3") as refused:
        store.append_many("s", [TURN | {"idempotency_key": "MARKER 1"}, TURN])
    assert "MARKER" not in str(refused.value)
    assert store.append("s", say("third")).log_offset == 2
    with pytest.raises(BacklogFull):
        store.append("s", say("fourth"))
    assert store.append("t", say("elsewhere")).log_offset == 0
    assert store.form_batch(Chunks(), scope="s", limit=1).formed == 1
    assert store.append("s", say("fourth")).log_offset == 3
    assert db.one("SELECT count(*) FROM {schema}.observation") == store.freshness("s").stored + 1


def test_an_append_over_the_cap_of_the_namespace_is_refused(store: MemoryStore) -> None:
    store.set_backlog_cap(3)
    store.set_backlog_cap(100, scope="s")
    store.append_many("s", [TURN] * 2)
    store.append("t", say("x"))
    for scope in ("s", "t", "new"):
        with pytest.raises(BacklogFull, match="which is 3, would be over its cap of 3") as refused:
            store.append(scope, say("x"))
        assert "backlog of namespace" in str(refused.value)
    assert store.freshness("new").stored == 0
    store.form_batch(Chunks(), scope="t")
    assert store.append("new", say("x")).created


def test_a_repeated_append_is_recognised_whatever_the_backlog(store: MemoryStore) -> None:
    store.append("s", say("x"), idempotency_key="k")
    store.set_backlog_cap(1, scope="s")
    assert not store.append("s", say("x"), idempotency_key="k").created


def test_a_refusal_in_a_transaction_of_the_caller_undoes_the_append_alone(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkkeeper.memory.log.TURNS_PER_STATEMENT", 2)
    store.set_backlog_cap(5, scope="s")
    with store.connection.transaction():
        store.append("s", say("kept"))
        with pytest.raises(BacklogFull):
            store.append_many("s", [TURN] * 6)
        store.append("s", say("kept too"))
    assert (store.freshness("s").stored, store.freshness("s").backlog) == (2, 2)


def test_appends_at_once_do_not_go_past_the_cap_of_their_scope(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    store.append("s", say("x"))
    store.set_backlog_cap(2, scope="s")
    second = another(application_name="second")
    with store.connection.transaction():
        store.append("s", say("first"))
        result = in_thread(lambda: second.append("s", say("second")))
        until(lambda: db.waiting_for_a_lock("second"))
    with pytest.raises(BacklogFull):
        result.result(PATIENCE)
    assert store.freshness("s").backlog == 2


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda store: store.pause(), InvalidArgument),
        (lambda store: store.pause("s", extractor="e"), InvalidArgument),
        (lambda store: store.resume(), InvalidArgument),
        (lambda store: store.pause(""), InvalidName),
        (lambda store: store.pause(extractor=" "), InvalidName),
        (lambda store: store.set_backlog_cap(0), InvalidArgument),
        (lambda store: store.set_backlog_cap(1, scope=""), InvalidName),
    ],
)
def test_what_cannot_be_decided_is_refused(
    store: MemoryStore, call: Callable[[MemoryStore], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(store)
    assert store.settings().scopes == []
