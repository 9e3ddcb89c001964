"""Random histories against a plain model: after each step every number and every turn is what the model says."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from load import FULL
from memory_kit import Database, Scripted, say
from memory_model import SCOPES, Model, ModelTurn
from outages import ANSWERS, outage, pass_cool_down
from parkkeeper import database
from parkkeeper.memory import (
    BacklogFull,
    FormationPaused,
    MemoryStore,
    RebuildCancelled,
    RebuildOutcome,
    SweepPolicy,
)
from parkkeeper.memory.circuit import Key
from parkkeeper.memory.claims import Claim, claim
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.memory.session import Session
from parkkeeper.memory.workers import Workers
from parkkeeper.migrations import migrate

pytestmark = pytest.mark.attack

SUBJECTS = ("ann", "bob")
CAP = 2


def histories(connection: psycopg.Connection[Any]) -> type[RuleBasedStateMachine]:
    """Return a machine whose every run has a namespace of its own."""

    class Histories(RuleBasedStateMachine):
        @initialize()
        def begin(self) -> None:
            self.name = f"test_{uuid.uuid4().hex[:16]}"
            migrate(connection, self.name, "memory")
            self.store = MemoryStore(connection, self.name)
            self.db = Database(connection, self.name)
            self.model = Model()

        def teardown(self) -> None:
            if hasattr(self, "name"):
                connection.execute(f"DROP SCHEMA {self.name} CASCADE".encode())

        @rule(
            scope=st.sampled_from(SCOPES),
            subjects=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=4),
        )
        def append(self, scope: str, subjects: list[str]) -> None:
            turns = [{"messages": say(f"words of {subject}"), "subject": subject} for subject in subjects]
            for appended, subject in zip(self.store.append_many(scope, turns), subjects, strict=True):
                assert appended.log_offset == self.model.stored[scope]
                self.model.turns[appended.observation_id] = ModelTurn(scope, appended.log_offset, subject)
                self.model.stored[scope] += 1

        @rule(
            cap=st.integers(1, 8), turns=st.integers(1, 4), scope=st.sampled_from(SCOPES), whole=st.booleans()
        )
        def append_under_a_cap(self, cap: int, turns: int, scope: str, whole: bool) -> None:
            """Refused when it would go over, and then nothing of it is stored."""
            counted = SCOPES if whole else (scope,)
            room = cap - sum(len(self.model.of(name, "pending")) for name in counted)
            self.store.set_backlog_cap(cap, scope=None if whole else scope)
            if turns <= room:
                self.append(scope, ["ann"] * turns)
            else:
                with pytest.raises(BacklogFull):
                    self.append(scope, ["ann"] * turns)
            self.store.set_backlog_cap(None, scope=None if whole else scope)

        @rule(scope=st.sampled_from(SCOPES))
        def pause_or_resume(self, scope: str) -> None:
            if scope in self.model.paused:
                assert self.store.resume(scope)
            else:
                assert self.store.pause(scope)
            self.model.paused ^= {scope}

        @rule(
            scope=st.sampled_from(SCOPES),
            failing=st.sets(st.integers(0, 12)),
            first=st.integers(0, 6),
            length=st.integers(0, 8),
            batch=st.integers(1, 5),
        )
        def rebuild(self, scope: str, failing: set[int], first: int, length: int, batch: int) -> None:
            """Turns that fail keep what they had; the others, parked ones too, are formed anew, each exactly once."""
            version = uuid.uuid4().hex
            last = first + length

            def answer(turn: Turn) -> list[Memory]:
                if turn.log_offset in failing:
                    raise ExtractionError("malformed", "no")
                return [Memory(version)]

            if scope in self.model.paused:
                with pytest.raises(FormationPaused):
                    self.store.rebuild(scope, Scripted(answer))
                return
            extractor = Scripted(answer)
            while not (outcome := self.rebuild_on(scope, extractor, first, last, batch)).done:
                pass
            chosen = {
                number: turn
                for number, turn in self.model.turns.items()
                if turn.scope == scope and turn.state != "pending" and first <= turn.offset <= last
            }
            replaced = [number for number, turn in chosen.items() if turn.offset not in failing]
            assert (outcome.rebuilt, outcome.failed) == (len(replaced), len(chosen) - len(replaced))
            passed = max(min(last, self.model.stored[scope] - 1) - first + 1, 0)
            assert outcome.rebuilt + outcome.failed + outcome.skipped == passed
            assert sorted(turn.log_offset for turn in extractor.seen) == sorted(
                t.offset for t in chosen.values()
            )
            self.model.epoch[scope] += len(replaced)
            for number in replaced:
                turn = self.model.turns[number]
                turn.state, turn.error_class = "formed", None
                self.model.version[number] = version

        def rebuild_on(
            self, scope: str, extractor: Scripted, first: int, last: int, batch: int
        ) -> RebuildOutcome:
            return self.store.rebuild(scope, extractor, from_offset=first, to_offset=last, limit=batch)

        @rule(data=st.data())
        def grow_old(self, data: st.DataObject) -> None:
            numbers = data.draw(st.lists(st.sampled_from(sorted(self.model.turns) or [0]), max_size=3))
            self.db(
                "UPDATE {schema}.observation SET ingested_at = now() - interval '1 year' "
                "WHERE observation_id = ANY(%s)",
                (numbers,),
            )
            self.model.old |= set(numbers) & set(self.model.turns)

        def gone(self, numbers: list[int]) -> None:
            for number in numbers:
                del self.model.turns[number]
                self.model.version.pop(number, None)
                self.model.old.discard(number)

        @rule()
        def expire(self) -> None:
            receipt = self.store.expire(timedelta(days=30), reason="history")
            assert (receipt.deleted["observation"], receipt.clean) == (len(self.model.old), True)
            self.gone(list(self.model.old))

        @rule(scope=st.sampled_from(SCOPES))
        def drop(self, scope: str) -> None:
            numbers = [number for number, turn in self.model.turns.items() if turn.scope == scope]
            receipt = self.store.drop(scope, reason="history")
            assert (receipt.deleted["observation"], receipt.clean) == (len(numbers), True)
            self.gone(numbers)
            self.model.paused.discard(scope)

        @rule(
            fates=st.lists(
                st.sampled_from(["form", "form", "fail", "refuse", "wait"]), min_size=1, max_size=5
            ),
            scope=st.sampled_from([None, *SCOPES]),
        )
        def form(self, fates: list[str], scope: str | None) -> None:
            self.db.come_due()
            expected = {"form": 0, "fail": 0, "refuse": 0, "wait": 0}
            parked = 0
            left = list(fates)

            def answer(turn: Turn) -> list[Memory]:
                nonlocal parked
                fate = left.pop(0)
                expected[fate] += 1
                (model,) = [t for t in self.model.of(turn.scope, "pending") if t.offset == turn.log_offset]
                model.attempts += 1
                assert turn.scope not in self.model.paused
                if fate == "form":
                    model.state = "formed"
                    (number,) = [n for n, known in self.model.turns.items() if known is model]
                    self.model.version[number] = "x"
                    return [Memory("x")]
                if fate == "wait":
                    model.attempts -= 1
                    raise ExtractionError("rate_limited", "wait", retry_after=30)
                model.error_class = "refusal" if fate == "refuse" else "unavailable"
                if fate == "refuse" or model.attempts >= CAP:
                    model.state = "parked"
                    parked += 1
                raise ExtractionError(model.error_class, "no")

            outcome = self.store.form_batch(Scripted(answer), scope=scope, limit=len(fates), max_attempts=CAP)
            assert outcome.paused == (scope in self.model.paused)
            assert (outcome.formed, outcome.deferred) == (expected["form"], expected["wait"])
            assert (outcome.failed, outcome.parked) == (expected["fail"] + expected["refuse"], parked)
            assert outcome.backlog == sum(
                len(self.model.of(name, "pending")) for name in SCOPES if scope in (None, name)
            )

        @rule(limit=st.integers(1, 6), kind=st.sampled_from(sorted(ANSWERS)))
        def go_down(self, limit: int, kind: str) -> None:
            """The provider is down and comes back, and no turn is other than before."""
            self.db.come_due()
            outcome = self.store.form_batch(outage(kind), limit=limit, max_attempts=CAP)
            assert (outcome.formed, outcome.parked) == (0, 0)
            if outcome.circuit == "closed":  # it was too little to tell by
                self.db.come_due()
                outcome = self.store.form_batch(outage("500"), max_attempts=CAP)
            names = [name for name in SCOPES if name not in self.model.paused]
            pending = [turn for name in names for turn in self.model.of(name, "pending")]
            assert outcome.circuit == ("open" if pending else "closed")
            pass_cool_down(self.db)
            assert self.store.form_batch(Scripted(Chunks().extract), scope="nobody").circuit == "closed"
            counts = self.db("SELECT scope, log_offset, formation_attempts FROM {schema}.observation")
            attempts = {(scope, offset): count for scope, offset, count in counts}
            assert {turn.attempts - attempts[turn.scope, turn.offset] for turn in pending} <= {0}

        @rule(data=st.data())
        def lose_a_worker(self, data: st.DataObject) -> None:
            """It claims a turn and is not heard of again: the sweep gives the turn back, or parks it at its cap."""
            # A turn whose last failure nothing has answered would wait for a canary instead.
            answered = self.db("SELECT observation_id FROM {schema}.observation WHERE streak_circuit IS NULL")
            numbers = [
                number
                for number, turn in self.model.turns.items()
                if turn.state == "pending" and turn.scope not in self.model.paused and (number,) in answered
            ]
            if not numbers:
                return
            number = data.draw(st.sampled_from(sorted(numbers)))
            turn = self.model.turns[number]
            self.db(
                "UPDATE {schema}.observation SET next_attempt_at = "
                "CASE WHEN observation_id = %s THEN now() ELSE 'infinity' END "
                "WHERE formed_at IS NULL AND parked_at IS NULL",
                (number,),
            )
            session = Session(connection, self.db.namespace)
            options = {"max_attempts": CAP, "turn_budget": timedelta(minutes=1)}
            taken = claim(session, turn.scope, uuid.uuid4(), Key("scripted", "7", ""), **options)
            assert isinstance(taken, Claim) and taken.observation_id == number
            turn.attempts, turn.error_class = turn.attempts + 1, "worker_crash"
            self.every_number_is_the_models()
            self.db.expire_claims()
            swept = self.store.sweep(SweepPolicy(max_attempts=CAP, unpark_classes=()))
            capped = turn.attempts >= CAP
            assert (swept.parked, swept.claims_returned) == (int(capped), int(not capped))
            if capped:
                turn.state = "parked"

        @rule(scope=st.sampled_from([None, *SCOPES]), concurrency=st.integers(1, 3))
        def interrupt(self, scope: str | None, concurrency: int) -> None:
            """What was in hand is handed back, and no attempt is spent."""

            def stop(*_: object) -> None:
                raise KeyboardInterrupt

            self.db.come_due()
            names = [name for name in SCOPES if scope in (None, name) and name not in self.model.paused]
            expected = KeyboardInterrupt if any(self.model.of(name, "pending") for name in names) else ()
            with (
                pytest.MonkeyPatch.context() as patched,
                pytest.raises(expected) if expected else nullcontext(),
            ):
                patched.setattr(Workers, "next", stop)
                self.store.form_batch(
                    Scripted(lambda turn: [Memory("x")]), scope=scope, concurrency=concurrency
                )
            assert self.db.one("SELECT count(claim_token) FROM {schema}.observation") == 0

        @rule(scope=st.sampled_from(SCOPES))
        def rebuild_and_cancel(self, scope: str) -> None:
            """What was rebuilt stays so, and who comes back to it is told."""
            if scope in self.model.paused:
                return
            version = uuid.uuid4().hex
            extractor = Scripted(lambda turn: [Memory(version)])
            outcome = self.store.rebuild(scope, extractor, limit=1)
            chosen = {turn.offset: number for number, turn in self.model.turns.items() if turn.scope == scope}
            first = min((t.offset for t in self.model.of(scope, "formed", "parked")), default=None)
            assert outcome.rebuilt == (first is not None)
            if first is not None:
                turn = self.model.turns[chosen[first]]
                turn.state, turn.error_class = "formed", None
                self.model.version[chosen[first]] = version
                self.model.epoch[scope] += 1
            assert self.store.cancel_rebuild(scope) == (not outcome.done)
            if not outcome.done:
                with pytest.raises(RebuildCancelled):
                    self.store.rebuild(scope, extractor, limit=1)

        def reopen(self, turns: list[ModelTurn]) -> None:
            for scope in {turn.scope for turn in turns}:
                self.model.epoch[scope] += 1
            for turn in turns:
                turn.state, turn.attempts, turn.error_class = "pending", 0, None

        @rule(
            scope=st.sampled_from([None, *SCOPES]),
            error_class=st.sampled_from([None, "refusal", "unavailable"]),
        )
        def unpark(self, scope: str | None, error_class: str | None) -> None:
            chosen = [
                turn
                for name in SCOPES
                if scope in (None, name)
                for turn in self.model.of(name, "parked")
                if error_class in (None, turn.error_class)
            ]
            assert self.store.unpark(scope=scope, error_class=error_class) == len(chosen)
            self.reopen(chosen)

        @rule(
            classes=st.sampled_from([None, ("refusal",), ("refusal", "unavailable"), ()]),
            scope=st.sampled_from([None, *SCOPES]),
            most=st.sampled_from([1, 10_000]),
        )
        def sweep(self, classes: tuple[str, ...] | None, scope: str | None, most: int) -> None:
            chosen = [
                turn
                for turn in self.model.turns.values()
                if turn.state == "parked"
                and turn.error_class in (("unavailable",) if classes is None else classes)
                and scope in (None, turn.scope)
            ]
            counts = dict(
                self.db(
                    "SELECT observation_id, park_count FROM {schema}.observation WHERE parked_at IS NOT NULL"
                )
            )
            ids = {(turn.scope, turn.offset): number for number, turn in self.model.turns.items()}
            chosen = [turn for turn in chosen if counts[ids[turn.scope, turn.offset]] <= 3]
            asked = {} if classes is None else {"unpark_classes": classes}
            policy = SweepPolicy(scope=scope, unpark_limit=most, **asked)
            if len(chosen) > most:
                (first,) = self.db(
                    "SELECT observation_id FROM {schema}.observation WHERE observation_id = ANY(%s) "
                    "ORDER BY parked_at, observation_id LIMIT 1",
                    ([ids[turn.scope, turn.offset] for turn in chosen],),
                )
                chosen = [self.model.turns[first[0]]]
            assert self.store.sweep(policy, dry_run=True).unparked == len(chosen)
            assert self.store.sweep(policy).unparked == len(chosen)
            self.reopen(chosen)

        @rule(
            data=st.data(), subject=st.sampled_from([None, *SUBJECTS]), scope=st.sampled_from([None, *SCOPES])
        )
        def erase(self, data: st.DataObject, subject: str | None, scope: str | None) -> None:
            ids = None
            if subject is None:
                ids = data.draw(
                    st.lists(st.sampled_from(sorted(self.model.turns) or [0]), max_size=3, unique=True)
                )
            chosen = [
                number
                for number, turn in self.model.turns.items()
                if subject in (None, turn.subject)
                and scope in (None, turn.scope)
                and (ids is None or number in ids)
            ]
            receipt = self.store.erase(scope=scope, subject=subject, observation_ids=ids, reason="history")
            assert (receipt.deleted["observation"], receipt.clean) == (len(chosen), True)
            self.gone(chosen)

        @invariant()
        def every_number_is_the_models(self) -> None:
            for scope in SCOPES:
                found, model = self.store.freshness(scope), self.model
                parked = model.of(scope, "parked")
                assert found.stored == model.stored[scope]
                assert found.formed == model.before(scope, "pending")
                assert found.formed_strict == model.before(scope, "pending", "parked")
                assert (found.parked, found.backlog) == (len(parked), len(model.of(scope, "pending")))
                assert found.erased == model.stored[scope] - len(
                    model.of(scope, "pending", "formed", "parked")
                )
                assert found.epoch == model.epoch[scope]
                assert (found.paused_at is not None) == (scope in model.paused)
                assert sum(found.by_class.values()) == len(parked)
                assert found.by_class == {
                    error_class: sum(turn.error_class == error_class for turn in parked)
                    for error_class in {turn.error_class for turn in parked}
                }
                listed = [offset for first, last in found.parked_ranges for offset in range(first, last + 1)]
                assert listed == sorted(turn.offset for turn in parked)
                assert listed == [turn.log_offset for turn in self.store.parked(scope)]
                for offset in range(-1, model.stored[scope] + 1):
                    assert self.store.turn_status(scope, offset) == model.status(scope, offset)

        @invariant()
        def every_attempt_that_is_spent_is_the_models(self) -> None:
            rows = self.db(
                "SELECT observation_id, formation_attempts FROM {schema}.observation WHERE formed_at IS NULL"
            )
            waiting = {n: turn.attempts for n, turn in self.model.turns.items() if turn.state != "formed"}
            assert dict(rows) == waiting

        @invariant()
        def the_kept_numbers_are_those_of_the_rows(self) -> None:
            assert self.store.verify() == []
            for scope in SCOPES:
                oldest = self.db.one(
                    "SELECT min(parked_at) FROM {schema}.observation WHERE scope = %s", (scope,)
                )
                assert self.store.freshness(scope).oldest_parked_at == oldest

        @invariant()
        def the_record_adds_up_to_what_is_parked(self) -> None:
            rows = self.db(
                "SELECT scope, error_class::text, "
                "sum(CASE change WHEN 'park' THEN turns ELSE -turns END)::integer "
                "FROM {schema}.parking_record GROUP BY 1, 2"
            )
            recorded = {(scope, error_class): turns for scope, error_class, turns in rows if turns}
            parked = [turn for turn in self.model.turns.values() if turn.state == "parked"]
            assert recorded == Counter((turn.scope, turn.error_class) for turn in parked)

        @invariant()
        def a_turn_has_one_version_of_its_memory(self) -> None:
            found = self.db(
                "SELECT d.source_id, m.text FROM {schema}.memory AS m "
                "JOIN {schema}.projection_dependency AS d ON d.derived_id = m.memory_id"
            )
            assert sorted(found) == sorted(self.model.version.items())

        @invariant()
        def memory_is_of_formed_turns_only(self) -> None:
            found = self.db("SELECT source_id FROM {schema}.projection_dependency ORDER BY 1")
            formed = [number for number, turn in self.model.turns.items() if turn.state == "formed"]
            assert [number for (number,) in found] == sorted(formed)

    return Histories


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """One session for all runs of the machine."""
    with database.connect(dsn) as session:
        yield session


def test_every_number_is_what_a_plain_model_says_after_any_history(
    connection: psycopg.Connection[Any],
) -> None:
    run_state_machine_as_test(
        histories(connection),
        settings=settings(
            max_examples=200 if FULL else 12,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
