"""RescueOperator: fixed keys, and an outcome that says whether a job was taken back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_env import run_task
from parkkeeper.operators import RescueOperator
from parkkeeper.queue import QueueStorage


@pytest.fixture
def families() -> tuple[str, ...]:
    return ("queue",)


def claim_and_die(storage: QueueStorage, jobs: int, max_attempts: int) -> None:
    """Claim jobs for no time at all."""
    storage.enqueue_many("letters", "print", [None] * jobs, max_attempts=max_attempts)
    assert len(storage.claim("letters", jobs, lease=timedelta(microseconds=1))) == jobs


@pytest.mark.parametrize(("again", "last", "outcome"), [(2, 1, "rescued"), (0, 1, "rescued"), (0, 0, "noop")])
def test_rescue_says_how_many_are_tried_again_and_how_many_are_failed(
    storage: QueueStorage, migrated: str, again: int, last: int, outcome: str
) -> None:
    for jobs, max_attempts in ((again, 2), (last, 1)):
        if jobs:
            claim_and_die(storage, jobs, max_attempts)
    ran = run_task(lambda: RescueOperator(task_id="rescue", namespace=migrated))
    assert (ran.state, ran.xcoms) == (
        "success",
        {"outcome": outcome, "rescued": again, "failed": last, "dead_lettered": 0},
    )


def test_nothing_to_rescue_can_skip_the_task(migrated: str) -> None:
    ran = run_task(lambda: RescueOperator(task_id="rescue", namespace=migrated, skip_on_outcome=("noop",)))
    assert (ran.state, ran.xcoms) == ("skipped", {})
