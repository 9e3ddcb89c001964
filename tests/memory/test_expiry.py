"""Erasures in steps, by age and of whole scopes: what goes, what its receipt says, and what is left when cut short."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from memory_kit import PATIENCE, Database, Scripted, failing, in_thread, say, until
from parkkeeper.errors import InvalidArgument, InvalidName, TransactionOpen
from parkkeeper.memory import MemoryStore, RebuildCancelled
from parkkeeper.memory.extractors import Memory, Turn
from parkkeeper.memory.extractors.chunks import Chunks

DAY = timedelta(days=1)


def age(db: Database, days: int, condition: str = "true") -> None:
    db(
        f"UPDATE {{schema}}.observation SET ingested_at = now() - make_interval(days => %s) WHERE {condition}",  # noqa: S608
        (days,),
    )


@pytest.fixture
def mixed(store: MemoryStore, db: Database) -> MemoryStore:
    """Two scopes of four turns: offsets 0 and 1 are ten days old; one is parked, one pending, two are formed."""
    for scope in ("s", "t"):
        store.append_many(scope, [{"messages": say(f"word {offset}")} for offset in range(4)])
        store.form_batch(failing("refusal", offsets=[0]), scope=scope, limit=3)
    age(db, 10, "log_offset < 2")
    return store


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a few turns, so that these tests have several."""
    monkeypatch.setattr("parkkeeper.memory.expiry.TURNS_PER_STEP", 3)


def test_turns_go_when_they_were_kept_long_enough_and_the_numbers_say_so(
    mixed: MemoryStore, db: Database
) -> None:
    receipt = mixed.expire(5 * DAY, reason="retention")
    assert receipt.deleted == {"observation": 4, "turn_message": 4, "memory": 2, "idempotency_digest": 0}
    assert (receipt.residual, receipt.clean) == ({"observation": 0}, True)
    for scope in ("s", "t"):
        found = mixed.freshness(scope)
        assert (found.stored, found.erased, found.formed, found.formed_strict) == (4, 2, 2, 2)
        assert (found.parked, found.by_class, found.backlog) == (0, {}, 1)
        assert [mixed.turn_status(scope, offset) for offset in (0, 1, 2)] == ["erased", "erased", "formed"]
    assert mixed.expire(5 * DAY, reason="retention").deleted["observation"] == 0


def test_age_is_counted_from_when_a_turn_was_stored_and_not_from_when_it_was_said(
    store: MemoryStore, db: Database
) -> None:
    store.append("s", say("long ago"), occurred_at=datetime(1999, 1, 1, tzinfo=UTC))
    assert store.expire(DAY, reason="retention").deleted["observation"] == 0
    age(db, 2)
    assert store.expire(DAY, reason="retention").deleted["observation"] == 1


def test_an_expiry_leaves_a_receipt(mixed: MemoryStore, db: Database) -> None:
    receipt = mixed.expire(5 * DAY, reason="retention")
    columns = "request_id, action::text, reason, scope, deleted, residual, clean, "
    columns += "ingested_before < now() - interval '4d'"
    assert db(f"SELECT {columns} FROM {{schema}}.erasure_request") == [  # noqa: S608
        (receipt.request_id, "expire", "retention", None, receipt.deleted, receipt.residual, True, True)
    ]


def test_one_that_is_cut_short_has_a_receipt_of_what_it_did_and_can_be_repeated(
    mixed: MemoryStore, db: Database
) -> None:
    """The second step fails; the first one stands, and its receipt says so and that it is not all."""
    db(
        "CREATE FUNCTION {schema}.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF OLD.deleted->>'observation' = '3' THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW; END $$"
    )
    db(
        "CREATE TRIGGER fail BEFORE UPDATE ON {schema}.erasure_request "
        "FOR EACH ROW EXECUTE FUNCTION {schema}.fail()"
    )
    with pytest.raises(psycopg.errors.RaiseException):
        mixed.expire(5 * DAY, reason="retention")
    assert db("SELECT deleted->'observation', residual, clean FROM {schema}.erasure_request") == [
        (3, {}, False)
    ]
    assert sum(mixed.freshness(scope).erased for scope in ("s", "t")) == 3
    db("DROP TRIGGER fail ON {schema}.erasure_request")
    assert mixed.expire(5 * DAY, reason="retention").deleted["observation"] == 1


