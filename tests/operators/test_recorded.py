"""What operators do is on record in ``maintenance_run``, and what they could not do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from airflow_env import run_task
from parkkeeper import migrations
from parkkeeper.memory import MemoryStore
from parkkeeper.operators import FormationBatchOperator, PruneWithCarryOperator, RotateRingOperator
from parkkeeper.queue import QueueStorage
from ringside import end_jobs

CONTENT = "the words of a customer"


def recorded(connection: psycopg.Connection, namespace: str) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            sql.SQL("SELECT * FROM {} ORDER BY maintenance_run_id").format(
                sql.Identifier(namespace, "maintenance_run")
            )
        ).fetchall()


def test_one_row_for_each_run_that_did_something_whose_figures_are_what_it_reported(
    connection: psycopg.Connection, migrated: str
) -> None:
    storage, store = QueueStorage(connection, migrated), MemoryStore(connection, migrated)

    def rotate() -> RotateRingOperator:
        return RotateRingOperator(task_id="turn", namespace=migrated, retries=0)

    assert run_task(rotate).xcoms["outcome"] == "skipped_idle"
    assert recorded(connection, migrated) == []

    end_jobs(storage, 2)
    store.append("a", [{"role": "user", "content": CONTENT}])
    pushed = [
        run_task(make).xcoms
        for make in (
            rotate,
            lambda: PruneWithCarryOperator(
                task_id="look", namespace=migrated, failed_retention=0, dry_run=True
            ),
            lambda: PruneWithCarryOperator(task_id="drop", namespace=migrated, failed_retention=0),
            lambda: FormationBatchOperator(task_id="form", namespace=migrated),
        )
    ]
    del pushed[1]  # A dry run did nothing.

    rows = recorded(connection, migrated)
    assert [(row["action"], row["outcome"], row["task_id"]) for row in rows] == [
        ("rotate_ring", "rotated", "turn"),
        ("prune_with_carry", "pruned", "drop"),
        ("formation_batch", "formed", "form"),
    ]
    rings = ({"ring": "queue"}, {"ring": "queue"}, {})
    for row, figures, ring in zip(rows, pushed, rings, strict=True):
        assert row["figures"] | {"outcome": row["outcome"]} == figures | ring
        assert row["dag_id"].startswith("dag_")
        assert row["dag_run_id"] == "test"
        assert row["started_at"] <= row["ended_at"]
    assert rows[1]["figures"]["pruned_failed"] == 2
    assert CONTENT not in str(rows)


def test_a_run_that_fails_is_on_record_too(connection: psycopg.Connection, migrated: str) -> None:
    storage = QueueStorage(connection, migrated)
    end_jobs(storage, 2)
    storage.rotate()
    ran = run_task(
        lambda: PruneWithCarryOperator(
            task_id="drop", namespace=migrated, failed_retention=0, max_pruned_failed=1, retries=0
        )
    )
    assert ran.state == "failed"
    (row,) = recorded(connection, migrated)
    assert (row["action"], row["outcome"]) == ("prune_with_carry", "failed")


def test_a_record_that_cannot_be_written_is_said_and_undoes_nothing(
    connection: psycopg.Connection, migrated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    end_jobs(QueueStorage(connection, migrated), 1)
    table = sql.Identifier(migrated, "maintenance_run")
    connection.execute(sql.SQL("ALTER TABLE {} ADD CHECK (action = 'none')").format(table))
    ran = run_task(lambda: RotateRingOperator(task_id="turn", namespace=migrated))
    assert (ran.state, ran.xcoms["outcome"]) == ("success", "rotated")
    assert "The run is missing from maintenance_run: 23514" in capsys.readouterr().out


def test_rows_are_kept_for_ninety_days(connection: psycopg.Connection, migrated: str) -> None:
    table = sql.Identifier(migrated, "maintenance_run")
    for days in (91, 89):
        connection.execute(
            sql.SQL(
                "INSERT INTO {} (action, outcome, started_at, ended_at)"
                " SELECT 'rescue', 'rescued', stamp, stamp FROM (SELECT now() - %s AS stamp) AS old"
            ).format(table),
            [timedelta(days=days)],
        )
    end_jobs(QueueStorage(connection, migrated), 1)
    run_task(lambda: RotateRingOperator(task_id="turn", namespace=migrated))
    assert [row["action"] for row in recorded(connection, migrated)] == ["rescue", "rotate_ring"]


def test_both_families_share_the_table_whichever_comes_first(
    connection: psycopg.Connection, namespace: str
) -> None:
    for family in reversed(migrations.FAMILIES):
        migrations.migrate(connection, namespace, family)
    assert recorded(connection, namespace) == []
    assert migrations.verify(connection, namespace).differences == ()
