"""Formation: what an attempt may come to, how often a turn is tried, and when it is given up."""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memory_kit import PATIENCE, Database, Scripted, failing, raising, say
from parkkeeper.errors import InvalidArgument, InvalidName, TransactionOpen
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn, load
from parkkeeper.memory.extractors.chunks import Chunks

STATE = ("formation_attempts", "formation_error_class", "formation_error")
WAIT = "SELECT extract(epoch FROM next_attempt_at - now())::float8 FROM {schema}.observation WHERE log_offset = 0"


def nothing(turn: Turn) -> list[Memory]:
    return []


def test_a_batch_forms_what_is_due_without_waiting_for_more(store: MemoryStore, db: Database) -> None:
    store.append_many(
        "s", [{"messages": say("one", "two")}, {"messages": say("three")}, {"messages": say(" ")}]
    )
    outcome = store.form_batch(Chunks())
    assert (outcome.formed, outcome.failed, outcome.memories, outcome.backlog) == (3, 0, 3, 0)
    assert db(
        "SELECT o.log_offset, m.kind, m.text, m.extractor, m.extractor_version, m.scope FROM {schema}.memory AS m "
        "JOIN {schema}.projection_dependency AS d ON d.derived_id = m.memory_id "
        "JOIN {schema}.observation AS o ON o.observation_id = d.source_id ORDER BY o.log_offset, m.memory_id"
    ) == [
        (0, "message", "one", "chunks", "1", "s"),
        (0, "message", "two", "chunks", "1", "s"),
        (1, "message", "three", "chunks", "1", "s"),
    ]
    assert db.turn(2, "formed_at IS NOT NULL", "claim_token") == (True, None)
    assert store.form_batch(Chunks()).formed == 0


def test_an_extractor_sees_one_turn_and_until_when_it_may_take(store: MemoryStore) -> None:
    said = datetime(2020, 1, 1, tzinfo=UTC)
    store.append("s", say("one", "two"), occurred_at=said, subject="ann")
    extractor = Scripted(nothing)
    before = datetime.now(UTC)
    store.form_batch(extractor, turn_budget=timedelta(seconds=40))
    (turn,) = extractor.seen
    assert (turn.scope, turn.log_offset, turn.occurred_at) == ("s", 0, said)
    assert list(turn.messages) == say("one", "two")
    assert timedelta(seconds=40) <= turn.deadline - before < timedelta(seconds=60)


def test_an_empty_extraction_is_a_success(store: MemoryStore) -> None:
    store.append("s", say("hm"))
    outcome = store.form_batch(Scripted(nothing))
    assert (outcome.formed, outcome.failed, outcome.memories) == (1, 0, 0)
    assert store.turn_status("s", 0) == "formed"


def test_the_limit_counts_turns_that_are_claimed(store: MemoryStore) -> None:
    store.append_many("s", [{"messages": say("x")}] * 5)
    outcome = store.form_batch(Chunks(), limit=2)
    assert (outcome.formed, outcome.backlog) == (2, 3)
    assert store.form_batch(failing("malformed"), limit=2).failed == 2


def test_a_batch_can_keep_to_one_scope(store: MemoryStore) -> None:
    store.append("s", say("x"))
    store.append("t", say("y"))
    outcome = store.form_batch(Chunks(), scope="t")
    assert (outcome.formed, outcome.backlog) == (1, 0)
    assert store.turn_status("s", 0) == "pending"
    assert store.form_batch(Chunks(), scope="nobody").formed == 0


def test_no_scope_waits_behind_a_noisy_one(store: MemoryStore) -> None:
    store.append_many("noisy", [{"messages": say("x")}] * 50)
    for number in range(9):
        store.append(f"quiet {number}", say("y"))
    extractor = Scripted(nothing)
    store.form_batch(extractor, limit=10)
    assert len({turn.scope for turn in extractor.seen}) == 10
    store.form_batch(extractor, limit=10)
    assert [turn.scope for turn in extractor.seen].count("noisy") == 11


def test_no_scope_waits_for_ever_when_there_are_more_than_a_batch_takes(store: MemoryStore) -> None:
    for number in range(8):
        store.append_many(f"scope {number}", [{"messages": say("x")}] * 40)
    extractor = Scripted(nothing)
    for _ in range(60):
        store.form_batch(extractor, limit=2)
    assert len({turn.scope for turn in extractor.seen}) == 8


