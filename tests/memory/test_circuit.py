"""Outage or turn? No outage parks a turn or spends an attempt, and no turn stops its neighbours."""

from __future__ import annotations

from datetime import timedelta

import pytest

from memory_kit import Database, Scripted, failing, say
from outages import ANSWERS, TURNS, attempts, cool_down, only, outage, pass_cool_down, status
from parkkeeper.memory import MemoryStore, SweepPolicy
from parkkeeper.memory.extractors.chunks import Chunks


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_outage_parks_nothing_and_spends_nothing_whatever_class_it_shows(
    store: MemoryStore, db: Database, kind: str, concurrency: int
) -> None:
    store.append_many("s", TURNS * 30)
    extractor = outage(kind)
    outcome = store.form_batch(extractor, concurrency=concurrency)
    assert (outcome.formed, outcome.failed, outcome.parked, outcome.circuit) == (0, 0, 0, "open")
    assert outcome.deferred == len(extractor.seen) <= 2 + concurrency
    assert len(extractor.canaries) == 1
    for _ in range(3):
        assert store.form_batch(extractor).circuit == "open"  # it cools down: nobody is asked
        assert len(extractor.seen) == outcome.deferred
        pass_cool_down(db)
        assert store.form_batch(extractor).circuit == "open"
    assert len(extractor.canaries) == 4 and len(extractor.seen) == outcome.deferred
    assert attempts(db) == {0}
    assert db.one("SELECT count(*) FROM {schema}.observation WHERE streak_circuit IS NOT NULL") == 0

    pass_cool_down(db)
    works = Scripted(Chunks().extract)
    outcome = store.form_batch(works)
    assert (outcome.formed, outcome.backlog, outcome.circuit) == (30, 0, "closed")
    assert len(works.canaries) == 1
    assert attempts(db) == {1}


@pytest.mark.parametrize("kind", ["plain exception", "gibberish"])
@pytest.mark.parametrize("turns", [1, 2])
def test_an_outage_that_looks_like_the_turns_own_gives_a_small_backlog_its_attempts_back(
    store: MemoryStore, db: Database, kind: str, turns: int
) -> None:
    """Fewer than three turns: the canary is asked when one of them fails again."""
    store.append_many("s", TURNS * turns)
    extractor = outage(kind)
    assert store.form_batch(extractor).failed == turns
    db.come_due()
    outcome = store.form_batch(extractor)
    assert (outcome.failed, outcome.deferred, outcome.parked) == (0, 1, 0)
    assert (only(store).state, attempts(db)) == ("open", {0})
    assert db.one("SELECT count(*) FROM {schema}.observation WHERE next_attempt_at <= now()") == turns
    assert db.turn(0, "formation_error", "formation_error_class") == (None, None)


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_poison_turn_is_parked_alone_and_delays_nobody(store: MemoryStore, db: Database, kind: str) -> None:
    store.append_many("s", TURNS * 120)
    chunks = Chunks()
    extractor = Scripted(lambda turn: ANSWERS[kind](turn) if turn.log_offset == 7 else chunks.extract(turn))
    outcome = store.form_batch(extractor, limit=1_000)
    assert (outcome.formed, outcome.failed, outcome.deferred, outcome.circuit) == (119, 1, 0, "closed")
    for _ in range(6):
        db.come_due()
        store.form_batch(extractor)
    found = store.freshness("s")
    assert (found.parked, found.parked_ranges, found.backlog, found.formed) == (1, ((7, 7),), 0, 119)
    assert len(extractor.canaries) <= 6
    assert all(known.state == "closed" for known in store.circuits())


@pytest.mark.parametrize("concurrency", [1, 4])
def test_ten_poison_turns_in_a_row_at_the_head_are_parked_and_the_rest_is_formed_at_once(
    store: MemoryStore, db: Database, concurrency: int
) -> None:
    store.append_many("s", TURNS * 40)
    extractor = failing("auth", offsets=range(10))
    outcome = store.form_batch(extractor, concurrency=concurrency)
    assert (outcome.formed, outcome.failed, outcome.backlog) == (30, 10, 10)
    for _ in range(5):
        db.come_due()
        outcome = store.form_batch(extractor, concurrency=concurrency)
    assert (outcome.parked, outcome.backlog, outcome.circuit) == (10, 0, "closed")
    assert store.freshness("s").by_class == {"auth": 10}


