"""The sweep's policy, the record of what was parked and unparked, and the check of the kept numbers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from memory_kit import Database, failing, say
from parkkeeper.errors import InvalidArgument, TransactionOpen
from parkkeeper.memory import MemoryStore, Miscount, SweepPolicy
from parkkeeper.memory.extractors.chunks import Chunks

ALL = ("refusal", "too_long", "worker_crash", "malformed", "unavailable", "timeout")
RECORD = (
    "SELECT change::text, scope, error_class::text, turns FROM {schema}.parking_record ORDER BY record_id"
)


def park(store: MemoryStore, error_class: str, *, scope: str = "s", turns: int = 1) -> None:
    store.append_many(scope, [{"messages": say("x")}] * turns)
    assert store.form_batch(failing(error_class, "why"), scope=scope, max_attempts=1).parked == turns


@pytest.fixture
def parked(store: MemoryStore) -> MemoryStore:
    """A turn of each class in scope s, and two that are unavailable in scope t."""
    for error_class in ALL:
        park(store, error_class)
    park(store, "unavailable", scope="t", turns=2)
    return store


@pytest.mark.parametrize(
    ("policy", "unparked"),
    [
        ({}, {"unavailable": 3, "timeout": 1}),
        ({"scope": "t"}, {"unavailable": 2}),
        ({"unpark_limit": 2}, {"unavailable": 1, "timeout": 1}),
        ({"unpark_classes": ("refusal", "too_long", "worker_crash")}, dict.fromkeys(ALL[:3], 1)),
        ({"unpark_classes": ()}, {}),
        ({"parked_for": timedelta(hours=1)}, {}),
    ],
    ids=str,
)
def test_a_sweep_unparks_what_its_policy_says_and_a_dry_run_says_it_before(
    parked: MemoryStore, db: Database, policy: dict[str, Any], unparked: dict[str, int]
) -> None:
    before = db("SELECT * FROM {schema}.observation ORDER BY 1")
    dry = parked.sweep(SweepPolicy(**policy), dry_run=True)
    assert (dry.unparked_by_class, dry.unparked) == (unparked, sum(unparked.values()))
    assert (dry.parked_total, dry.by_scope) == (8, {"s": 6, "t": 2})
    assert db("SELECT * FROM {schema}.observation ORDER BY 1") == before
    done = parked.sweep(SweepPolicy(**policy))
    assert (done.unparked_by_class, done.unparked) == (unparked, dry.unparked)
    assert done.parked_total == 8 - done.unparked == sum(done.by_scope.values())
    assert parked.verify() == []


def test_a_dry_run_says_what_would_be_parked_and_returned(store: MemoryStore, db: Database) -> None:
    store.append_many("s", [{"messages": say("x")}] * 3)
    expired = "claim_token = gen_random_uuid(), claimed_until = now() - interval '1 minute'"
    db(f"UPDATE {{schema}}.observation SET formation_attempts = 6, {expired} WHERE log_offset = 0")  # noqa: S608
    db(f"UPDATE {{schema}}.observation SET formation_attempts = 5, {expired} WHERE log_offset = 1")  # noqa: S608
    for scope, dry_run in (("t", True), ("t", False), (None, True)):
        found = store.sweep(SweepPolicy(scope=scope), dry_run=dry_run)
        assert (found.parked, found.claims_returned) == ((0, 0) if scope else (1, 1))
        assert found.parked_total == 0
    found = store.sweep()
    assert (found.parked, found.claims_returned, found.parked_total) == (1, 1, 1)


def test_many_are_unparked_in_steps(
    store: MemoryStore, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkkeeper.memory.parking.TURNS_PER_STEP", 3)
    park(store, "malformed", turns=4)
    park(store, "malformed", scope="t", turns=4)
    assert store.unpark(limit=7) == 7
    assert [change for change, *_ in db(RECORD)].count("unpark") == 4  # a step may take in both scopes
    assert (store.freshness("s").parked, store.freshness("t").parked) == (0, 1)
    assert store.unpark() == 1
    assert store.verify() == []


def test_tens_of_thousands_of_turns_come_back_without_a_round_trip_each(
    store: MemoryStore, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in statements, which is what takes the time: a few a step, however many turns."""
    turns = 30_000
    store.append("s", say("x"))
    db(
        "INSERT INTO {schema}.observation (scope, log_offset, occurred_at, formation_attempts, parked_at, park_count) "
        "SELECT 's', number, now(), 1, clock_timestamp(), 1 FROM generate_series(1, %s) AS number",
        (turns,),
    )
    db("UPDATE {schema}.watermark SET log_offset = %s", (turns,))
    db("UPDATE {schema}.watermark_formed SET parked = %s, oldest_parked_at = now()", (turns,))
    db("INSERT INTO {schema}.parked_class VALUES ('s', 'other', %s)", (turns,))
    statements = []
    run = type(store._session).execute

    def counting(*arguments: Any, **more: Any) -> Any:
        statements.append(arguments[2])
        return run(*arguments, **more)

    monkeypatch.setattr(type(store._session), "execute", counting)
    assert store.unpark() == turns
    assert len(statements) <= 20
    found = store.freshness("s")
    assert (found.parked, found.backlog, found.formed) == (0, turns + 1, None)
    assert store.verify() == []


