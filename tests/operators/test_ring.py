"""RotateRingOperator and PruneWithCarryOperator: fixed keys, sums, and outcomes that are no failures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partialmethod
from typing import Any

import psycopg
import pytest
from airflow.sdk.exceptions import AirflowFailException
from psycopg import sql

from airflow_env import run_task
from parkkeeper.operators import PruneWithCarryOperator, RotateRingOperator
from parkkeeper.queue import QueueStorage

NOTHING = {
    "slot": None,
    "generation": None,
    "carried_failed": 0,
    "pruned_failed": 0,
    "pruned_completed": 0,
}


@pytest.fixture
def families() -> tuple[str, ...]:
    return ("queue",)


def end_jobs(
    storage: QueueStorage, *, completed: int = 0, failed: int = 0, age: timedelta | None = None
) -> None:
    """End some jobs in the current slot; with `age`, the failed ones that long ago."""
    for number, ending in ((completed, "complete"), (failed, "fail")):
        if not number:
            continue
        storage.enqueue_many("letters", "print", [None] * number)
        claims = storage.claim("letters", number)
        assert len(claims) == number
        if ending == "complete":
            storage.complete(claims)
        else:
            storage.fail_many([(claim, "no paper") for claim in claims], terminal=True)
    if age is not None:
        table = sql.Identifier(storage.namespace.name, "done_entries")
        storage.connection.execute(
            sql.SQL("UPDATE {} SET finalized_at = finalized_at - %s WHERE state = 'failed'").format(table),
            (age,),
        )


def hold_ring(connect: Callable[..., psycopg.Connection], namespace: str) -> psycopg.Connection:
    """Lock the ring's state in a session of its own, until that is closed."""
    other = connect()
    other.autocommit = False
    table = sql.Identifier(namespace, "queue_ring_state")
    other.execute(sql.SQL("SELECT FROM {} FOR UPDATE").format(table))
    return other


def test_rotate_says_which_slot_takes_new_jobs(storage: QueueStorage, migrated: str) -> None:
    end_jobs(storage, completed=1)
    ran = run_task(lambda: RotateRingOperator(task_id="rotate", namespace=migrated))
    expected = {
        "outcome": "rotated",
        **NOTHING,
        "slot": 1,
        "generation": 1,
        "pruned_failed_total": 0,
        "evacuated": 0,
    }
    assert (ran.state, ran.xcoms) == ("success", expected)


def test_rotate_of_an_idle_ring_is_a_success_that_says_so(migrated: str) -> None:
    ran = run_task(lambda: RotateRingOperator(task_id="rotate", namespace=migrated))
    expected = {"outcome": "skipped_idle", **NOTHING, "pruned_failed_total": 0, "evacuated": 0}
    assert (ran.state, ran.xcoms) == ("success", expected)


def test_rotate_evacuates_until_nothing_is_left_to_move(
    storage: QueueStorage, migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueStorage, "evacuate", partialmethod(QueueStorage.evacuate, 2))
    storage.enqueue_many("letters", "print", [None] * 16)
    storage.complete(storage.claim("letters", 12))
    storage.rotate()
    ran = run_task(lambda: RotateRingOperator(task_id="rotate", namespace=migrated))
    assert (ran.xcoms["outcome"], ran.xcoms["evacuated"]) == ("rotated", 4)
    assert storage.prune_oldest().outcome == "pruned"
    assert storage.queue_counts("letters").available == 4


def test_prune_goes_on_until_nothing_is_left_and_its_figures_are_sums(
    storage: QueueStorage, migrated: str
) -> None:
    end_jobs(storage, completed=3, failed=2, age=timedelta(days=4))
    storage.rotate()
    end_jobs(storage, completed=1, failed=4)
    storage.rotate()

    ran = run_task(lambda: PruneWithCarryOperator(task_id="prune", namespace=migrated))

    assert ran.xcoms.pop("lock_ms") > 0
    assert (ran.state, ran.xcoms) == (
        "success",
        {
            "outcome": "pruned",
            "slot": 1,
            "generation": 1,
            "carried_failed": 4,
            "pruned_failed": 2,
            "pruned_completed": 4,
            "pruned_failed_total": 2,
        },
    )
    counts = storage.queue_counts("letters")
    assert (counts.failed, counts.pruned_failed, counts.terminal) == (4, 2, 10)


