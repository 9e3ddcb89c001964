"""What a prune would do is told by queue and kind, and is what it then does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import InvalidArgument, PruneRefused, QueueStorage
from parkkeeper.queue.plan import PlannedRows, PrunePlan
from ringside import age, end_jobs, on_statement, prune_all, query, snapshot

Connect = Callable[..., psycopg.Connection[Any]]
FLOOR = timedelta(hours=72)


def ended(
    storage: QueueStorage, count: int, kind: str, *, ago: int = 1, queue: str = "q", state: str = "failed"
) -> None:
    """End jobs of a kind some hours ago."""
    age(storage, end_jobs(storage, count, queue=queue, kind=kind, state=state), timedelta(hours=ago))


def mixed_unit(storage: QueueStorage) -> None:
    """Carry some failed jobs, and seal a slot of which some would be carried and some dropped."""
    ended(storage, 2, "mail")
    storage.rotate()
    prune_all(storage)
    ended(storage, 3, "mail")
    ended(storage, 1, "mail", ago=73)
    ended(storage, 4, "mail", state="completed")
    ended(storage, 5, "scan", ago=80)
    ended(storage, 1, "scan", queue="other")
    storage.rotate()
    ended(storage, 1, "scan", queue="other")


MIXED = [
    PlannedRows("other", "scan", 1, 0, 0, 1),
    PlannedRows("q", "mail", 3, 1, 4, 2),
    PlannedRows("q", "scan", 0, 5, 0, 0),
]


def test_what_is_carried_dropped_and_kept_is_told_by_queue_and_kind(storage: QueueStorage) -> None:
    mixed_unit(storage)

    plan = storage.plan_prune()

    assert plan.by_kind == MIXED
    outcome = plan.outcome
    assert (outcome.outcome, outcome.slot) == ("pruned", 1)
    assert (outcome.carried_failed_rows, outcome.pruned_failed, outcome.pruned_completed) == (4, 6, 4)


def test_the_prune_then_does_what_was_told(storage: QueueStorage) -> None:
    mixed_unit(storage)
    told = storage.plan_prune()

    done = storage.prune_oldest()

    for figure in ("outcome", "slot", "carried_failed_rows", "pruned_failed", "pruned_completed"):
        assert getattr(done, figure) == getattr(told.outcome, figure)
    assert query(
        storage, "SELECT kind, count(*) FROM {ns}.done_entries WHERE state = 'failed' GROUP BY 1 ORDER BY 1"
    ) == [("mail", 3 + 2), ("scan", 1 + 1)]


def test_a_retention_that_is_given_and_one_of_a_queue_are_what_it_goes_by(storage: QueueStorage) -> None:
    mixed_unit(storage)
    storage.set_queue("other", failed_retention=0)

    rows = {(row.queue, row.kind): row for row in storage.plan_prune(timedelta(hours=100)).by_kind}

    assert rows["q", "scan"].carried_failed_rows == 5
    assert (rows["other", "scan"].carried_failed_rows, rows["other", "scan"].pruned_failed) == (0, 1)


def test_a_floor_segment_that_has_passed_is_told_of_like_a_slot(storage: QueueStorage) -> None:
    ended(storage, 2, "mail")
    storage.rotate()
    prune_all(storage)
    storage.set_queue("q", failed_retention=0)
    ended(storage, 1, "mail")

    plan = storage.plan_prune()

    assert plan.outcome.slot is not None and plan.outcome.slot < 0
    assert plan.by_kind == [PlannedRows("q", "mail", 0, 2, 0, 1)]


def test_where_nothing_would_be_pruned_all_failed_jobs_are_kept(storage: QueueStorage) -> None:
    assert storage.plan_prune().by_kind == []
    ended(storage, 2, "mail")
    ended(storage, 3, "mail", state="completed")
    assert storage.plan_prune().outcome.outcome == "noop"

    storage.enqueue("q", "waits")
    storage.rotate()

    plan = storage.plan_prune()
    assert (plan.outcome.outcome, plan.outcome.reason, plan.outcome.count) == (
        "skipped_active",
        "ready_rows",
        1,
    )
    assert plan.by_kind == [PlannedRows("q", "mail", 0, 0, 0, 2)]


def test_a_job_that_is_moved_meanwhile_is_told_of_once(storage: QueueStorage, connect: Connect) -> None:
    ended(storage, 3, "mail")
    storage.rotate()
    pruner = QueueStorage(connect(), storage.namespace)

    def prune(name: str) -> None:
        if name == "by_kind":
            assert pruner.prune_oldest().carried_failed_rows == 3

    on_statement(storage, "queue/plan", before=prune)
    plan = storage.plan_prune()

    assert plan.by_kind == [PlannedRows("q", "mail", 0, 0, 0, 3)]
    assert plan.outcome.carried_failed_rows == 0


def test_nothing_is_written_by_looking(storage: QueueStorage) -> None:
    mixed_unit(storage)
    before, xids = snapshot(storage), set()

    def look(name: str) -> None:
        cursor = psycopg.Cursor(storage.connection)
        xids.update(cursor.execute("SELECT pg_current_xact_id_if_assigned()").fetchall())

    on_statement(storage, ("queue/plan", "queue/prune", "queue/carry", "queue/floor"), after=look)
    assert isinstance(storage.plan_prune(), PrunePlan)

    assert xids == {(None,)}
    assert snapshot(storage) == before


def test_what_would_be_refused_is_refused(storage: QueueStorage) -> None:
    mixed_unit(storage)
    with pytest.raises(PruneRefused) as refused:
        storage.plan_prune(max_pruned_failed=5)
    assert refused.value.pruned_failed == 6
    with pytest.raises(InvalidArgument, match="max_pruned_failed -1"):
        storage.plan_prune(max_pruned_failed=-1)
