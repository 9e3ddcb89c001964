"""FormationBatchOperator, ParkSweepOperator, FreshnessOperator: a failing turn fails no task, and figures are true."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from psycopg import sql

from airflow_env import run_task
from parkkeeper import maintenance
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore, RebuildOutcome
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn
from parkkeeper.namespace import Namespace
from parkkeeper.operators import (
    FormationBatchOperator,
    FreshnessOperator,
    ParkSweepOperator,
    RebuildOperator,
    memory,
)

CONTENT = "the words of a customer"
ERROR = "the provider repeats: " + CONTENT


@pytest.fixture
def families() -> tuple[str, ...]:
    return ("memory",)


class Refuses:
    """An extractor that will not have any turn, though its provider answers."""

    name = "refuses"
    version = "1"

    def extract(self, turn: Turn) -> list[Memory]:
        if turn.log_offset < 0:
            return []
        raise ExtractionError("malformed", ERROR)


def append(store: MemoryStore, scope: str, turns: int = 1) -> None:
    for _ in range(turns):
        store.append(scope, [{"role": "user", "content": CONTENT}])


def test_a_batch_forms_what_is_due_and_says_what_is_left(store: MemoryStore, migrated: str) -> None:
    append(store, "a", 3)
    append(store, "b", 2)
    ran = run_task(
        lambda: FormationBatchOperator(task_id="form", namespace=migrated, limit="{{ dag_run.conf.limit }}"),
        conf={"limit": 4},
    )
    assert (ran.state, ran.xcoms) == (
        "success",
        {
            "outcome": "formed",
            "formed": 4,
            "failed": 0,
            "parked": 0,
            "deferred": 0,
            "parked_total": 0,
            "backlog": 1,
            "discarded": 0,
            "circuit": "closed",
        },
    )


def test_a_batch_with_nothing_due_reports_no_change_and_the_real_totals(
    store: MemoryStore, migrated: str
) -> None:
    append(store, "a")
    append(store, "b")
    assert store.form_batch(Refuses(), scope="a", max_attempts=1).parked == 1
    assert store.form_batch(Refuses(), scope="b", max_attempts=2).failed == 1

    ran = run_task(lambda: FormationBatchOperator(task_id="form", namespace=migrated))

    assert (ran.state, ran.xcoms) == (
        "success",
        {
            "outcome": "noop",
            "formed": 0,
            "failed": 0,
            "parked": 0,
            "deferred": 0,
            "parked_total": 1,
            "backlog": 1,
            "discarded": 0,
            "circuit": "closed",
        },
    )


def test_turns_that_fail_fail_no_task_and_their_words_go_nowhere(
    store: MemoryStore, migrated: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    append(store, "a", 2)
    monkeypatch.setattr("parkkeeper.operators.memory.load", lambda name: Refuses())

    ran = run_task(lambda: FormationBatchOperator(task_id="form", namespace=migrated, max_attempts=1))

    assert (ran.state, ran.xcoms) == (
        "success",
        {
            "outcome": "none_formed",
            "formed": 0,
            "failed": 2,
            "parked": 2,
            "deferred": 0,
            "parked_total": 2,
            "backlog": 0,
            "discarded": 0,
            "circuit": "closed",
        },
    )
    printed = "".join(capfd.readouterr())
    assert "none_formed" in printed
    assert CONTENT not in printed


def test_a_batch_whose_results_all_came_too_late_has_tried_turns(
    store: MemoryStore, migrated: str, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = MemoryStore(connect(), migrated)

    class Late(Refuses):
        def extract(self, turn: Turn) -> list[Memory]:
            other.erase(scope="a", reason="request")
            return []

    append(store, "a")
    monkeypatch.setattr("parkkeeper.operators.memory.load", lambda name: Late())
    ran = run_task(lambda: FormationBatchOperator(task_id="form", namespace=migrated))
    assert (ran.xcoms["outcome"], ran.xcoms["discarded"], ran.xcoms["failed"]) == ("none_formed", 1, 0)


def test_a_batch_says_when_the_provider_does_not_answer(
    store: MemoryStore, migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Down(Refuses):
        def extract(self, turn: Turn) -> list[Memory]:
            raise ExtractionError("auth", ERROR)

    append(store, "a", 2)
    monkeypatch.setattr("parkkeeper.operators.memory.load", lambda name: Down())
    first = run_task(lambda: FormationBatchOperator(task_id="form", namespace=migrated))
    second = run_task(lambda: FormationBatchOperator(task_id="form", namespace=migrated))
    figures = ("outcome", "circuit", "deferred", "failed", "backlog")
    assert [first.xcoms[key] for key in figures] == ["none_formed", "open", 1, 0, 2]
    assert [second.xcoms[key] for key in figures] == ["circuit_open", "open", 0, 0, 2]


def test_only_the_scope_that_was_asked_for(store: MemoryStore, migrated: str) -> None:
    append(store, "a")
    append(store, "b")
    ran = run_task(lambda: FormationBatchOperator(task_id="form", namespace=migrated, scope="b"))
    assert (ran.xcoms["formed"], ran.xcoms["backlog"]) == (1, 1)
    assert store.freshness("a").formed is None
    assert store.freshness("b").formed == 0


def test_a_sweep_unparks_what_the_provider_was_to_blame_for(store: MemoryStore, migrated: str) -> None:
    class Down(Refuses):
        def extract(self, turn: Turn) -> list[Memory]:
            if turn.log_offset < 0:
                return []
            raise ExtractionError("unavailable")

    append(store, "a")
    append(store, "b")
    store.form_batch(Down(), scope="a", max_attempts=1)
    store.form_batch(Refuses(), scope="b", max_attempts=1)

    swept = run_task(lambda: ParkSweepOperator(task_id="sweep", namespace=migrated))
    again = run_task(lambda: ParkSweepOperator(task_id="sweep", namespace=migrated))

    nothing = {"formed": 0, "failed": 0, "parked": 0, "deferred": 0, "claims_returned": 0}
    totals = {"parked_total": 1, "backlog": 1}
    assert (swept.state, swept.xcoms) == ("success", {"outcome": "swept", "unparked": 1, **nothing, **totals})
    assert (again.state, again.xcoms) == ("success", {"outcome": "noop", "unparked": 0, **nothing, **totals})


def test_a_sweep_returns_the_claim_of_a_worker_that_is_gone(store: MemoryStore, migrated: str) -> None:
    append(store, "a")
    store.connection.execute(
        sql.SQL(
            "UPDATE {} SET claim_token = gen_random_uuid(), formation_attempts = 1,"
            " claimed_until = now() - interval '1 s'"
        ).format(sql.Identifier(migrated, "observation"))
    )
    ran = run_task(lambda: ParkSweepOperator(task_id="sweep", namespace=migrated))
    assert (ran.xcoms["outcome"], ran.xcoms["claims_returned"]) == ("swept", 1)


def test_freshness_sums_over_all_scopes(store: MemoryStore, migrated: str) -> None:
    append(store, "a", 2)
    append(store, "b", 3)
    store.form_batch(Refuses(), scope="a", limit=1, max_attempts=1)
    behind = run_task(lambda: FreshnessOperator(task_id="freshness", namespace=migrated))
    run_task(lambda: FormationBatchOperator(task_id="form", namespace=migrated))
    fresh = run_task(lambda: FreshnessOperator(task_id="freshness", namespace=migrated))

    totals = {"scopes": 2, "stored": 5, "erased": 0, "parked_total": 1}
    assert behind.xcoms == {"outcome": "behind", "formed": 0, "backlog": 4, "scopes_behind": 2, **totals}
    assert fresh.xcoms == {"outcome": "fresh", "formed": 4, "backlog": 0, "scopes_behind": 0, **totals}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"extractor": "oracle"}, "extractor 'oracle' is refused"),
        ({"limit": 0}, "limit 0 is refused"),
        ({"limit": "all"}, "limit 'all' is refused"),
        ({"max_attempts": 0}, "max_attempts 0 is refused"),
        ({"turn_budget": 0}, "turn_budget"),
        ({"turn_budget": "inf"}, "turn_budget 'inf' is refused"),
        ({"concurrency": -1}, "concurrency -1 is refused"),
        ({"scope": "a\x00"}, "scope"),
    ],
)
def test_refuses_a_bad_argument_and_forms_nothing(
    store: MemoryStore, migrated: str, arguments: dict[str, Any], message: str
) -> None:
    append(store, "a")
    ran = run_task(lambda: FormationBatchOperator(task_id="form", namespace=migrated, retries=3, **arguments))
    assert ran.state == "failed"
    assert isinstance(ran.error, AirflowFailException)
    assert message in str(ran.error)
    assert store.freshness("a").backlog == 1


def test_a_scope_is_rebuilt_in_one_task(store: MemoryStore, migrated: str) -> None:
    append(store, "a", 3)
    assert store.form_batch(Refuses(), limit=1, max_attempts=1).parked == 1
    assert store.form_batch(Refuses(), limit=1, max_attempts=2).failed == 1

    ran = run_task(
        lambda: RebuildOperator(task_id="rebuild", namespace=migrated, scope="a", to_offset="{{ 0 }}")
    )

    figures = {
        "outcome": "rebuilt",
        "rebuilt": 1,
        "failed": 0,
        "skipped": 0,
        "through_offset": 0,
        "scopes": 1,
    }
    figures |= {"parked_total": 0, "backlog": 2}
    assert (ran.state, ran.xcoms) == ("success", figures)
    assert store.freshness("a").formed_strict == 0


def test_a_rebuild_of_nothing_is_a_noop(migrated: str) -> None:
    ran = run_task(lambda: RebuildOperator(task_id="rebuild", namespace=migrated, scope="a"))
    figures = {"outcome": "noop", "rebuilt": 0, "failed": 0, "skipped": 0, "through_offset": -1, "scopes": 0}
    figures |= {"parked_total": 0, "backlog": 0}
    assert (ran.state, ran.xcoms) == ("success", figures)


class Counts:
    """An extractor that knows which turns it was given, and whose provider may be down."""

    name, version = "counts", "1"

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.down_from: int | None = None

    def extract(self, turn: Turn) -> list[Memory]:
        if self.down_from is not None and len(self.seen) >= self.down_from:
            raise ExtractionError("unavailable")
        if turn.log_offset >= 0:
            self.seen.append((turn.scope, turn.log_offset))
        return [Memory("again")]


class Kept(dict[str, Any]):
    """What Airflow keeps for a task from one try to the next."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        del self[key]


