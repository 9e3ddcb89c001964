"""Appending: offsets without gaps, repetition by key, the caller's transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import psycopg
import pytest
from psycopg import errors

from memory_kit import PATIENCE, Database, in_thread, say, until
from parkkeeper.errors import InvalidName, UnknownNamespace
from parkkeeper.memory import IdempotencyConflict, InvalidTurn, MemoryStore, TurnErased
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.migrations import migrate

OFFSETS = "SELECT log_offset FROM {schema}.observation WHERE scope = 's' ORDER BY log_offset"


def offsets(db: Database) -> list[int]:
    return [offset for (offset,) in db(OFFSETS)]


def test_offsets_start_at_zero_in_each_scope_and_turns_keep_their_words(
    store: MemoryStore, db: Database
) -> None:
    first = store.append("s", say("hello", "hi"), subject="ann")
    second = store.append("s", say("more"))
    other = store.append("t", say("else"))
    assert [(a.scope, a.log_offset, a.created) for a in (first, second, other)] == [
        ("s", 0, True),
        ("s", 1, True),
        ("t", 0, True),
    ]
    assert len({first.observation_id, second.observation_id, other.observation_id}) == 3
    assert db(
        "SELECT position, role::text, content FROM {schema}.turn_message ORDER BY observation_id, position"
    ) == [
        (0, "user", "hello"),
        (1, "assistant", "hi"),
        (0, "user", "more"),
        (0, "user", "else"),
    ]
    assert db.turn(0, "data_subject_id", "kind") == ("ann", "turn")


def test_times_are_kept_and_default_to_the_clock_of_the_database(store: MemoryStore, db: Database) -> None:
    said = datetime(2020, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    store.append("s", say("then"), occurred_at=said)
    store.append("s", say("now"))
    assert db.turn(0, "occurred_at") == said
    assert db.one("SELECT now() - occurred_at < '1 minute' FROM {schema}.observation WHERE log_offset = 1")


def test_many_are_stored_in_order_across_statements(
    store: MemoryStore, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkkeeper.memory.log.TURNS_PER_STATEMENT", 7)
    turns = [{"messages": say(f"word {number}")} for number in range(20)]
    appended = store.append_many("s", turns)
    assert [a.log_offset for a in appended] == list(range(20))
    assert [
        content
        for (content,) in db(
            "SELECT m.content FROM {schema}.turn_message AS m JOIN {schema}.observation AS o USING (observation_id) "
            "ORDER BY o.log_offset"
        )
    ] == [f"word {number}" for number in range(20)]
    assert store.append_many("s", []) == []


def test_long_turns_are_split_over_statements_by_their_length(
    store: MemoryStore, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkkeeper.memory.log.CHARACTERS_PER_STATEMENT", 10)
    assert len(store.append_many("s", [{"messages": say("x" * 9, "y" * 9)} for _ in range(3)])) == 3
    assert db.one("SELECT count(DISTINCT xmin::text) FROM {schema}.observation") == 1
    assert offsets(db) == [0, 1, 2]


def test_many_are_stored_all_or_none(store: MemoryStore, db: Database) -> None:
    with pytest.raises(InvalidTurn, match=r"turns\[1\]\.messages is empty"):
        store.append_many("s", [{"messages": say("good")}, {"messages": []}])
    assert offsets(db) == []


def test_appends_at_once_leave_no_gap_even_when_some_roll_back(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    start = threading.Barrier(4)

    def append_some(worker: int) -> None:
        mine = another()
        connection = mine.connection
        start.wait(PATIENCE)
        for number in range(12):
            if number % 3 == worker % 3:
                with connection.transaction() as transaction:
                    mine.append("s", say("never"))
                    raise psycopg.Rollback(transaction)
            elif number % 2:
                mine.append("s", say("one"))
            else:
                mine.append_many(
                    "s", [{"messages": say("many"), "idempotency_key": f"{worker} {number}"}] * 2
                )

    for future in [in_thread(lambda worker=worker: append_some(worker)) for worker in range(4)]:
        future.result(PATIENCE)
    stored = offsets(db)
    assert len(stored) >= 4 * 8
    assert stored == list(range(len(stored)))
    assert store.freshness("s").stored == len(stored)
    assert db.one("SELECT count(*) FROM {schema}.turn_message WHERE content = 'never'") == 0


def test_an_append_joins_the_transaction_of_its_caller(
    store: MemoryStore, another: Callable[..., MemoryStore]
) -> None:
    connection = store.connection
    with connection.transaction():
        assert store.append("s", say("one"), idempotency_key="k").log_offset == 0
        assert [a.log_offset for a in store.append_many("s", [{"messages": say("two")}] * 2)] == [1, 2]
        assert another().freshness("s").stored == 0
    assert another().freshness("s").stored == 3


def test_an_append_on_a_connection_without_autocommit_waits_for_the_callers_commit(
    store: MemoryStore, another: Callable[..., MemoryStore]
) -> None:
    mine = another()
    mine.connection.autocommit = False
    mine.append_many("s", [{"messages": say("one")}] * 2)
    assert store.freshness("s").stored == 0
    mine.connection.commit()
    assert store.freshness("s").stored == 2


def test_the_same_key_with_the_same_turn_is_the_same_observation(store: MemoryStore, db: Database) -> None:
    said = datetime(2020, 1, 1, tzinfo=UTC)
    first = store.append("s", say("a", "b"), subject="ann", occurred_at=said, idempotency_key="k1")
    again = store.append("s", say("a", "b"), subject="ann", occurred_at=said, idempotency_key="k1")
    assert (again.observation_id, again.log_offset, again.created) == (first.observation_id, 0, False)
    assert offsets(db) == [0]
    assert store.append("t", say("a", "b"), idempotency_key="k1").created  # another scope, another key


@pytest.mark.parametrize(
    "other",
    [
        {"messages": say("a", "c")},
        {"messages": say("a")},
        {"messages": say("a", "b"), "subject": "bob"},
        {"messages": say("a", "b"), "occurred_at": datetime(2020, 1, 1, tzinfo=UTC)},
        {"messages": list(reversed(say("a", "b")))},
    ],
)
def test_the_same_key_with_another_turn_is_a_conflict_and_stores_nothing(
    store: MemoryStore, db: Database, other: dict[str, object]
) -> None:
    store.append("s", say("a", "b"), idempotency_key="MARKER")
    with pytest.raises(IdempotencyConflict, match="offset 0 of scope s") as refused:
        store.append_many("s", [{"messages": say("new")}, {**other, "idempotency_key": "MARKER"}])
    assert "MARKER" not in str(refused.value)
    assert offsets(db) == [0]
    assert store.append("s", say("next")).log_offset == 1


def test_a_conflict_leaves_the_callers_transaction_usable(store: MemoryStore, db: Database) -> None:
    store.append("s", say("a"), idempotency_key="k")
    with store.connection.transaction():
        with pytest.raises(IdempotencyConflict):
            store.append("s", say("b"), idempotency_key="k")
        store.append("s", say("c"))
    assert offsets(db) == [0, 1]


def test_a_key_that_comes_twice_in_one_call_is_stored_once(store: MemoryStore, db: Database) -> None:
    turn = {"messages": say("a"), "idempotency_key": "k"}
    first, between, again = store.append_many("s", [turn, {"messages": say("x")}, turn])
    assert (again.observation_id, again.created) == (first.observation_id, False)
    assert between.log_offset == 1
    with pytest.raises(IdempotencyConflict, match=r"turns\[0\]"):
        store.append_many(
            "s",
            [
                {"messages": say("p"), "idempotency_key": "new"},
                {"messages": say("q"), "idempotency_key": "new"},
            ],
        )
    assert offsets(db) == [0, 1]


def test_a_retry_that_overlaps_the_first_append_stores_nothing(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    waiting = another(application_name="retry")
    with store.connection.transaction():
        first = store.append("s", say("a"), idempotency_key="k")
        retry = in_thread(lambda: waiting.append("s", say("a"), idempotency_key="k"))
        until(lambda: db.waiting_for_a_lock("retry"))
    again = retry.result(PATIENCE)
    assert (again.observation_id, again.created) == (first.observation_id, False)
    assert offsets(db) == [0]


def test_the_same_key_after_erasure_is_refused_whatever_the_words(store: MemoryStore, db: Database) -> None:
    store.append("s", say("a"), subject="ann", idempotency_key="MARKER")
    store.form_batch(Chunks())
    store.erase(subject="ann", reason="request")
    for words in ("a", "b"):
        with pytest.raises(TurnErased) as refused:
            store.append("s", say(words), subject="ann", idempotency_key="MARKER")
        assert "MARKER" not in str(refused.value)
    assert offsets(db) == []
    assert db("SELECT content_digest, erased_at IS NOT NULL FROM {schema}.turn_idempotency") == [(None, True)]


def test_keys_and_words_are_kept_as_keyed_digests_only(
    store: MemoryStore, db: Database, namespace: str
) -> None:
    other = f"{namespace}_b"
    try:
        migrate(db.connection, other, "memory")
        for memory in (store, MemoryStore(db.connection, other)):
            memory.append("s", say("a"), idempotency_key="k")
        digests = "SELECT key_digest, content_digest FROM {schema}.turn_idempotency"
        ((key, content),) = db(digests)
        ((other_key, other_content),) = Database(db.connection, other)(digests)
    finally:
        db.connection.execute(f"DROP SCHEMA IF EXISTS {other} CASCADE".encode())
    assert len(key) == len(content) == 32
    assert len({key, content, other_key, other_content}) == 4


@pytest.mark.parametrize("scope", ["", " s", "s\n", "x" * 201, "a\x00b", "\ud83d", None, 7])
def test_a_scope_that_is_no_name_is_refused_before_the_database_is_asked(
    store: MemoryStore, scope: str
) -> None:
    store.connection.close()
    with pytest.raises(InvalidName, match=r"^scope .* is refused: 1 to 200 characters"):
        store.append(scope, say("a"))


@pytest.mark.parametrize("target", [None, 9])
def test_a_namespace_that_lacks_migrations_says_what_to_do(
    connection: psycopg.Connection[object], namespace: str, target: int | None
) -> None:
    if target:
        migrate(connection, namespace, "memory", target=target)
    store = MemoryStore(connection, namespace)
    for action in (
        lambda: store.append("s", say("a")),
        lambda: store.append("s", say("a"), idempotency_key="k"),
        lambda: store.freshness("s"),
        lambda: store.form_batch(Chunks()),
        lambda: store.sweep(),
        lambda: store.erase(subject="x", reason="r"),
    ):
        with pytest.raises(
            UnknownNamespace, match=f"parkkeeper migrate --family memory --namespace {namespace}"
        ):
            action()


def test_an_error_of_the_database_shows_its_code_and_no_value(store: MemoryStore, db: Database) -> None:
    db("ALTER TABLE {schema}.turn_message ADD CONSTRAINT no_marker_chk CHECK (content NOT LIKE '%%MARKER%%')")
    with pytest.raises(errors.CheckViolation) as refused:
        store.append("s", say("some MARKER words"))
    assert str(refused.value) == "append failed in the database: 23514, constraint no_marker_chk"
    assert refused.value.__suppress_context__
    assert offsets(db) == []
