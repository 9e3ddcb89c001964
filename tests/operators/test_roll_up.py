"""RollupCountsOperator: fixed keys, and a warning when the counters are not believed."""

from __future__ import annotations

import pytest

from airflow_env import run_task
from parkkeeper.operators import RollupCountsOperator
from parkkeeper.queue import QueueStorage
from ringside import query


@pytest.fixture
def families() -> tuple[str, ...]:
    return ("queue",)


def test_a_roll_up_says_what_it_folded_and_whether_the_counters_are_believed(
    storage: QueueStorage, migrated: str
) -> None:
    expected = {"outcome": "noop", "reason": None, "folded": 0, "released_keys": 0, "counters": "trusted"}
    for jobs in (0, 2):
        for _ in range(jobs):
            storage.enqueue("letters", "print")
        ran = run_task(lambda: RollupCountsOperator(task_id="roll_up", namespace=migrated))
        assert ran.state == "success"
        assert ran.xcoms == expected | ({"outcome": "rolled_up", "folded": jobs} if jobs else {})

    query(storage, "UPDATE {ns}.queue_terminal_live_counts SET count = -1")
    ran = run_task(lambda: RollupCountsOperator(task_id="roll_up", namespace=migrated))
    assert (ran.state, ran.xcoms) == ("success", expected | {"counters": "distrusted"})