def test_failures_of_the_turns_own_do_not_come_back_with_an_outage(store: MemoryStore, db: Database) -> None:
    store.append_many("s", TURNS * 4)
    poison = failing("unavailable", offsets=[2])
    assert store.form_batch(poison, limit=3).failed == 1
    db.come_due()
    assert store.form_batch(outage("500")).circuit == "open"
    assert [db.turn(offset, "formation_attempts") for offset in (2, 3)] == [1, 0]


def test_the_turns_that_an_outage_deferred_do_not_wait_out_their_backoffs(
    store: MemoryStore, db: Database
) -> None:
    store.append_many("s", TURNS * 2)
    extractor = outage("plain exception")
    for _ in range(2):
        store.form_batch(extractor)
        db.come_due()
    pass_cool_down(db)
    assert store.form_batch(Scripted(Chunks().extract)).formed == 2


def test_an_operator_lets_an_open_circuit_be_probed_at_once(store: MemoryStore, db: Database) -> None:
    store.append_many("s", TURNS * 2)
    store.form_batch(outage("500"))
    mended = Scripted(Chunks().extract)
    assert (store.form_batch(mended).circuit, mended.canaries) == ("open", [])
    assert store.probe_now() == 1
    assert store.probe_now() == 0
    assert (store.form_batch(mended).formed, len(mended.canaries)) == (2, 1)
    assert store.probe_now() == 0
    assert store.circuits()[0].state == "closed"


def test_a_plain_429_defers_its_turn_without_a_canary(store: MemoryStore) -> None:
    store.append_many("s", TURNS * 5)
    extractor = failing("rate_limited", offsets=[1, 3], retry_after=7)
    outcome = store.form_batch(extractor)
    assert (outcome.formed, outcome.deferred, outcome.failed) == (3, 2, 0)
    assert extractor.canaries == []


def test_a_provider_that_asks_everybody_to_wait_is_left_alone_for_that_long(
    store: MemoryStore, db: Database
) -> None:
    store.append_many("s", TURNS * 30)
    extractor = Scripted(status("rate_limited", retry_after=700), canary=None)
    outcome = store.form_batch(extractor)
    assert (outcome.deferred, outcome.failed, outcome.circuit) == (3, 0, "open")
    assert (len(extractor.seen), len(extractor.canaries)) == (3, 1)
    assert 690 < cool_down(db) <= 700
    pass_cool_down(db)
    assert store.form_batch(Scripted(Chunks().extract)).formed == 30


def test_the_cool_down_doubles_to_ten_minutes_and_goes_on_when_the_circuit_opens_soon_again(
    store: MemoryStore, db: Database
) -> None:
    store.append("s", say("x"))
    seen = []
    for _ in range(7):
        store.form_batch(outage("500"))
        seen.append(round(cool_down(db) / 30))
        pass_cool_down(db)
    assert seen == [1, 2, 4, 8, 16, 20, 20]
    poisoned = failing("auth")
    assert (store.form_batch(poisoned).circuit, only(store).failures) == ("closed", 0)
    db.come_due()
    store.form_batch(outage("500"))
    assert 590 < cool_down(db) <= 600
    pass_cool_down(db)
    assert store.form_batch(poisoned).circuit == "closed"
    db("UPDATE {schema}.formation_circuit SET closed_at = closed_at - interval '10 minutes'")
    db.come_due()
    store.form_batch(outage("500"))
    assert 20 < cool_down(db) <= 30


def test_the_third_turn_that_fails_since_the_last_success_asks(store: MemoryStore) -> None:
    store.append_many("s", TURNS * 12)
    extractor = failing("malformed", offsets=[0, 1, 3, 4, 6, 7, 8])
    assert store.form_batch(extractor).failed == 7
    assert len(extractor.canaries) == 1