def test_a_prune_with_nothing_to_do_reports_no_change_and_the_real_total(
    storage: QueueStorage, migrated: str
) -> None:
    end_jobs(storage, failed=2, age=timedelta(days=4))
    storage.rotate()
    assert storage.prune_oldest().pruned_failed == 2

    ran = run_task(lambda: PruneWithCarryOperator(task_id="prune", namespace=migrated))

    assert (ran.state, ran.xcoms) == (
        "success",
        {"outcome": "noop", **NOTHING, "pruned_failed_total": 2, "lock_ms": 0},
    )


@pytest.mark.parametrize(
    ("operator", "own"), [(RotateRingOperator, {"evacuated": 0}), (PruneWithCarryOperator, {"lock_ms": 0})]
)
def test_a_ring_that_another_session_holds_is_a_success_that_says_blocked(
    storage: QueueStorage,
    migrated: str,
    connect: Callable[..., psycopg.Connection],
    operator: type,
    own: dict[str, int],
) -> None:
    end_jobs(storage, completed=1)
    storage.rotate()
    hold_ring(connect, migrated)

    ran = run_task(lambda: operator(task_id="blocked", namespace=migrated, lock_timeout=0.02))

    expected = {"outcome": "blocked", **NOTHING, "pruned_failed_total": 0} | own
    assert (ran.state, ran.xcoms) == ("success", expected)


@pytest.mark.parametrize("skip_on_outcome", ["noop", ("noop", "blocked")])
def test_an_outcome_may_skip_the_task_instead(migrated: str, skip_on_outcome: Any) -> None:
    ran = run_task(
        lambda: PruneWithCarryOperator(task_id="prune", namespace=migrated, skip_on_outcome=skip_on_outcome)
    )
    assert (ran.state, ran.xcoms) == ("skipped", {})


def test_a_slot_that_is_in_use_is_left_and_said(storage: QueueStorage, migrated: str) -> None:
    storage.enqueue("letters", "print")
    storage.rotate()
    ran = run_task(lambda: PruneWithCarryOperator(task_id="prune", namespace=migrated))
    expected = {"outcome": "skipped_active", **NOTHING, "pruned_failed_total": 0, "lock_ms": 0}
    assert (ran.state, ran.xcoms) == ("success", expected)


def test_a_dry_run_reports_what_would_be_done_and_does_nothing(storage: QueueStorage, migrated: str) -> None:
    end_jobs(storage, completed=1, failed=2, age=timedelta(days=4))
    storage.rotate()
    before = storage.queue_counts("letters")

    ran = run_task(
        lambda: PruneWithCarryOperator(task_id="prune", namespace=migrated, dry_run="{{ dag_run.conf.dry }}"),
        conf={"dry": True},
    )

    assert ran.xcoms["outcome"] == "pruned"
    assert (ran.xcoms["pruned_failed"], ran.xcoms["pruned_completed"]) == (2, 1)
    assert ran.xcoms["pruned_failed_total"] == 0
    assert storage.queue_counts("letters") == before
    assert storage.prune_oldest().pruned_failed == 2


def test_retention_may_come_from_a_template_and_zero_carries_nothing(
    storage: QueueStorage, migrated: str
) -> None:
    end_jobs(storage, failed=2)
    storage.rotate()
    ran = run_task(
        lambda: PruneWithCarryOperator(
            task_id="prune",
            namespace="{{ dag_run.conf.namespace }}",
            failed_retention="{{ dag_run.conf.seconds }}",
            max_pruned_failed="{{ dag_run.conf.most }}",
            carry_to="{{ dag_run.conf.get('carry_to') }}",
            lock_timeout="{{ dag_run.conf.lock_timeout }}",
        ),
        conf={"namespace": migrated, "seconds": 0, "most": 2, "lock_timeout": 0.5},
    )
    assert (ran.xcoms["carried_failed"], ran.xcoms["pruned_failed"]) == (0, 2)


def test_a_prune_that_would_drop_too_much_fails_and_drops_nothing(
    storage: QueueStorage, migrated: str
) -> None:
    end_jobs(storage, failed=3, age=timedelta(days=4))
    storage.rotate()
    before = storage.queue_counts("letters")

    ran = run_task(
        lambda: PruneWithCarryOperator(task_id="prune", namespace=migrated, max_pruned_failed=2, retries=3)
    )

    assert ran.state == "failed"
    assert isinstance(ran.error, AirflowFailException)
    assert "PruneRefused" in str(ran.error)
    assert storage.queue_counts("letters") == before