def test_a_dropped_scope_keeps_its_offsets_and_nothing_else(mixed: MemoryStore, db: Database) -> None:
    mixed.rebuild("s", Chunks(), limit=1)
    receipt = mixed.drop("s", reason="account_closed")
    assert (receipt.deleted["observation"], receipt.residual, receipt.clean) == (4, {"observation": 0}, True)
    found = mixed.freshness("s")
    assert (found.stored, found.erased, found.formed, found.backlog, found.parked) == (4, 4, 3, 0, 0)
    assert mixed.rebuilds() == []
    assert mixed.freshness("t").erased == 0
    assert mixed.append("s", say("again")).log_offset == 4
    assert db("SELECT action::text, scope FROM {schema}.erasure_request") == [("drop", "s")]
    assert mixed.drop("nobody", reason="account_closed").clean


def test_what_is_appended_while_a_scope_is_dropped_stays_and_is_told(
    mixed: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    dropping = another(application_name="dropping")
    holder = another()
    with holder.connection.transaction():
        holder.connection.execute(
            f"SELECT 1 FROM {holder.namespace.identifier}.observation FOR UPDATE".encode()  # noqa: S608
        )
        result = in_thread(lambda: dropping.drop("s", reason="account_closed"))
        until(lambda: db.waiting_for_a_lock("dropping"))
        mixed.append("s", say("late"))
    receipt = result.result(PATIENCE)
    assert (receipt.deleted["observation"], receipt.residual, receipt.clean) == (4, {"observation": 1}, False)
    assert mixed.turn_status("s", 4) == "pending"


def test_a_result_that_comes_after_the_drop_is_discarded(
    mixed: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    meanwhile = another()

    def answer(turn: Turn) -> list[Memory]:
        if turn.log_offset == 3:
            meanwhile.drop("s", reason="account_closed")
        return [Memory("x")]

    assert mixed.form_batch(Scripted(answer), scope="s").discarded == 1
    assert db.one("SELECT count(*) FROM {schema}.memory WHERE scope = 's'") == 0


def test_a_rebuild_of_a_dropped_scope_ends(mixed: MemoryStore, another: Callable[..., MemoryStore]) -> None:
    meanwhile = another()

    def answer(turn: Turn) -> list[Memory]:
        meanwhile.drop("s", reason="account_closed")
        return [Memory("x")]

    with pytest.raises(RebuildCancelled):
        mixed.rebuild("s", Scripted(answer))


def test_a_key_whose_turn_expired_does_not_bring_it_back(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"), idempotency_key="k")
    age(db, 2)
    assert store.expire(DAY, reason="retention").deleted["idempotency_digest"] == 1
    assert db("SELECT content_digest, erased_at IS NOT NULL FROM {schema}.turn_idempotency") == [(None, True)]


@pytest.mark.parametrize("older_than", [timedelta(0), -DAY, timedelta.max, 3600, None])
def test_what_is_no_age_is_refused(mixed: MemoryStore, older_than: Any) -> None:
    with pytest.raises(InvalidArgument, match="older_than"):
        mixed.expire(older_than, reason="retention")
    assert mixed.freshness("s").erased == 0


def test_a_reason_and_a_scope_are_checked_before_anything_goes(mixed: MemoryStore) -> None:
    with pytest.raises(InvalidArgument, match="reason"):
        mixed.expire(DAY, reason="It is time")
    with pytest.raises(InvalidName):
        mixed.drop("", reason="r")
    for action in (lambda: mixed.expire(DAY, reason="r"), lambda: mixed.drop("s", reason="r")):
        with mixed.connection.transaction(), pytest.raises(TransactionOpen):
            action()
    assert mixed.freshness("s").erased == 0