def test_a_failure_is_recorded_on_the_turn_and_tried_again_after_a_doubling_wait(
    store: MemoryStore, db: Database
) -> None:
    store.append("s", say("x"))
    for attempt, least in enumerate((10, 20, 40, 80, 160), start=1):
        outcome = store.form_batch(failing("malformed", f"bad {attempt}"))
        assert (outcome.failed, outcome.parked, outcome.formed, outcome.backlog) == (1, 0, 0, 1)
        assert db.turn(0, *STATE) == (attempt, "malformed", f"bad {attempt}")
        assert least - 5 <= db.one(WAIT) <= least * 1.2
        assert store.form_batch(Chunks()).formed == 0  # not yet
        db.come_due()
    outcome = store.form_batch(failing("malformed", "bad 6"))
    assert (outcome.failed, outcome.parked, outcome.backlog) == (1, 1, 0)
    assert db.turn(0, *STATE, "parked_at IS NOT NULL", "park_count") == (6, "malformed", "bad 6", True, 1)
    db.come_due()
    assert store.form_batch(Chunks()).formed == 0


def test_a_wait_stops_doubling_at_an_hour_however_many_attempts_there_are(
    store: MemoryStore, db: Database
) -> None:
    store.append("s", say("x"))
    db("UPDATE {schema}.observation SET formation_attempts = 2000")
    assert store.form_batch(failing("malformed"), max_attempts=10_000).failed == 1
    assert 3_595 <= db.one(WAIT) <= 3_600 * 1.2


@pytest.mark.parametrize("budget", [timedelta(days=1_825_000), timedelta.max])
def test_any_budget_above_zero_is_accepted(store: MemoryStore, db: Database, budget: timedelta) -> None:
    store.append("s", say("x"))
    outcome = store.form_batch(Chunks(), turn_budget=budget)
    assert (outcome.formed, outcome.failed) == (1, 0)
    assert db.turn(0, "claim_token") is None


def test_a_budget_in_which_nothing_can_be_done_spends_no_attempt(store: MemoryStore, db: Database) -> None:
    """The canary has no more time than the turns, so it is late as they are."""
    store.append("s", say("x"))
    outcome = store.form_batch(Chunks(), turn_budget=timedelta(microseconds=1))
    assert (outcome.formed, outcome.failed, outcome.deferred, outcome.circuit) == (0, 0, 1, "open")
    assert db.turn(0, "claim_token", "formation_attempts") == (None, 0)


def test_a_success_after_failures_leaves_no_error_behind(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"))
    store.form_batch(failing("malformed", "MARKER"))
    db.come_due()
    assert store.form_batch(Chunks()).formed == 1
    assert db.turn(0, *STATE, "formation_failed_at") == (2, None, None, None)


@pytest.mark.parametrize("error_class", ["refusal", "too_long"])
def test_what_another_attempt_cannot_cure_is_parked_at_once(
    store: MemoryStore, db: Database, error_class: str
) -> None:
    store.append_many("s", [{"messages": say("x")}] * 3)
    outcome = store.form_batch(failing(error_class, "no", offsets=[1]))
    assert (outcome.formed, outcome.failed, outcome.parked) == (2, 1, 1)
    assert db.turn(1, *STATE) == (1, error_class, "no")


def test_the_number_of_attempts_is_the_callers(store: MemoryStore) -> None:
    store.append("s", say("x"))
    assert store.form_batch(failing("other"), max_attempts=1).parked == 1


def test_any_other_exception_is_of_class_other_and_keeps_its_type(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"))
    assert store.form_batch(raising(KeyError("MARKER"))).failed == 1
    assert db.turn(0, *STATE) == (1, "other", "KeyError: 'MARKER'")


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError("MARKER"), type("Panic", (BaseException,), {})("MARKER")]
)
def test_what_an_extractor_raises_past_exception_is_the_turns_failure_too(
    store: MemoryStore, db: Database, error: BaseException
) -> None:
    store.append_many("s", [{"messages": say("x")}] * 2)
    assert store.form_batch(raising(error)).failed == 2
    assert db.turn(0, *STATE) == (1, "other", f"{type(error).__name__}: MARKER")


class Unprepared(ExtractionError):
    """A failure that never told its class."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)


class Reclassed(ExtractionError):
    """A failure whose class is none."""

    def __init__(self, text: str) -> None:
        super().__init__("auth", text)
        self.error_class = "sulking"

    def __str__(self) -> str:
        return str(self.message)


@pytest.mark.parametrize("kind", [Unprepared, Reclassed])
def test_an_extraction_error_without_a_class_of_the_list_is_other_and_holds_nobody_up(
    store: MemoryStore, db: Database, kind: type[ExtractionError]
) -> None:
    store.append_many("s", [{"messages": say("x")}] * 2)
    assert store.form_batch(raising(kind("MARKER"))).failed == 2
    assert db.turn(0, *STATE) == (1, "other", f"{kind.__name__}: MARKER")


def test_a_failure_that_names_its_class_without_more_keeps_it(store: MemoryStore, db: Database) -> None:
    class Limited(Unprepared):
        error_class = "rate_limited"

    store.append("s", say("x"))
    assert store.form_batch(raising(Limited("MARKER"))).failed == 1
    assert db.turn(0, *STATE) == (1, "rate_limited", "")


class Mute(Exception):
    """An exception that cannot say what it is about."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_a_failure_whose_text_cannot_be_read_is_recorded_by_its_class(
    store: MemoryStore, db: Database
) -> None:
    store.append("s", say("x"))
    assert store.form_batch(raising(Mute())).failed == 1
    assert db.turn(0, *STATE) == (1, "other", None)


