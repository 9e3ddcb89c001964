"""Rebuilding: one version of each turn's memory at any time, a place that is always exact, and nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from memory_kit import PATIENCE, Database, Scripted, failing, in_thread, say, until
from outages import ANSWERS, outage, pass_cool_down
from parkkeeper.errors import InvalidArgument, TransactionOpen
from parkkeeper.memory import MemoryStore, RebuildActive, RebuildCancelled, RebuildOutcome
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn
from parkkeeper.memory.extractors.chunks import Chunks

TEXTS = (
    "SELECT o.log_offset, m.text, m.extractor_version FROM {schema}.memory AS m "
    "JOIN {schema}.projection_dependency AS d ON d.derived_id = m.memory_id "
    "JOIN {schema}.observation AS o ON o.observation_id = d.source_id ORDER BY 1, 2"
)


def newly(turn: Turn) -> list[Memory]:
    return [Memory(f"new {turn.log_offset}")]


@pytest.fixture
def formed(store: MemoryStore) -> MemoryStore:
    """A scope of five turns: 2 is parked, 4 is still to be formed, the rest is formed."""
    store.append_many("s", [{"messages": say(f"old {offset}")} for offset in range(5)])
    store.form_batch(failing("refusal", offsets=[2]), limit=4)
    assert (store.freshness("s").parked, store.freshness("s").backlog) == (1, 1)
    return store


def test_every_formed_and_parked_turn_has_the_new_extractors_memory(
    formed: MemoryStore, db: Database
) -> None:
    before = formed.freshness("s")
    outcome = formed.rebuild("s", Scripted(newly))
    assert outcome == RebuildOutcome(rebuilt=4, failed=0, skipped=1, through_offset=4, done=True)
    assert db(TEXTS) == [(offset, f"new {offset}", "7") for offset in range(4)]
    found = formed.freshness("s")
    assert (found.parked, found.by_class, found.backlog, found.formed_strict) == (0, {}, 1, 3)
    assert found.epoch > before.epoch
    assert formed.form_batch(Chunks()).formed == 1
    (text,) = [text for offset, text, _ in db(TEXTS) if offset == 4]
    assert text == "old 4"


def test_a_rebuild_goes_on_where_the_last_call_stopped(formed: MemoryStore, db: Database) -> None:
    extractor = Scripted(newly)
    assert formed.rebuild("s", extractor, limit=2) == RebuildOutcome(2, 0, 0, 1, False)
    assert [text for _, text, _ in db(TEXTS)] == ["new 0", "new 1", "old 3"]
    (running,) = formed.rebuilds("s")
    assert (running.state, running.through_offset, running.to_offset) == ("waiting", 1, 4)
    assert formed.rebuild("s", extractor, limit=2) == RebuildOutcome(4, 0, 0, 3, False)
    assert formed.rebuild("s", extractor, limit=2) == RebuildOutcome(4, 0, 1, 4, True)
    assert [turn.log_offset for turn in extractor.seen] == [0, 1, 2, 3]
    assert [found.state for found in formed.rebuilds()] == ["done"]


def test_a_range_is_rebuilt_and_no_turn_outside_of_it(formed: MemoryStore, db: Database) -> None:
    outcome = formed.rebuild("s", Scripted(newly), from_offset=1, to_offset=2)
    assert outcome == RebuildOutcome(2, 0, 0, 2, True)
    assert [text for _, text, _ in db(TEXTS)] == ["old 0", "new 1", "new 2", "old 3"]
    assert formed.rebuild("s", Scripted(newly), from_offset=9) == RebuildOutcome(0, 0, 0, 8, True)
    assert formed.rebuild("nobody", Scripted(newly)) == RebuildOutcome(0, 0, 0, -1, True)
    assert len(formed.rebuilds()) == 1


def test_a_turn_that_fails_keeps_its_memory_and_is_named(formed: MemoryStore, db: Database) -> None:
    def answer(turn: Turn) -> list[Memory]:
        if turn.log_offset in (1, 2):
            raise ExtractionError("malformed", "MARKER")
        return newly(turn)

    outcome = formed.rebuild("s", Scripted(answer))
    assert outcome == RebuildOutcome(2, 2, 1, 4, True)
    assert [text for _, text, _ in db(TEXTS)] == ["new 0", "old 1", "new 3"]
    assert [formed.turn_status("s", offset) for offset in (1, 2)] == ["formed", "parked"]
    assert formed.freshness("s").by_class == {"refusal": 1}
    assert formed.rebuilds("s")[0].failed_offsets == [1, 2]
    assert "MARKER" not in str(db("SELECT * FROM {schema}.rebuild_failure"))


def test_what_cannot_be_stored_is_a_failure_of_its_turn(formed: MemoryStore, db: Database) -> None:
    db("ALTER TABLE {schema}.memory ADD CONSTRAINT odd_chk CHECK (text <> 'new 1') NOT VALID")
    assert formed.rebuild("s", Scripted(newly)) == RebuildOutcome(3, 1, 1, 4, True)
    assert db("SELECT error_class::text FROM {schema}.rebuild_failure") == [("store",)]


@pytest.mark.parametrize("kind", sorted(ANSWERS))
def test_an_outage_fails_no_turn_and_ends_the_call(formed: MemoryStore, db: Database, kind: str) -> None:
    before = db(TEXTS)
    stopped = RebuildOutcome(0, 0, 0, -1, False, "open")
    down = outage(kind)
    assert formed.rebuild("s", down) == stopped
    assert formed.rebuild("s", down) == stopped
    assert len(down.seen) <= 2  # the second call tries no turn: the circuit is open
    assert db(TEXTS) == before
    pass_cool_down(db)
    assert formed.rebuild("s", Scripted(newly)) == RebuildOutcome(4, 0, 1, 4, True)
    assert [circuit.state for circuit in formed.circuits()] == ["closed"]


def test_a_failure_of_the_providers_class_is_tried_twice(formed: MemoryStore) -> None:
    tried: list[int] = []

    def answer(turn: Turn) -> list[Memory]:
        tried.append(turn.log_offset)
        if turn.log_offset == 0 or tried.count(1) == 1 == turn.log_offset:
            raise ExtractionError("unavailable", "no")
        return newly(turn)

    assert formed.rebuild("s", Scripted(answer)) == RebuildOutcome(3, 1, 1, 4, True)
    assert tried == [0, 0, 1, 1, 2, 3]


def test_a_turn_that_takes_too_long_fails_and_ends_the_call(formed: MemoryStore) -> None:
    release = threading.Event()

    def answer(turn: Turn) -> list[Memory]:
        if turn.log_offset == 0:
            release.wait(PATIENCE)
        return newly(turn)

    budget = timedelta(milliseconds=300)
    try:
        assert formed.rebuild("s", Scripted(answer), turn_budget=budget) == RebuildOutcome(0, 1, 0, 0, False)
    finally:
        release.set()
    assert formed.rebuild("s", Scripted(newly)) == RebuildOutcome(3, 1, 1, 4, True)


def test_turns_are_extracted_side_by_side_and_settled_in_order(formed: MemoryStore, db: Database) -> None:
    together = threading.Barrier(2)
    second = threading.Event()

    def answer(turn: Turn) -> list[Memory]:
        if turn.log_offset < 2:
            together.wait(PATIENCE)
        if turn.log_offset == 0:
            assert second.wait(PATIENCE)
        second.set()
        return newly(turn)

    assert formed.rebuild("s", Scripted(answer), concurrency=2) == RebuildOutcome(4, 0, 1, 4, True)
    assert [offset for offset, _, _ in db(TEXTS)] == [0, 1, 2, 3]


def test_another_rebuild_of_the_scope_is_refused_until_this_one_has_ended(formed: MemoryStore) -> None:
    formed.rebuild("s", Scripted(newly), limit=1)
    for extractor, more in ((Chunks(), {}), (Scripted(newly), {"to_offset": 3})):
        with pytest.raises(RebuildActive, match="scope s has a rebuild with scripted 7 of offsets 0 to 4"):
            formed.rebuild("s", extractor, **more)
    assert formed.cancel_rebuild("s")
    assert not formed.cancel_rebuild("s")
    assert formed.rebuild("s", Chunks()).done
    assert [(found.extractor, found.state) for found in formed.rebuilds()] == [
        ("chunks", "done"),
        ("scripted", "cancelled"),
    ]


def test_a_second_session_is_refused_while_the_first_works_and_may_go_on_when_it_died(
    formed: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    begun, release = threading.Event(), threading.Event()

    def answer(turn: Turn) -> list[Memory]:
        begun.set()
        release.wait(PATIENCE)
        return newly(turn)

    first = in_thread(lambda: another().rebuild("s", Scripted(answer)))
    assert begun.wait(PATIENCE)
    with pytest.raises(RebuildActive, match="another session"):
        formed.rebuild("s", Scripted(newly))
    db("UPDATE {schema}.rebuild SET leased_until = now() - interval '1 second'")
    assert formed.rebuild("s", Scripted(newly), limit=2) == RebuildOutcome(2, 0, 0, 1, False)
    release.set()
    with pytest.raises(RebuildActive, match="taken over"):
        first.result(PATIENCE)
    assert formed.rebuild("s", Scripted(newly)) == RebuildOutcome(4, 0, 1, 4, True)


def test_an_interrupt_leaves_the_rebuild_to_whoever_calls_next(
    formed: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("parkkeeper.memory.workers.Workers.next", interrupt)
        formed.rebuild("s", Scripted(newly))
    assert [found.state for found in formed.rebuilds()] == ["waiting"]
    assert formed.rebuild("s", Scripted(newly)) == RebuildOutcome(4, 0, 1, 4, True)


def test_a_lost_session_fails_no_turn_and_the_rebuild_goes_on(
    formed: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    rebuilding = another()

    def answer(turn: Turn) -> list[Memory]:
        if turn.log_offset == 1:
            db("SELECT pg_terminate_backend(%s)", (rebuilding.connection.info.backend_pid,))
        return newly(turn)

    with pytest.raises(psycopg.OperationalError):
        rebuilding.rebuild("s", Scripted(answer))
    db("UPDATE {schema}.rebuild SET leased_until = now() - interval '1 second'")
    assert formed.rebuild("s", Scripted(newly)) == RebuildOutcome(4, 0, 1, 4, True)


RACES: dict[str, Callable[[MemoryStore], Any]] = {
    "erase": lambda store: store.erase(scope="s", reason="request"),
    "unpark": lambda store: store.unpark(),
    "cancel": lambda store: store.cancel_rebuild("s"),
}


@pytest.mark.parametrize("race", RACES)
def test_what_happens_to_a_turn_while_it_is_extracted_is_respected(
    formed: MemoryStore, another: Callable[..., MemoryStore], db: Database, race: str
) -> None:
    meanwhile = another()

    def answer(turn: Turn) -> list[Memory]:
        if turn.log_offset == 2:
            RACES[race](meanwhile)
        return newly(turn)

    extractor = Scripted(answer)
    if race == "cancel":
        with pytest.raises(RebuildCancelled):
            formed.rebuild("s", extractor)
        assert [text for _, text, _ in db(TEXTS)] == ["new 0", "new 1", "old 3"]
    else:
        outcome = formed.rebuild("s", extractor)
        assert (outcome.failed, outcome.through_offset, outcome.done) == (0, 4, True)
        assert outcome.rebuilt + outcome.skipped == 5
        assert 2 not in [offset for offset, _, _ in db(TEXTS)]
    assert formed.turn_status("s", 2) == {"erase": "erased", "unpark": "pending", "cancel": "parked"}[race]
    found = formed.freshness("s")
    assert found.stored == 5 and sum(found.by_class.values()) == found.parked


def test_a_reader_finds_exactly_one_version_of_a_turn_at_any_time(
    formed: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    """The transaction that replaces is held open at its last step: readers still find the old memory."""
    holder = Database(another().connection, db.namespace.name)
    begun, release = threading.Event(), threading.Event()

    def answer(turn: Turn) -> list[Memory]:
        begun.set()
        assert release.wait(PATIENCE)
        return newly(turn)

    rebuilding = another(application_name="rebuilding")
    result = in_thread(lambda: rebuilding.rebuild("s", Scripted(answer), limit=1))
    assert begun.wait(PATIENCE)
    with holder.connection.transaction():
        holder("SELECT 1 FROM {schema}.rebuild FOR UPDATE")
        release.set()
        until(lambda: db.waiting_for_a_lock("rebuilding"))
        assert [text for offset, text, _ in db(TEXTS) if offset == 0] == ["old 0"]
        assert formed.recall("s", "old").memories
    result.result(PATIENCE)
    assert [text for offset, text, _ in db(TEXTS) if offset == 0] == ["new 0"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"from_offset": -1}, "from_offset -1 is refused"),
        ({"to_offset": True}, "to_offset True is refused"),
        ({"from_offset": 3, "to_offset": 2}, "it is below from_offset 3"),
        ({"limit": 0}, "limit 0 is refused"),
        ({"turn_budget": timedelta(0)}, "turn_budget"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(formed: MemoryStore, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        formed.rebuild("s", Scripted(newly), **arguments)
    assert formed.rebuilds() == []


def test_rebuilding_refuses_to_run_inside_a_transaction(formed: MemoryStore) -> None:
    with formed.connection.transaction(), pytest.raises(TransactionOpen):
        formed.rebuild("s", Scripted(newly))


@pytest.mark.parametrize("ended", ["cancelled", "cancelled and begun anew", "done", "dropped"])
def test_what_has_ended_between_two_calls_is_not_begun_anew(
    formed: MemoryStore, another: Callable[..., MemoryStore], ended: str
) -> None:
    driver, other = Scripted(newly), another()
    assert not formed.rebuild("s", driver, limit=1).done
    if ended == "done":
        assert other.rebuild("s", Scripted(newly)).done
        assert formed.rebuild("s", driver, limit=1) == RebuildOutcome(4, 0, 1, 4, True)
    else:
        if ended == "dropped":
            other.drop("s", reason="test")
            other.append("s", say("next"))
            other.form_batch(Chunks())
        else:
            assert other.cancel_rebuild("s")
        if ended == "cancelled and begun anew":
            other.rebuild("s", failing("other"), limit=1)
        with pytest.raises(RebuildCancelled):
            formed.rebuild("s", driver, limit=1)
    assert len(driver.seen) == 1
    assert len(formed.rebuilds()) == {"dropped": 0, "cancelled and begun anew": 2}.get(ended, 1)
    if ended in ("cancelled", "done"):  # whoever asks again means it
        assert not formed.rebuild("s", driver, limit=1).done
        assert len(formed.rebuilds()) == 2