def test_every_park_and_unpark_is_recorded_in_numbers(store: MemoryStore, db: Database) -> None:
    park(store, "refusal")
    park(store, "malformed", turns=2)
    store.unpark(limit=1)
    store.form_batch(failing("too_long"))
    store.rebuild("s", Chunks(), to_offset=0)
    store.erase(scope="s", reason="request")
    assert db(RECORD) == [
        ("park", "s", "refusal", 1),
        ("park", "s", "malformed", 1),
        ("park", "s", "malformed", 1),
        ("unpark", "s", "refusal", 1),
        ("park", "s", "too_long", 1),
        ("rebuild", "s", "too_long", 1),
        ("erase", "s", "malformed", 2),
    ]
    store.sweep()
    assert len(db(RECORD)) == 7
    store.drop("s", reason="account_closed")
    assert db(RECORD) == []


def test_since_when_the_longest_parked_turn_waits_is_known_after_every_change(
    store: MemoryStore, db: Database
) -> None:
    def oldest() -> Any:
        return db.one("SELECT min(parked_at) FROM {schema}.observation")

    assert store.freshness("s").oldest_parked_at is None
    park(store, "refusal", turns=3)
    assert store.freshness("s").oldest_parked_at == oldest()
    store.unpark(limit=1)
    assert store.freshness("s").oldest_parked_at == oldest() is not None
    store.rebuild("s", Chunks(), to_offset=1)
    assert store.freshness("s").oldest_parked_at == oldest() is not None
    store.erase(scope="s", reason="request")
    assert store.freshness("s").oldest_parked_at is None


def test_a_clock_that_was_set_back_loses_no_parked_turn(store: MemoryStore, db: Database) -> None:
    park(store, "refusal", turns=2)
    db("UPDATE {schema}.observation SET parked_at = parked_at - interval '1 hour'")
    db("UPDATE {schema}.watermark_formed SET oldest_parked_at = now() + interval '1 hour'")
    store.unpark(limit=1)
    assert store.freshness("s").oldest_parked_at == db.one("SELECT min(parked_at) FROM {schema}.observation")


def test_numbers_that_are_not_those_of_the_rows_are_named(store: MemoryStore, db: Database) -> None:
    park(store, "refusal", turns=2)
    store.append_many("s", [{"messages": say("x")}] * 2)
    store.form_batch(Chunks(), limit=1)
    assert store.verify() == []
    db("UPDATE {schema}.watermark_formed SET formed = 7, erased = 1, formed_offset = 3")
    db("UPDATE {schema}.parked_class SET parked = 1")
    db("INSERT INTO {schema}.watermark_formed (scope, parked) VALUES ('ghost', 1)")
    assert store.verify() == [
        Miscount("ghost", "parked", 1, 0),
        Miscount("s", "erased", 1, 0),
        Miscount("s", "formed", 7, 1),
        Miscount("s", "formed_offset", 3, 2),
        Miscount("s", "parked for refusal", 1, 2),
    ]


@pytest.mark.parametrize(
    "policy",
    [{"unpark_limit": 0}, {"parked_for": 3600}, {"scope": ""}, {"unpark_classes": ("sulking",)}],
    ids=str,
)
def test_a_policy_outside_its_rule_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        SweepPolicy(**policy)


def test_a_dry_run_refuses_a_transaction_of_the_caller_too(store: MemoryStore) -> None:
    with store.connection.transaction(), pytest.raises(TransactionOpen):
        store.sweep(dry_run=True)
