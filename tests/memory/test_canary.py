"""The canary: who sends it, what counts as no answer, and how workers share what it says."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from memory_kit import PATIENCE, Database, Scripted, failing, in_thread, say, until
from outages import ANSWERS, TURNS, attempts, only, outage, pass_cool_down
from parkkeeper.errors import InvalidName
from parkkeeper.memory import MemoryStore, circuit
from parkkeeper.memory.circuit import Key
from parkkeeper.memory.extractors import Memory, Turn
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.memory.session import Session

KEY = Key("scripted", "7", "")


def test_a_success_that_began_before_a_failure_says_nothing_about_it(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    store.append_many("s", TURNS * 3)
    store.form_batch(failing("malformed"), limit=1)
    entered, go_on = threading.Event(), threading.Event()

    def slow(turn: Turn) -> list[Memory]:
        entered.set()
        assert go_on.wait(PATIENCE)
        return []

    batch = in_thread(lambda: another().form_batch(Scripted(slow), limit=1))
    assert entered.wait(PATIENCE)
    assert store.form_batch(failing("malformed"), limit=1).failed == 1
    go_on.set()
    assert batch.result(PATIENCE).formed == 1
    assert only(store).failing == 2


@pytest.mark.parametrize("works", [True, False])
def test_workers_share_one_canary(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database, works: bool
) -> None:
    store.append_many("s", TURNS * 4)
    sent, answer = threading.Event(), threading.Event()

    def canary(turn: Turn) -> Sequence[Memory]:
        sent.set()
        assert answer.wait(PATIENCE)
        return [] if works else ANSWERS["401 or 403"](turn)

    first = Scripted(ANSWERS["401 or 403"], canary)
    second = Scripted(ANSWERS["401 or 403"], lambda turn: [] if works else ANSWERS["401 or 403"](turn))
    workers = [in_thread(lambda: another().form_batch(first, limit=1))]
    assert sent.wait(PATIENCE)
    workers.append(in_thread(lambda: another().form_batch(second, limit=2)))
    until(lambda: only(store).failing == 1)  # the second one's turn has failed too, after the canary was sent
    assert second.canaries == []
    answer.set()
    outcomes = [worker.result(PATIENCE) for worker in workers]
    if works:
        # It does not answer what failed after it was sent: that is asked about once more.
        assert [outcome.failed for outcome in outcomes] == [1, 2]
        assert len(second.canaries) == 2
    else:
        assert [outcome.deferred for outcome in outcomes] == [1, 1]
        assert (second.canaries, {outcome.circuit for outcome in outcomes}) == ([], {"open"})
        assert attempts(db) == {0}


def test_an_open_circuit_stops_the_batches_that_are_running(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    store.append_many("s", TURNS * 9)
    entered, go_on = threading.Event(), threading.Event()

    def slow(turn: Turn) -> Sequence[Memory]:
        entered.set()
        assert go_on.wait(PATIENCE)
        return ANSWERS["refusal"](turn)

    running = Scripted(slow, canary=None)
    batch = in_thread(lambda: another().form_batch(running))
    assert entered.wait(PATIENCE)
    assert store.form_batch(outage("500")).circuit == "open"
    go_on.set()
    outcome = batch.result(PATIENCE)
    assert (outcome.deferred, outcome.failed, outcome.parked, outcome.circuit) == (1, 0, 0, "open")
    assert (len(running.seen), running.canaries, attempts(db)) == (1, [], {0})


def test_a_turn_in_hand_keeps_the_attempt_it_is_at_when_the_others_come_back(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    store.append_many("s", TURNS * 3)
    store.form_batch(outage("plain exception"), limit=1)
    db.come_due()
    entered, go_on = threading.Event(), threading.Event()

    def slow(turn: Turn) -> list[Memory]:
        entered.set()
        assert go_on.wait(PATIENCE)
        return []

    db("UPDATE {schema}.observation SET next_attempt_at = 'infinity' WHERE log_offset > 0")
    batch = in_thread(lambda: another().form_batch(Scripted(slow)))
    assert entered.wait(PATIENCE)
    assert db.turn(0, "formation_attempts", "streak_attempts") == (2, 1)
    db("UPDATE {schema}.observation SET next_attempt_at = now() WHERE log_offset > 0")
    assert store.form_batch(outage("500")).circuit == "open"
    assert db.turn(0, "formation_attempts", "claim_token IS NOT NULL") == (1, True)
    go_on.set()
    assert batch.result(PATIENCE).formed == 1


def test_a_prober_that_dies_is_waited_for_only_until_its_time_is_up(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    store.append("s", say("x"))
    circuit.ask(Session(store.connection, store.namespace), KEY, uuid.uuid4(), timedelta(hours=1))
    extractor = failing("auth")
    batch = in_thread(lambda: another().form_batch(extractor))
    until(lambda: only(store).failing == 1)
    assert extractor.canaries == [] and only(store).probing
    db("UPDATE {schema}.formation_circuit SET probing_until = now()")
    assert batch.result(PATIENCE).failed == 1
    assert len(extractor.canaries) == 1


def test_a_prober_that_dies_while_the_circuit_is_open_holds_it_open_only_until_its_time_is_up(
    store: MemoryStore, db: Database
) -> None:
    store.append("s", say("x"))
    store.form_batch(outage("500"))
    pass_cool_down(db)
    dead = uuid.uuid4()
    session = Session(store.connection, store.namespace)
    assert circuit.ask(session, KEY, dead, timedelta(hours=1))[1]
    works = Scripted(Chunks().extract)
    assert (store.form_batch(works).circuit, works.canaries) == ("open", [])
    db("UPDATE {schema}.formation_circuit SET probing_until = now()")
    assert (store.form_batch(works).formed, len(works.canaries)) == (1, 1)
    # What the dead one has to say when it comes back is no longer listened to.
    assert circuit.miss(session, KEY, dead, "auth", None).breaker.open is False
    assert circuit.hit(session, KEY, dead).breaker.open is False


def test_an_interrupted_batch_leaves_no_canary_behind_to_be_waited_for(
    store: MemoryStore, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(workers: object, token: uuid.UUID, deadline: object) -> None:
        raise KeyboardInterrupt

    store.append("s", say("x"))
    with monkeypatch.context() as patch:
        patch.setattr("parkkeeper.memory.workers.Workers.send_canary", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.form_batch(failing("auth"))
    assert not only(store).probing
    assert db.turn(0, "formation_attempts", "formation_error_class") == (1, "auth")
    db.come_due()
    assert store.form_batch(outage("401 or 403")).circuit == "open"
    assert db.turn(0, "formation_attempts") == 0  # the failure that nobody had answered is given back too


@pytest.mark.parametrize(
    "error",
    [RuntimeError("MARKER"), SystemExit(1), KeyboardInterrupt(), type("Panic", (BaseException,), {})()],
)
def test_whatever_a_canary_raises_is_no_answer(
    store: MemoryStore, db: Database, error: BaseException
) -> None:
    def canary(turn: Turn) -> Sequence[Memory]:
        raise error

    store.append("s", say("x"))
    outcome = store.form_batch(Scripted(ANSWERS["500"], canary))
    assert (outcome.deferred, outcome.circuit, only(store).error_class) == (1, "open", "other")


class OwnCanary(Scripted):
    """An extractor that ships its canary."""

    def __init__(self, make: Callable[[], Any], **more: Any) -> None:
        super().__init__(ANSWERS["500"], **more)
        self.canary = make


def test_an_extractor_may_ship_its_canary(store: MemoryStore) -> None:
    store.append("s", say("x"))
    ours = Turn("", -5, store.connection.execute("SELECT now()").fetchone()[0], (), None)  # type: ignore[index,arg-type]
    extractor = OwnCanary(lambda: ours)
    assert store.form_batch(extractor).failed == 1
    (sent,) = extractor.canaries
    assert sent.log_offset == -5 and sent.deadline is not None


def broken() -> Turn:
    raise SystemExit("MARKER")


@pytest.mark.parametrize(("make", "error_class"), [(broken, "other"), (lambda: "hello", "malformed")])
def test_a_canary_that_cannot_be_made_is_no_answer(store: MemoryStore, make: Any, error_class: str) -> None:
    store.append("s", say("x"))
    assert store.form_batch(OwnCanary(make)).circuit == "open"
    assert only(store).error_class == error_class


def test_a_canary_beyond_its_budget_is_no_answer_and_what_it_says_later_is_not_heard(
    store: MemoryStore, db: Database
) -> None:
    release, returned = threading.Event(), threading.Event()

    def canary(turn: Turn) -> list[Memory]:
        assert release.wait(PATIENCE)
        returned.set()
        return []

    store.append_many("s", TURNS * 2)
    outcome = store.form_batch(
        Scripted(ANSWERS["500"], canary), turn_budget=timedelta(milliseconds=300), concurrency=1
    )
    assert (outcome.deferred, outcome.circuit) == (1, "open")
    assert (only(store).error_class, only(store).failures) == ("timeout", 1)
    release.set()
    assert returned.wait(PATIENCE)
    assert only(store).state == "open"
    # It must not keep the process from ending either.
    assert all(t.daemon for t in threading.enumerate() if t.name.startswith("parkkeeper-extract"))


def test_a_canary_stores_nothing_and_carries_no_words_of_anybody(store: MemoryStore, db: Database) -> None:
    store.append("s", say("MARKER"))
    extractor = Scripted(ANSWERS["500"], lambda turn: [Memory("a canary remembers")])
    assert store.form_batch(extractor).memories == 0
    (canary,) = extractor.canaries
    assert (canary.scope, canary.log_offset) == ("", -1)
    assert "MARKER" not in str(canary.messages) and canary.messages
    assert db.one("SELECT count(*) FROM {schema}.memory") == 0


def test_each_extractor_version_and_identity_has_a_circuit_of_its_own(store: MemoryStore) -> None:
    store.append_many("s", TURNS * 3)
    down, other = outage("500"), Scripted(Chunks().extract)
    down.identity = "first"  # type: ignore[attr-defined]
    other.identity = "second"  # type: ignore[attr-defined]
    assert store.form_batch(down).circuit == "open"
    assert store.form_batch(other, limit=1).formed == 1
    down.version = "8"
    assert store.form_batch(down).circuit == "open"
    known = [(each.extractor, each.version, each.identity, each.state) for each in store.circuits()]
    assert known == [("scripted", "7", "first", "open"), ("scripted", "8", "first", "open")]
    other.identity = "a\nb"  # type: ignore[attr-defined]
    with pytest.raises(InvalidName, match=r"^extractor\.identity "):
        store.form_batch(other)


def test_workers_at_once_come_through_outages_without_a_turn_parked(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    """Three times down in a row, each time in another way, under four workers with two turns in hand each."""
    for scope in ("s", "t"):
        store.append_many(scope, TURNS * 40)
    kinds = ["401 or 403", "plain exception", "gibberish"]
    calls, down = itertools.count(), threading.Event()

    def answer(turn: Turn) -> Sequence[Memory]:
        number = next(calls)
        if number % 20 == 10 and number < 60:
            down.set()
        return ANSWERS[kinds[number // 20 % 3]](turn) if down.is_set() else [Memory("x")]

    def work() -> int:
        mine, formed = another(), 0
        while (outcome := mine.form_batch(Scripted(answer, canary=None), concurrency=2)).backlog:
            formed += outcome.formed
            assert (outcome.parked, outcome.discarded) == (0, 0)
        return formed + outcome.formed

    workers = [in_thread(work) for _ in range(4)]

    def ended() -> bool:
        if any(known.state == "open" and not known.probing for known in store.circuits()):
            down.clear()
            pass_cool_down(db)
        elif not down.is_set():
            db.come_due()
        return all(worker.done() for worker in workers)

    until(ended)
    assert sum(worker.result(PATIENCE) for worker in workers) == 80
    assert only(store).canaries >= 2
    assert max(attempts(db)) <= 4  # an outage that ends before the canary is sent is not seen
    assert db.one("SELECT count(*) FROM {schema}.memory") == 80