class Ending(Exception):
    """An exception that ends the program of whoever asks what it is about."""

    def __str__(self) -> str:
        raise SystemExit("MARKER")


class Hiding(ExtractionError):
    """A failure whose class cannot be read."""

    error_class = property(lambda self: raise_interrupt())  # type: ignore[assignment]

    def __init__(self) -> None:
        Exception.__init__(self, "auth")


class Trap(list[Memory]):
    """A result that cannot be looked at."""

    def __iter__(self) -> Any:
        raise_interrupt()


def raise_interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("answer", [Ending(), Hiding(), Trap([Memory("x")])], ids=lambda a: type(a).__name__)
def test_whatever_comes_of_looking_at_a_result_is_its_turns_failure(
    store: MemoryStore, db: Database, answer: Any
) -> None:
    def give(turn: Turn) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    store.append_many("s", [{"messages": say("x")}] * 2)
    assert store.form_batch(Scripted(give)).failed == 2
    assert db.turn(0, "formation_attempts", "formation_error_class", "claim_token") == (1, "other", None)


def test_a_failure_that_takes_for_ever_to_be_read_is_a_timeout(store: MemoryStore, db: Database) -> None:
    read = threading.Event()

    class Slow(Exception):
        def __str__(self) -> str:
            read.wait(PATIENCE)
            return "at last"

    store.append("s", say("x"))
    outcome = store.form_batch(raising(Slow()), turn_budget=timedelta(milliseconds=300))
    read.set()
    assert (outcome.failed, db.turn(0, "formation_error_class")) == (1, "timeout")


def test_a_failure_whose_text_the_database_will_not_have_is_recorded_by_its_class(
    store: MemoryStore, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkkeeper.memory.settling.kept_error", lambda message: "x" * 3_000)
    store.append_many("s", [{"messages": say("x")}] * 2)
    outcome = store.form_batch(failing("refusal", offsets=[0]))
    assert (outcome.formed, outcome.parked) == (1, 1)
    assert db.turn(0, *STATE) == (1, "refusal", None)
    assert store.form_batch(failing("malformed")).failed == 0


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "text",
        [{"text": "x"}],
        [Memory("a\x00b")],
        [Memory("\ud83d")],
        [Memory("")],
        [Memory("x" * 65_537)],
        [Memory("fine"), Memory("fine", "")],
        [Memory(5)],  # type: ignore[arg-type]
    ],
)
def test_a_result_that_cannot_be_stored_is_malformed_and_stores_nothing(
    store: MemoryStore, db: Database, answer: Any
) -> None:
    store.append("s", say("x"))
    outcome = store.form_batch(Scripted(lambda turn: answer))
    assert (outcome.formed, outcome.failed, outcome.memories) == (0, 1, 0)
    assert db.turn(0, "formation_error_class") == "malformed"
    assert db.one("SELECT count(*) FROM {schema}.memory") == 0


def test_a_store_that_the_database_refuses_is_a_failure_of_class_store(
    store: MemoryStore, db: Database
) -> None:
    db("ALTER TABLE {schema}.memory ADD CONSTRAINT no_marker_chk CHECK (text <> 'MARKER')")
    store.append_many("s", [{"messages": say("MARKER")}, {"messages": say("fine")}])
    outcome = store.form_batch(Chunks())
    assert (outcome.formed, outcome.failed) == (1, 1)
    assert db.turn(0, *STATE) == (1, "store", "the memories could not be stored: 23514")
    assert db.one("SELECT count(*) FROM {schema}.memory") == 1


def test_forming_replaces_what_was_remembered_of_the_turn(store: MemoryStore, db: Database) -> None:
    turn = store.append("s", say("new"))
    db(
        "WITH d AS (INSERT INTO {schema}.projection_dependency (source_id, derived_kind) VALUES (%s, 'memory') "
        "RETURNING derived_id) INSERT INTO {schema}.memory (memory_id, scope, kind, text, extractor, extractor_version)"
        " SELECT derived_id, 's', 'message', 'old', 'x', '0' FROM d",
        (turn.observation_id,),
    )
    store.form_batch(Chunks())
    assert db("SELECT text FROM {schema}.memory") == [("new",)]
    assert db.one("SELECT count(*) FROM {schema}.projection_dependency") == 1