def test_a_window_is_rebuilt_scope_by_scope_and_a_retry_pays_for_no_turn_twice(
    store: MemoryStore, migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for scope in ("a", "a", "b", "b", "c"):
        append(store, scope)
    run_task(lambda: FormationBatchOperator(task_id="form", namespace=migrated))
    observation = sql.Identifier(migrated, "observation")
    store.connection.execute(
        sql.SQL(
            "UPDATE {} SET ingested_at = now() - make_interval(days => CASE WHEN log_offset = 0 AND scope <> 'c' THEN 1"
            " ELSE 3 END)"
        ).format(observation)
    )
    now = datetime.now(UTC)
    extractor = Counts()
    extractor.down_from = 1
    monkeypatch.setattr(memory, "load", lambda name: extractor)
    rebuild = RebuildOperator(
        task_id="rebuild",
        namespace=migrated,
        extractor="counts",
        ingested_from=(now - timedelta(days=2)).isoformat(),
        ingested_before=now,
    )
    work = rebuild.prepare(Namespace(migrated))
    kept = Kept()
    rebuild._kept = kept

    stopped = work(store.connection)
    figures = {"scopes": 1, "rebuilt": 1, "failed": 0, "skipped": 0, "through_offset": None}
    assert stopped == {"outcome": "circuit_open", **figures, "parked_total": 0, "backlog": 0}
    assert list(kept) == ["began"]
    failure = rebuild.failure(stopped)
    assert failure is not None and not isinstance(failure, AirflowFailException)

    extractor.down_from = None
    store.connection.execute(
        sql.SQL("UPDATE {} SET next_probe_at = now() - interval '1 second'").format(
            sql.Identifier(migrated, "formation_circuit")
        )
    )
    done = work(store.connection)
    assert done == {
        "outcome": "rebuilt",
        **figures,
        "scopes": 2,
        "rebuilt": 2,
        "parked_total": 0,
        "backlog": 0,
    }
    assert extractor.seen == [("a", 0), ("b", 0)]

    # A run that was done and is cleared is to be done again.
    assert kept == {}
    assert work(store.connection)["rebuilt"] == 2
    assert extractor.seen == [("a", 0), ("b", 0)] * 2


def test_when_a_rebuild_began_is_what_the_database_says(store: MemoryStore, migrated: str) -> None:
    append(store, "a")
    run_task(lambda: FormationBatchOperator(task_id="form", namespace=migrated))
    window = {"ingested_from": "2020-01-01T00:00:00Z", "ingested_before": "2100-01-01T00:00:00Z"}

    class Looks(RebuildOperator):
        def _rebuild(self, *given: Any) -> RebuildOutcome:
            assert self._kept is not None
            began.append(datetime.fromisoformat(self._kept.get("began")))
            return super()._rebuild(*given)

    began: list[datetime] = []
    before = maintenance.database_time(store.connection)
    ran = run_task(lambda: Looks(task_id="rebuild", namespace=migrated, **window))
    assert (ran.state, ran.xcoms["rebuilt"]) == ("success", 1)
    assert before < began[0] < maintenance.database_time(store.connection)


def test_a_rebuild_of_an_empty_or_contradictory_choice_is_refused() -> None:
    for chosen, message in (
        ({}, "give scope, or ingested_from and ingested_before"),
        (
            {"scope": "a", "to_offset": 3, "ingested_from": "2026-01-01T00:00:00Z"},
            "give from_offset and to_offset, or",
        ),
        (
            {"ingested_from": "2026-01-01T00:00:00Z", "ingested_before": "2026-01-01T00:00:00Z"},
            "it is not before ingested_before",
        ),
    ):
        operator = RebuildOperator(task_id="rebuild", namespace="n", **chosen)
        with pytest.raises(InvalidArgument, match=message):
            operator.prepare(Namespace("n"))


def test_a_sweep_takes_its_policy_from_templates(store: MemoryStore, migrated: str) -> None:
    append(store, "a", 2)
    append(store, "b")
    assert store.form_batch(Refuses(), max_attempts=1).parked == 3

    def swept(dry_run: str) -> Any:
        return run_task(
            lambda: ParkSweepOperator(
                task_id="sweep",
                namespace=migrated,
                scope="{{ 'a' }}",
                unpark_classes="malformed",
                unpark_limit="{{ 1 }}",
                dry_run=dry_run,
            )
        )

    dry = swept("{{ true }}")
    assert (dry.xcoms["outcome"], dry.xcoms["unparked"], dry.xcoms["parked_total"]) == ("swept", 1, 3)
    done = swept("{{ false }}")
    assert (done.xcoms["unparked"], done.xcoms["parked_total"], done.xcoms["backlog"]) == (1, 2, 1)