@pytest.mark.parametrize("operator", [RotateRingOperator, PruneWithCarryOperator])
def test_a_lock_timeout_that_would_make_readers_wait_is_refused(migrated: str, operator: type) -> None:
    ran = run_task(lambda: operator(task_id="task", namespace=migrated, lock_timeout=5.1))
    assert ran.state == "failed"
    assert "InvalidArgument: lock_timeout" in str(ran.error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"failed_retention": -1}, "failed_retention"),
        ({"failed_retention": "a while"}, "failed_retention 'a while' is refused"),
        ({"failed_retention": 0.5}, "failed_retention"),
        ({"max_pruned_failed": -1}, "max_pruned_failed -1 is refused"),
        ({"carry_to": "moon"}, "carry_to 'moon' is refused"),
        ({"lock_timeout": None}, "lock_timeout None is refused"),
        ({"dry_run": "perhaps"}, "dry_run 'perhaps' is refused: true or false"),
        ({"skip_on_outcome": ["noop", "rotated"]}, "skip_on_outcome 'rotated' is refused"),
    ],
)
def test_refuses_a_bad_argument_and_changes_nothing(
    storage: QueueStorage, migrated: str, arguments: dict[str, Any], message: str
) -> None:
    end_jobs(storage, failed=1, age=timedelta(days=4))
    storage.rotate()
    before = storage.queue_counts("letters")

    ran = run_task(
        lambda: PruneWithCarryOperator(task_id="prune", namespace=migrated, retries=3, **arguments)
    )

    assert ran.state == "failed"
    assert isinstance(ran.error, AirflowFailException)
    assert message in str(ran.error)
    assert storage.queue_counts("letters") == before


def test_the_ring_of_claims_is_turned_when_it_is_named(storage: QueueStorage, migrated: str) -> None:
    end_jobs(storage, completed=2)
    turned = run_task(
        lambda: RotateRingOperator(task_id="rotate", namespace=migrated, ring="{{ dag_run.conf.ring }}"),
        conf={"ring": "claim"},
    )
    cleared = run_task(lambda: PruneWithCarryOperator(task_id="prune", namespace=migrated, ring="claim"))

    expected = {**NOTHING, "pruned_failed_total": 0}
    assert turned.xcoms == {"outcome": "rotated", **expected, "slot": 1, "generation": 1, "evacuated": 0}
    assert cleared.xcoms.pop("lock_ms") > 0
    assert cleared.xcoms == {"outcome": "pruned", **expected, "slot": 0, "generation": 0}
    assert storage.rotate().slot == 1  # the queue's own ring stood still


@pytest.mark.parametrize("operator", [RotateRingOperator, PruneWithCarryOperator])
def test_a_ring_that_there_is_not_fails_the_task_for_good(migrated: str, operator: type) -> None:
    ran = run_task(lambda: operator(task_id="turn", namespace=migrated, ring="leases"))
    assert isinstance(ran.error, AirflowFailException)
    assert "ring 'leases' is refused: any of queue, lease, claim" in str(ran.error)


def test_a_prune_waits_for_snapshots_when_asked(
    storage: QueueStorage, migrated: str, connect: Callable[..., psycopg.Connection]
) -> None:
    end_jobs(storage, completed=1)
    storage.rotate()
    reader = connect()
    reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    reader.execute("SELECT 1")
    ran = run_task(
        lambda: PruneWithCarryOperator(task_id="prune", namespace=migrated, wait_for_snapshots="true")
    )
    assert ran.xcoms == {"outcome": "skipped_active", **NOTHING, "pruned_failed_total": 0, "lock_ms": 0}
    reader.execute("COMMIT")
    assert storage.prune_oldest().pruned_completed == 1


def test_what_is_approved_bounds_all_that_a_task_drops(storage: QueueStorage, migrated: str) -> None:
    for number in (2, 3):
        end_jobs(storage, failed=number, age=timedelta(days=4))
        storage.rotate()

    def prune(**arguments: Any) -> Any:
        return run_task(lambda: PruneWithCarryOperator(task_id="prune", namespace=migrated, **arguments))

    assert isinstance(prune(max_pruned_failed=1).error, AirflowFailException)
    seen = prune(dry_run=True).xcoms["pruned_failed"]
    assert seen == 2
    too_few = prune(approved_pruned_failed=seen - 1)
    assert "PruneRefused" in str(too_few.error)
    done = prune(approved_pruned_failed=f"{{{{ {seen} }}}}")
    assert (done.state, done.xcoms["outcome"], done.xcoms["pruned_failed"]) == ("success", "pruned", 2)
    assert storage.queue_counts("letters").failed == 3
    both = prune(max_pruned_failed=1, approved_pruned_failed=1)
    assert "give one of max_pruned_failed and approved_pruned_failed" in str(both.error)
