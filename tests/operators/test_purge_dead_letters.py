"""PurgeDeadLettersOperator: what queues have decided, and nothing else."""

from __future__ import annotations

import pytest

from airflow_env import run_task
from parkkeeper.operators import PurgeDeadLettersOperator
from parkkeeper.queue import QueueStorage


@pytest.fixture
def families() -> tuple[str, ...]:
    return ("queue",)


@pytest.mark.parametrize(
    ("retention", "outcome", "purged"), [(0, "purged", 2), (3_600, "noop", 0), (None, "noop", 0)]
)
def test_a_purge_goes_by_what_each_queue_has_decided(
    storage: QueueStorage, migrated: str, retention: int | None, outcome: str, purged: int
) -> None:
    storage.set_queue("letters", dead_letter=True, dead_letter_retention=retention)
    storage.enqueue_many("letters", "print", [None] * 2)
    storage.fail_many([(claim, "no paper") for claim in storage.claim("letters", 2)], terminal=True)
    ran = run_task(lambda: PurgeDeadLettersOperator(task_id="purge", namespace=migrated))
    assert (ran.state, ran.xcoms) == ("success", {"outcome": outcome, "purged": purged})
    assert storage.queue_counts("letters").dead_lettered == 2 - purged
