"""Parked, not lost: the watermark goes past, says so, comes back down, and nothing of the turn is touched."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memory_kit import PATIENCE, Database, failing, in_thread, say, until
from parkkeeper.errors import InvalidArgument, TransactionOpen
from parkkeeper.memory import MemoryStore, SweepPolicy
from parkkeeper.memory.extractors.chunks import Chunks

CONTENT = (
    "SELECT o.observation_id, o.scope, o.log_offset, o.kind, o.occurred_at, o.ingested_at, o.data_subject_id, "
    "m.position, m.role, m.content FROM {schema}.observation AS o JOIN {schema}.turn_message AS m "
    "USING (observation_id) ORDER BY 1, m.position"
)
ALL = ("refusal", "too_long", "worker_crash", "malformed", "unavailable", "timeout")


def park(store: MemoryStore, error_class: str, *, scope: str = "s") -> int:
    """Append a turn and park it; return its id."""
    observation_id = store.append(scope, say("x")).observation_id
    assert store.form_batch(failing(error_class, "why"), scope=scope, max_attempts=1).parked == 1
    return observation_id


def age(db: Database, observation_id: int, hours: int) -> None:
    db(
        "UPDATE {schema}.observation SET parked_at = now() - make_interval(hours => %s) WHERE observation_id = %s",
        (hours, observation_id),
    )


def test_the_watermark_goes_past_a_parked_turn_and_says_so(store: MemoryStore) -> None:
    store.append_many("s", [{"messages": say("x")}] * 4)
    store.form_batch(failing("refusal", offsets=[1, 2]))
    found = store.freshness("s")
    assert (found.stored, found.formed, found.formed_strict, found.backlog) == (4, 3, 0, 0)
    assert (found.parked, found.parked_ranges, found.truncated) == (2, ((1, 2),), False)
    assert found.by_class == {"refusal": 2}
    assert found.oldest_parked_at is not None
    assert datetime.now(UTC) - found.oldest_parked_at < timedelta(minutes=5)
    assert [store.turn_status("s", offset) for offset in range(5)] == [
        "formed",
        "parked",
        "parked",
        "formed",
        "unknown",
    ]


def test_a_turn_that_is_still_to_be_formed_holds_the_watermark_back(store: MemoryStore) -> None:
    store.append_many("s", [{"messages": say("x")}] * 3)
    store.form_batch(failing("malformed", offsets=[1]))
    assert (store.freshness("s").formed, store.freshness("s").backlog) == (0, 1)


def test_before_anything_is_formed_there_is_no_watermark(store: MemoryStore) -> None:
    assert (store.freshness("s").stored, store.freshness("s").formed) == (0, None)
    store.append_many("s", [{"messages": say("x")}] * 2)
    store.form_batch(failing("malformed", offsets=[0]))
    found = store.freshness("s")
    assert (found.stored, found.formed, found.formed_strict) == (2, None, None)


def test_unparking_brings_the_watermark_back_down_and_raises_the_epoch(store: MemoryStore) -> None:
    store.append_many("s", [{"messages": say("x")}] * 4)
    store.form_batch(failing("refusal", offsets=[1, 3]))
    before = store.freshness("s")
    assert store.unpark(scope="s") == 2
    found = store.freshness("s")
    assert (found.formed, found.formed_strict, found.parked, found.backlog) == (0, 0, 0, 2)
    assert (found.parked_ranges, found.by_class, found.oldest_parked_at) == ((), {}, None)
    assert found.epoch > before.epoch
    assert store.form_batch(Chunks()).formed == 2
    after = store.freshness("s")
    assert (after.formed, after.formed_strict, after.epoch) == (3, 3, found.epoch)


def test_parking_and_unparking_touch_neither_the_turn_nor_its_messages(
    store: MemoryStore, db: Database
) -> None:
    store.append("s", say("one", "two"), subject="ann", occurred_at=datetime(2020, 1, 1, tzinfo=UTC))
    before = db(CONTENT)
    store.form_batch(failing("refusal"))
    assert db(CONTENT) == before
    store.unpark()
    assert db(CONTENT) == before
    assert store.form_batch(Chunks()).memories == 2
    assert db(CONTENT) == before


def test_an_unparked_turn_is_as_if_never_tried_but_for_its_park_count(
    store: MemoryStore, db: Database
) -> None:
    state = (
        "formation_attempts",
        "deferrals",
        "formation_failed_at",
        "formation_error_class",
        "formation_error",
    )
    store.append("s", say("x"))
    assert store.form_batch(failing("rate_limited", retry_after=1)).deferred == 1
    db.come_due()
    assert store.form_batch(failing("malformed"), max_attempts=1).parked == 1
    assert db.turn(0, *state[:2]) == (1, 1)
    store.unpark()
    assert db.turn(0, *state) == (0, 0, None, None, None)
    assert db.turn(0, "parked_at", "next_attempt_at <= now()", "park_count") == (None, True, 1)
    store.form_batch(failing("refusal"))
    assert (store.parked()[0].park_count, store.parked()[0].error_class) == (2, "refusal")


def test_after_a_change_of_model_an_unparked_turn_has_all_its_attempts(
    store: MemoryStore, db: Database
) -> None:
    former, latter = failing("malformed", offsets=[0, 1]), failing("malformed", offsets=[0])
    latter.version = "8"
    store.append_many("s", [{"messages": say("x")}] * 2)
    assert store.form_batch(former, max_attempts=1).parked == 2
    assert store.unpark() == 2
    for attempt in range(1, 6):
        outcome = store.form_batch(latter)
        assert (outcome.failed, outcome.parked, db.turn(0, "formation_attempts")) == (1, 0, attempt)
        db.come_due()
    assert store.turn_status("s", 1) == "formed"
    assert store.form_batch(latter).parked == 1


def test_a_parked_turn_is_listed_without_its_text(store: MemoryStore) -> None:
    observation_id = park(store, "refusal")
    (turn,) = store.parked("s")
    assert (turn.observation_id, turn.scope, turn.log_offset) == (observation_id, "s", 0)
    assert (turn.attempts, turn.park_count, turn.error_class) == (1, 1, "refusal")
    assert not hasattr(turn, "formation_error") and "why" not in repr(turn)
    assert store.parked("t") == []


def test_parked_turns_come_in_pages_by_scope_and_offset(store: MemoryStore) -> None:
    for scope in ("b", "a"):
        store.append_many(scope, [{"messages": say("x")}] * 3)
    store.form_batch(failing("refusal"))
    pages: list[tuple[str, int]] = []
    after = None
    while page := store.parked(after=after, limit=2):
        after = (page[-1].scope, page[-1].log_offset)
        pages += [(turn.scope, turn.log_offset) for turn in page]
    assert pages == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]
    assert [turn.log_offset for turn in store.parked("b", after=("b", 1))] == [2]


def test_unpark_takes_what_meets_every_condition(store: MemoryStore, db: Database) -> None:
    old = park(store, "refusal")
    young = park(store, "refusal")
    other = park(store, "malformed")
    elsewhere = park(store, "refusal", scope="t")
    age(db, old, 5)
    age(db, young, 2)

    assert store.unpark(observation_ids=[]) == 0
    assert store.unpark(observation_ids=[other], error_class="refusal") == 0
    assert store.unpark(scope="s", error_class="refusal", older_than=timedelta(hours=4)) == 1
    assert {turn.observation_id for turn in store.parked()} == {young, other, elsewhere}
    assert store.unpark(limit=1) == 1  # the longest parked
    assert {turn.observation_id for turn in store.parked()} == {other, elsewhere}
    assert store.unpark(observation_ids=[elsewhere, 10**9]) == 1
    assert store.freshness("s").by_class == {"malformed": 1}


def test_unpark_leaves_turns_that_were_parked_more_often_than_wished(store: MemoryStore) -> None:
    park(store, "malformed")
    store.unpark()
    store.form_batch(failing("malformed"), max_attempts=1)
    assert store.unpark(max_park_count=1) == 0
    assert store.unpark(max_park_count=2) == 1


def test_two_that_unpark_at_once_unpark_once(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    park(store, "refusal")
    first, second = another(application_name="first"), another(application_name="second")
    with store.connection.transaction():
        store.connection.execute(
            f"SELECT 1 FROM {store.namespace.identifier}.watermark_formed FOR UPDATE".encode()  # noqa: S608
        )
        futures = [in_thread(lambda memory=memory: memory.unpark()) for memory in (first, second)]
        until(lambda: db.waiting_for_a_lock("first") and db.waiting_for_a_lock("second"))
    assert sorted(future.result(PATIENCE) for future in futures) == [0, 1]
    assert (store.freshness("s").parked, store.freshness("s").backlog) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"error_class": "sulking"}, "error_class 'sulking' is refused: one of rate_limited"),
        ({"limit": 0}, "limit 0 is refused"),
        ({"max_park_count": 0}, "max_park_count 0 is refused"),
        ({"scope": ""}, "scope '' is refused"),
    ],
)
def test_unpark_refuses_what_is_no_condition(
    store: MemoryStore, arguments: dict[str, Any], said: str
) -> None:
    park(store, "refusal")
    with pytest.raises(InvalidArgument, match=said):
        store.unpark(**arguments)
    assert store.freshness("s").parked == 1


def test_the_sweep_unparks_what_speaks_of_the_provider_and_nothing_else(store: MemoryStore) -> None:
    for error_class in ALL:
        park(store, error_class)
    outcome = store.sweep()
    assert (outcome.parked, outcome.unparked, outcome.claims_returned) == (0, 2, 0)
    assert outcome.by_class == {"malformed": 1, "refusal": 1, "too_long": 1, "worker_crash": 1}
    assert outcome.parked_total == 4
    assert store.freshness("s").backlog == 2


def test_the_sweep_unparks_a_turn_three_times_at_most(store: MemoryStore, db: Database) -> None:
    park(store, "unavailable")
    for _ in range(3):
        assert store.sweep().unparked == 1
        store.form_batch(failing("unavailable"), max_attempts=1)
    outcome = store.sweep()
    assert (outcome.unparked, outcome.parked_total, outcome.by_class) == (0, 1, {"unavailable": 1})
    assert store.sweep(SweepPolicy(max_park_count=4)).unparked == 1


def test_the_sweep_parks_what_is_at_its_cap_and_returns_claims_that_ran_out(
    store: MemoryStore, db: Database
) -> None:
    store.append_many("s", [{"messages": say("x")}] * 5)
    expired = "claim_token = gen_random_uuid(), claimed_until = now() - interval '1 minute'"
    running = "claim_token = gen_random_uuid(), claimed_until = now() + interval '1 minute'"
    for offset, state in enumerate(
        [
            f"formation_attempts = 6, {expired}",
            "formation_attempts = 6, formation_error_class = 'malformed', formation_error = 'why'",
            f"formation_attempts = 5, {expired}",
            f"formation_attempts = 6, {running}",
        ]
    ):
        db(f"UPDATE {{schema}}.observation SET {state} WHERE log_offset = %s", (offset,))  # noqa: S608
    outcome = store.sweep()
    assert (outcome.parked, outcome.claims_returned, outcome.unparked) == (2, 1, 0)
    assert outcome.by_class == {"malformed": 1, "worker_crash": 1}
    columns = ("parked_at IS NOT NULL", "formation_error_class", "formation_error", "claim_token IS NULL")
    assert [db.turn(offset, *columns) for offset in range(5)] == [
        (True, "worker_crash", None, True),
        (True, "malformed", "why", True),
        (False, "worker_crash", None, True),
        (False, None, None, False),
        (False, None, None, True),
    ]
    found = store.freshness("s")
    assert (found.parked, found.backlog) == (2, 3)
    assert (store.sweep().parked, store.sweep().claims_returned) == (0, 0)


@pytest.mark.parametrize(
    ("policy", "said"),
    [({"max_attempts": 0}, "max_attempts 0"), ({"unpark_classes": ("sulking",)}, "error_class 'sulking'")],
)
def test_a_policy_outside_its_rule_is_refused(policy: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        SweepPolicy(**policy)


def test_parking_work_refuses_to_run_inside_a_transaction(store: MemoryStore) -> None:
    park(store, "unavailable")
    for action in (store.unpark, store.sweep):
        with store.connection.transaction(), pytest.raises(TransactionOpen):
            action()
    assert store.freshness("s").parked == 1


def test_ranges_join_neighbours_and_are_bounded_by_the_turns_looked_at(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append_many("s", [{"messages": say("x")}] * 9)
    store.form_batch(failing("refusal", offsets=[0, 2, 3, 4, 7, 8]))
    assert store.freshness("s").parked_ranges == ((0, 0), (2, 4), (7, 8))
    monkeypatch.setattr("parkkeeper.memory.reading.WALKED", 3)
    found = store.freshness("s")
    assert (found.parked_ranges, found.truncated, found.parked) == (((0, 0), (2, 3)), True, 6)
    monkeypatch.setattr("parkkeeper.memory.reading.WALKED", 6)
    assert not store.freshness("s").truncated