@pytest.mark.parametrize(
    ("asked", "waits"), [(7, 7), ("7", 7), (timedelta(minutes=2), 120), (0, 1), (-5, 1), (86_400, 3_600)]
)
def test_a_provider_that_asks_to_wait_defers_the_turn_and_spends_no_attempt(
    store: MemoryStore, db: Database, asked: Any, waits: int
) -> None:
    store.append_many("s", [{"messages": say("x")}] * 2)
    outcome = store.form_batch(failing("rate_limited", "slow down", offsets=[0], retry_after=asked))
    assert (outcome.formed, outcome.failed, outcome.deferred, outcome.backlog) == (1, 0, 1, 1)
    assert db.turn(0, *STATE) == (0, "rate_limited", "slow down")
    assert waits - 5 <= db.one(WAIT) <= waits


@pytest.mark.parametrize(
    "asked",
    [None, float("inf"), float("nan"), "in a while", datetime(2026, 10, 21, tzinfo=UTC)],
)
def test_a_rate_limit_without_a_time_spends_an_attempt(store: MemoryStore, db: Database, asked: Any) -> None:
    store.append("s", say("x"))
    outcome = store.form_batch(failing("rate_limited", retry_after=asked))
    assert (outcome.failed, outcome.deferred) == (1, 0)
    assert db.turn(0, "formation_attempts", "formation_error_class") == (1, "rate_limited")


def test_a_turn_is_deferred_a_bounded_number_of_times(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"))
    asking = failing("rate_limited", retry_after=1)
    for _ in range(10):
        assert store.form_batch(asking).deferred == 1
        db.come_due()
    for attempt in range(1, 7):
        outcome = store.form_batch(asking)
        assert (outcome.deferred, outcome.failed) == (0, 1)
        assert outcome.parked == (attempt == 6)
        db.come_due()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("limit", 0),
        ("limit", 2.5),
        ("max_attempts", 0),
        ("concurrency", 0),
        ("turn_budget", timedelta(0)),
        ("turn_budget", 300),
        ("turn_budget", None),
        ("limit", True),
        ("limit", None),
        ("limit", 2**63),
    ],
)
def test_an_argument_outside_its_rule_is_refused_by_name(
    store: MemoryStore, argument: str, value: Any
) -> None:
    store.append("s", say("x"))
    with pytest.raises(InvalidArgument, match=f"^{argument} "):
        store.form_batch(Chunks(), **{argument: value})
    assert store.turn_status("s", 0) == "pending"


@pytest.mark.parametrize("extractor", ["chunks", None, Chunks])
def test_what_is_no_extractor_is_refused_before_a_turn_is_claimed(store: MemoryStore, extractor: Any) -> None:
    store.append("s", say("x"))
    with pytest.raises(InvalidArgument, match=r"extractor is a .*: it needs name, version and extract"):
        store.form_batch(extractor)


def test_an_extractor_without_a_name_is_refused(store: MemoryStore) -> None:
    extractor = Scripted(nothing)
    extractor.version = ""
    with pytest.raises(InvalidName, match=r"^extractor\.version "):
        store.form_batch(extractor)


def test_a_batch_refuses_to_run_inside_a_transaction(store: MemoryStore) -> None:
    store.append("s", say("x"))
    extractor = Scripted(nothing)
    with store.connection.transaction(), pytest.raises(TransactionOpen):
        store.form_batch(extractor)
    assert extractor.seen == []
    assert store.form_batch(Chunks()).formed == 1


def test_shipped_extractors_are_loaded_by_name() -> None:
    assert load("chunks").name == "chunks"
    with pytest.raises(InvalidArgument, match="extractor 'oracle' is refused: one of chunks"):
        load("oracle")


def test_the_extractor_of_the_documentation_works(store: MemoryStore, db: Database) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "write-an-extractor.md"
    (code,) = re.findall(
        r"<<'PYTHON'\n(.*?)^PYTHON$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    shown: dict[str, Any] = {}
    exec(code, shown)
    store.append_many("s", [{"messages": say("One. Two.")}, {"messages": say("a\x07b")}])
    assert store.form_batch(shown["Sentences"]()).formed == 1
    assert db("SELECT text, kind FROM {schema}.memory") == [("One", "sentence"), ("Two.", "sentence")]
    assert db.turn(1, "formation_error_class") == "malformed"


def test_an_extraction_error_shows_its_class_alone() -> None:
    error = ExtractionError("refusal", "MARKER")
    assert "MARKER" not in f"{error} {error!r}"
    with pytest.raises(InvalidArgument, match="one of rate_limited, quota") as refused:
        ExtractionError("MARKER")
    assert "MARKER" not in str(refused.value)