def test_the_second_failure_of_one_turn_in_a_row_asks(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"))
    extractor = failing("malformed")
    sent = []
    for _ in range(5):
        assert store.form_batch(extractor).failed == 1
        sent.append(len(extractor.canaries))
        db.come_due()
    assert sent == [0, 1, 1, 2, 2]


def test_without_a_failure_no_circuit_is_written(store: MemoryStore) -> None:
    store.append_many("s", TURNS * 3)
    store.form_batch(Scripted(Chunks().extract))
    assert store.circuits() == []


def test_an_open_circuit_that_cools_down_is_read_and_not_written(store: MemoryStore, db: Database) -> None:
    store.append_many("s", TURNS * 3)
    store.form_batch(outage("500"))
    before = db("SELECT xmin, xmax, ctid FROM {schema}.formation_circuit")
    assert store.form_batch(outage("500")).backlog == 3
    assert db("SELECT xmin, xmax, ctid FROM {schema}.formation_circuit") == before


def test_a_circuit_tells_its_state_and_no_word_of_any_error(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"))
    store.form_batch(outage("401 or 403"))
    found = only(store)
    assert (found.state, found.error_class, found.failures, found.canaries) == ("open", "auth", 1, 1)
    assert (found.probing, found.failing, found.closed_at) == (False, 0, None)
    assert found.next_probe_at - found.opened_at == timedelta(seconds=30)
    assert "MARKER" not in repr(found) + str(db("SELECT c::text FROM {schema}.formation_circuit AS c"))
    pass_cool_down(db)
    store.form_batch(Scripted(Chunks().extract))
    found = only(store)
    assert (found.state, found.opened_at, found.next_probe_at) == ("closed", None, None)
    assert (found.error_class, found.failures, found.canaries) == (None, 0, 2)
    assert found.closed_at is not None


def test_the_sweep_leaves_a_turn_at_its_cap_to_the_canary(store: MemoryStore, db: Database) -> None:
    """Its worker died between the last failure and the answer."""
    store.append("s", say("x"))
    for _ in range(5):
        store.form_batch(failing("malformed"))
        db.come_due()
    assert store.sweep(SweepPolicy(max_attempts=5)).parked == 0
    down = outage("gibberish")
    assert store.form_batch(down, max_attempts=5).circuit == "open"
    # The fifth is given back; the four before it have had their answers.
    assert (down.seen, len(down.canaries), attempts(db)) == ([], 1, {4})


def test_a_turn_at_its_cap_is_parked_when_the_canary_succeeds(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"))
    assert store.form_batch(failing("malformed", "why")).failed == 1
    db.come_due()
    works = failing("other")
    assert store.form_batch(works, max_attempts=1).parked == 1
    assert (works.seen, len(works.canaries)) == ([], 1)
    assert store.freshness("s").by_class == {"malformed": 1}


def test_the_sweep_brings_provider_classes_back_when_the_circuit_closes_and_a_refusal_never(
    store: MemoryStore, db: Database
) -> None:
    store.append_many("s", TURNS * 3)
    for error_class, offset in (("auth", 0), ("refusal", 1)):
        assert store.form_batch(failing(error_class, offsets=[offset]), max_attempts=1, limit=1).parked == 1
    assert store.form_batch(outage("500")).circuit == "open"
    assert store.sweep().unparked == 0
    assert store.freshness("s").parked == 2
    pass_cool_down(db)
    assert store.form_batch(Scripted(Chunks().extract)).formed == 1
    assert store.sweep().unparked == 1
    assert store.freshness("s").by_class == {"refusal": 1}


def test_an_open_circuit_that_nobody_probes_any_more_does_not_hold_the_sweep_up(
    store: MemoryStore, db: Database
) -> None:
    store.append_many("s", TURNS * 2)
    assert store.form_batch(failing("auth", offsets=[0]), max_attempts=1, limit=1).parked == 1
    assert store.form_batch(outage("500")).circuit == "open"
    db("UPDATE {schema}.formation_circuit SET next_probe_at = now() - interval '1 hour'")
    assert store.sweep().unparked == 1


def test_a_worker_that_crashes_is_no_providers_answer(store: MemoryStore, db: Database) -> None:
    """Nobody is asked about it, and it is parked at its cap; only what a provider may have done comes back."""
    store.append("s", say("x"))
    db(
        "UPDATE {schema}.observation SET formation_attempts = 6, claim_token = gen_random_uuid(), "
        "claimed_until = now(), next_attempt_at = now()"
    )
    down = outage("500")
    assert store.form_batch(down).parked == 1
    assert (down.canaries, store.freshness("s").by_class) == ([], {"worker_crash": 1})
