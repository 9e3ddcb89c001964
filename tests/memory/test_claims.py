"""Claims: what happens to a turn whose worker dies, is interrupted, is late, or is not alone."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from memory_kit import PATIENCE, Database, Scripted, failing, in_thread, say, until
from parkkeeper.memory import MemoryStore, claims
from parkkeeper.memory.circuit import Key
from parkkeeper.memory.claims import Claim, claim
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.memory.session import Session

STATE = ("formation_attempts", "formation_error_class", "claim_token")


class Held:
    """An extractor that waits for a signal before it answers, but to a canary at once."""

    name = "held"
    version = "1"

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def extract(self, turn: Turn) -> list[Memory]:
        if turn.log_offset < 0:
            return []
        self.entered.set()
        assert self.go_on.wait(PATIENCE)
        return [Memory("held")]


def die_with_a_turn(store: MemoryStore, max_attempts: int = 6) -> Claim:
    """Claim a turn as a batch does, and do nothing more: the worker is gone."""
    session = Session(store.connection, store.namespace)
    key = Key.of(Chunks())
    taken = claim(
        session, "s", uuid.uuid4(), key, max_attempts=max_attempts, turn_budget=timedelta(minutes=5)
    )
    assert isinstance(taken, Claim)
    return taken


def test_an_attempt_counts_when_the_turn_is_claimed(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"))
    attempts: list[int] = []

    def look(turn: Turn) -> list[Memory]:
        attempts.append(db.turn(0, "formation_attempts"))
        return []

    store.form_batch(Scripted(look))
    assert attempts == [1]


def test_turns_are_claimed_one_by_one(store: MemoryStore, db: Database) -> None:
    store.append_many("s", [{"messages": say("x")}] * 4)
    claimed: list[int] = []

    def look(turn: Turn) -> list[Memory]:
        claimed.append(db.one("SELECT count(*) FROM {schema}.observation WHERE claim_token IS NOT NULL"))
        return []

    store.form_batch(Scripted(look))
    assert claimed == [1, 1, 1, 1]


def test_a_claim_holds_for_the_budget_and_the_time_to_store(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"))
    die_with_a_turn(store)
    left = db.one("SELECT extract(epoch FROM claimed_until - now())::float8 FROM {schema}.observation")
    assert 300 < left <= 360
    assert store.form_batch(Chunks()).formed == 0
    assert store.sweep().claims_returned == 0


def test_a_claim_that_ran_out_is_taken_over_and_its_attempt_stays_counted(
    store: MemoryStore, db: Database
) -> None:
    store.append("s", say("x"))
    die_with_a_turn(store)
    db.expire_claims()
    assert store.form_batch(failing("malformed")).failed == 1
    assert db.turn(0, *STATE) == (2, "malformed", None)


def test_a_claim_that_is_taken_over_tells_of_the_crash_and_no_longer_of_what_came_before(
    store: MemoryStore, db: Database
) -> None:
    store.append("s", say("x"))
    store.form_batch(failing("malformed", "before"))
    db.come_due()
    die_with_a_turn(store)
    db.expire_claims()
    seen: list[tuple[object, ...]] = []

    def look(turn: Turn) -> list[Memory]:
        seen.append(db.turn(0, "formation_error_class", "formation_error", "formation_failed_at < now()"))
        return []

    store.form_batch(Scripted(look))
    assert seen == [("worker_crash", None, True)]


def test_a_turn_that_kills_its_worker_each_time_is_parked_by_the_next_claim(
    store: MemoryStore, db: Database
) -> None:
    store.append_many("s", [{"messages": say("poison")}, {"messages": say("fine")}])
    for attempt in range(1, 7):
        assert die_with_a_turn(store).attempt == attempt
        db.expire_claims()
    outcome = store.form_batch(Chunks())
    assert (outcome.formed, outcome.failed, outcome.parked) == (1, 1, 1)
    assert db.turn(0, *STATE, "formation_error", "parked_at IS NOT NULL") == (
        6,
        "worker_crash",
        None,
        None,
        True,
    )
    assert store.freshness("s").by_class == {"worker_crash": 1}


def test_a_lower_cap_parks_what_has_failed_that_often_with_its_own_class(
    store: MemoryStore, db: Database
) -> None:
    store.append("s", say("x"))
    for _ in range(2):
        store.form_batch(failing("malformed", "why"))
        db.come_due()
    assert store.form_batch(Chunks(), max_attempts=2).parked == 1
    assert db.turn(0, *STATE, "formation_error") == (2, "malformed", None, "why")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_an_interrupt_hands_the_turns_back_uncounted_and_goes_on(
    store: MemoryStore, db: Database, interrupt: type[BaseException], concurrency: int
) -> None:
    """As SIGTERM does it: the handler runs in the thread that waits for the extractions, and raises there."""

    def stop(number: int, frame: object) -> None:
        raise interrupt

    store.append_many("s", [{"messages": say("x")}] * 3)
    held = Held()
    before = signal.signal(signal.SIGTERM, stop)
    try:
        in_thread(lambda: held.entered.wait(PATIENCE) and os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(interrupt):
            store.form_batch(held, concurrency=concurrency)
    finally:
        signal.signal(signal.SIGTERM, before)
        held.go_on.set()
    assert (
        db("SELECT formation_attempts, claim_token, claimed_until FROM {schema}.observation")
        == [(0, None, None)] * 3
    )
    assert store.form_batch(Chunks()).formed == 3


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), SystemExit(1), GeneratorExit()])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_what_looks_like_an_interrupt_but_comes_of_an_extractor_is_the_turns_failure(
    store: MemoryStore, db: Database, ending: BaseException, concurrency: int
) -> None:
    """Or one turn, on which a library calls exit, would end every batch uncounted, for ever."""

    def answer(turn: Turn) -> list[Memory]:
        if turn.log_offset == 0:
            raise ending
        return []

    store.append_many("s", [{"messages": say("x")}] * 3)
    outcome = store.form_batch(Scripted(answer), concurrency=concurrency)
    assert (outcome.formed, outcome.failed) == (2, 1)
    assert db.turn(0, *STATE) == (1, "other", None)


def test_an_interrupt_while_waiting_for_an_extraction_hands_the_turn_back(
    store: MemoryStore, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(workers: object, timeout: float) -> None:
        raise KeyboardInterrupt

    store.append("s", say("x"))
    held = Held()
    with monkeypatch.context() as patch:
        patch.setattr("parkkeeper.memory.workers.Workers.next", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.form_batch(held)
    held.go_on.set()
    assert db.turn(0, *STATE) == (0, None, None)


def test_an_interrupt_that_comes_with_the_claim_itself_hands_the_turn_back(
    store: MemoryStore, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def claimed_and_interrupted(*arguments: object, **options: object) -> None:
        claim(*arguments, **options)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    store.append("s", say("x"))
    monkeypatch.setattr(claims, "claim", claimed_and_interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.form_batch(Chunks())
    assert db.turn(0, *STATE) == (0, None, None)


def test_a_lost_session_leaves_the_attempt_counted_and_the_turn_to_others(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    store.append("s", say("x"))
    dying = another(application_name="dying")

    def cut(turn: Turn) -> list[Memory]:
        db("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'dying'")
        return []

    with pytest.raises(psycopg.OperationalError, match="form_batch failed in the database"):
        dying.form_batch(Scripted(cut))
    assert db.turn(0, "formation_attempts", "claim_token IS NOT NULL") == (1, True)
    db.expire_claims()
    assert store.form_batch(Chunks()).formed == 1


def test_an_extraction_that_never_returns_is_a_timeout_and_ends_the_batch(
    store: MemoryStore, db: Database
) -> None:
    store.append_many("s", [{"messages": say("x")}] * 3)
    held = Held()
    outcome = store.form_batch(held, turn_budget=timedelta(milliseconds=300))
    assert (outcome.formed, outcome.failed, outcome.backlog) == (0, 1, 3)
    assert db.turn(0, *STATE, "formation_error") == (1, "timeout", None, "no result in 0.3 s")
    # It must not keep the process from ending either.
    assert all(t.daemon for t in threading.enumerate() if t.name.startswith("parkkeeper-extract"))
    held.go_on.set()


def test_a_result_that_comes_after_its_deadline_is_discarded(store: MemoryStore, db: Database) -> None:
    def late(turn: Turn) -> list[Memory]:
        until(lambda: datetime.now(UTC) > turn.deadline)
        return [Memory("late")]

    store.append_many("s", [{"messages": say("x")}] * 2)
    outcome = store.form_batch(Scripted(late), turn_budget=timedelta(milliseconds=300))
    assert (outcome.formed, outcome.failed) == (0, 1)
    assert db.turn(0, "formation_error_class") == "timeout"
    assert db.one("SELECT count(*) FROM {schema}.memory") == 0


def test_a_result_that_was_late_while_the_database_was_busy_is_discarded_too(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    store.append_many("s", [{"messages": say("x")}] * 2)
    worker = another(application_name="worker")
    deadlines: list[datetime] = []
    late, returned = threading.Event(), threading.Event()

    def answer(turn: Turn) -> list[Memory]:
        if turn.log_offset == 1:
            deadlines.append(turn.deadline)
            assert late.wait(PATIENCE)
            returned.set()
        return []

    with store.connection.transaction():
        store.connection.execute(
            f"SELECT 1 FROM {store.namespace.identifier}.watermark_formed FOR UPDATE".encode()  # noqa: S608
        )
        batch = in_thread(
            lambda: worker.form_batch(
                Scripted(answer), turn_budget=timedelta(milliseconds=200), concurrency=2
            )
        )
        until(lambda: db.waiting_for_a_lock("worker") and len(deadlines) == 1)
        until(lambda: datetime.now(UTC) > deadlines[0])
        late.set()
        assert returned.wait(PATIENCE)
    outcome = batch.result(PATIENCE)
    assert (outcome.formed, outcome.failed) == (1, 1)
    assert db.turn(1, "formation_error_class") == "timeout"


def test_turns_in_hand_end_in_their_own_time_when_one_overruns(store: MemoryStore) -> None:
    store.append_many("s", [{"messages": say("x")}] * 5)
    release = threading.Event()

    def answer(turn: Turn) -> list[Memory]:
        if turn.log_offset == 0:
            assert release.wait(PATIENCE)
        return []

    outcome = store.form_batch(Scripted(answer), turn_budget=timedelta(milliseconds=300), concurrency=2)
    release.set()
    assert (outcome.formed, outcome.failed) == (4, 1)


def test_extractions_run_at_once_up_to_the_concurrency(store: MemoryStore, db: Database) -> None:
    store.append_many("s", [{"messages": say("x")}] * 6)
    together = threading.Barrier(3)

    def meet(turn: Turn) -> list[Memory]:
        together.wait(PATIENCE)
        return [Memory(f"turn {turn.log_offset}")]

    assert store.form_batch(Scripted(meet), concurrency=3).formed == 6
    assert db(
        "SELECT o.log_offset, m.text FROM {schema}.memory AS m JOIN {schema}.projection_dependency AS d "
        "ON d.derived_id = m.memory_id JOIN {schema}.observation AS o ON o.observation_id = d.source_id ORDER BY 1"
    ) == [(offset, f"turn {offset}") for offset in range(6)]


def test_workers_at_once_form_each_turn_once(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    for scope in ("s", "t"):
        store.append_many(scope, [{"messages": say("x")}] * 30)
    seen: list[tuple[str, int]] = []
    start = threading.Barrier(3)

    def note(turn: Turn) -> list[Memory]:
        seen.append((turn.scope, turn.log_offset))
        return [Memory("x")]

    def work() -> int:
        mine = another()
        start.wait(PATIENCE)
        total = 0
        while outcome := mine.form_batch(Scripted(note), limit=7).formed:
            total += outcome
        return total

    totals = [future.result(PATIENCE) for future in [in_thread(work) for _ in range(3)]]
    assert sum(totals) == 60
    assert sorted(seen) == [(scope, offset) for scope in ("s", "t") for offset in range(30)]
    assert db.one("SELECT count(*) FROM {schema}.memory") == 60
    assert [store.freshness(scope).formed for scope in ("s", "t")] == [29, 29]


@pytest.mark.parametrize(
    "error", [None, ExtractionError("refusal", "late"), ExtractionError("malformed", "late")]
)
@pytest.mark.parametrize("meanwhile", ["erased", "parked", "taken over", "formed by another"])
def test_a_late_result_is_discarded(
    store: MemoryStore,
    another: Callable[..., MemoryStore],
    db: Database,
    meanwhile: str,
    error: Exception | None,
) -> None:
    store.append("s", say("x"), subject="ann")

    def answer(turn: Turn) -> list[Memory]:
        other = another()
        if meanwhile == "erased":
            other.erase(subject="ann", reason="request")
        else:
            db.expire_claims()
            if meanwhile == "parked":
                assert other.form_batch(Chunks(), max_attempts=1).parked == 1
            elif meanwhile == "taken over":
                die_with_a_turn(other)
            else:
                assert other.form_batch(Scripted(lambda turn: [Memory("theirs")])).formed == 1
        if error is not None:
            raise error
        return [Memory("late")]

    outcome = store.form_batch(Scripted(answer), limit=1)
    assert (outcome.formed, outcome.failed, outcome.discarded, outcome.memories) == (0, 0, 1, 0)
    expected = {
        "erased": "erased",
        "parked": "parked",
        "taken over": "pending",
        "formed by another": "formed",
    }
    assert store.turn_status("s", 0) == expected[meanwhile]
    found = store.freshness("s")
    assert (found.parked, found.erased, found.backlog) == (
        int(meanwhile == "parked"),
        int(meanwhile == "erased"),
        int(meanwhile == "taken over"),
    )
    assert db.one("SELECT count(*) FROM {schema}.memory WHERE text = 'late'") == 0
    assert db.one("SELECT count(*) FROM {schema}.observation WHERE formation_error = 'late'") == 0


def test_an_open_transaction_with_an_append_in_it_does_not_hold_formation_up(
    store: MemoryStore, another: Callable[..., MemoryStore]
) -> None:
    store.append("s", say("committed"))
    writer = another()
    worker = another(lock_timeout=timedelta(milliseconds=300))
    with writer.connection.transaction():
        writer.append("s", say("open"))
        writer.append("new", say("open"), idempotency_key="k")
        assert worker.form_batch(Chunks()).formed == 1
        assert worker.freshness("s").formed == 0
        assert worker.form_batch(Chunks()).formed == 0
        worker.append("t", say("poison"))
        assert worker.form_batch(failing("refusal")).parked == 1
        assert worker.unpark() == 1
        assert worker.sweep().parked_total == 0
        assert worker.erase(scope="s", reason="request").deleted["observation"] == 1
    assert store.form_batch(Chunks()).formed == 3
    assert (store.freshness("s").formed, store.freshness("s").erased) == (1, 1)


def test_erasing_and_forming_wait_for_each_other_in_one_order(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Erasure holds the scope and waits for a turn; formation must not hold a turn and wait for the scope."""
    deadlocks: list[psycopg.Error] = []

    def once(connection: object, work: Callable[[], object]) -> object:
        try:
            return work()
        except psycopg.errors.DeadlockDetected as error:
            deadlocks.append(error)
            raise

    for module in ("settling", "erasure"):
        monkeypatch.setattr(f"parkkeeper.memory.{module}.retried", once)
    store.append_many("s", [{"messages": say("x"), "subject": "ann"}] * 2)
    forming, erasing = another(application_name="forming"), another(application_name="erasing")
    db("UPDATE {schema}.observation SET next_attempt_at = 'infinity' WHERE log_offset = 0")
    held = Held()
    batch = in_thread(lambda: forming.form_batch(held, limit=1))
    assert held.entered.wait(PATIENCE)
    with store.connection.transaction():
        # The erasure has the scope's lock and stops at this turn, before the one that is being formed.
        store.connection.execute(
            f"SELECT 1 FROM {store.namespace.identifier}.observation WHERE log_offset = 0 FOR UPDATE".encode()  # noqa: S608
        )
        erasure = in_thread(lambda: erasing.erase(subject="ann", reason="request"))
        until(lambda: db.waiting_for_a_lock("erasing"))
        held.go_on.set()
        until(lambda: db.waiting_for_a_lock("forming"))
    receipt = erasure.result(PATIENCE)
    assert (receipt.deleted["observation"], receipt.clean) == (2, True)
    assert batch.result(PATIENCE).discarded == 1
    assert deadlocks == []
    assert db.one("SELECT count(*) FROM {schema}.memory") == 0
