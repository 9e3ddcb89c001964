"""The task that asks the rows what is promised of them."""

from __future__ import annotations

import psycopg
from airflow.sdk.exceptions import AirflowFailException
from psycopg import sql

from airflow_env import run_task
from parkkeeper.operators import VerifyOperator
from parkkeeper.queue import QueueStorage


def test_it_fails_with_the_figures_pushed_when_an_invariant_is_broken(
    storage: QueueStorage, migrated: str, connection: psycopg.Connection
) -> None:
    storage.enqueue("letters", "print")
    ran = run_task(lambda: VerifyOperator(task_id="verify", namespace=migrated))
    assert ran.state == "success"
    assert ran.xcoms == {"outcome": "holds", "broken": 0, "violations": 0, "invariants": None}

    table = sql.Identifier(migrated, "queue_terminal_count_deltas")
    connection.execute(sql.SQL("UPDATE {} SET delta = 2").format(table))
    ran = run_task(lambda: VerifyOperator(task_id="verify", namespace=migrated))
    assert ran.state == "failed"
    assert isinstance(ran.error, AirflowFailException)
    assert "counts_equal_rows (1)" in str(ran.error)
    assert ran.xcoms == {
        "outcome": "broken",
        "broken": 1,
        "violations": 1,
        "invariants": "counts_equal_rows (1)",
    }
