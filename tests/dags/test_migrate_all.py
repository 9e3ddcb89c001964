"""The DAG over many namespaces: canaries first, then chunks, each task with its own end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from psycopg import sql

from airflow_env import BUNDLE, metadata
from parkkeeper import migrations
from parkkeeper.dags import parkkeeper_migrate_all

pytestmark = pytest.mark.usefixtures("airflow_connection")


@pytest.fixture
def tenants(connection: psycopg.Connection, namespace: str) -> Iterator[list[str]]:
    """Seven namespaces that lack the newest migrations of the memory."""
    names = [f"{namespace}_{number}" for number in range(7)]
    for name in names:
        migrations.migrate(connection, name, "memory", target=4)
    yield names
    for name in names:
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


def run(namespace: str, **conf: Any) -> tuple[str, dict[str, list[str]]]:
    """Run the DAG; return the state of the run, and the states of each task's instances."""
    metadata()
    dag = parkkeeper_migrate_all(family="memory", pattern=f"{namespace}_*", dag_id=f"all_{namespace}")
    dag.deadline = None  # dag.test() of Airflow 3.3 cannot run a DAG with a deadline (apache/airflow#73428)
    dag.default_args["retries"] = 0
    bag = DagBag(dag_folder="/dev/null", load_op_links=False)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, BUNDLE, None)
    for one in dag.tasks:
        if not one.is_mapped:
            one.retries = 0
        else:
            one.partial_kwargs["retries"] = 0
    done = dag.test(run_conf=conf)
    states: dict[str, list[str]] = {}
    for ti in sorted(done.get_task_instances(), key=lambda ti: ti.map_index):
        states.setdefault(ti.task_id, []).append(str(ti.state))
    return str(done.state), states


def test_canaries_are_done_first_and_then_chunks_of_the_others(
    connection: psycopg.Connection, namespace: str, tenants: list[str]
) -> None:
    state, tasks = run(namespace, canary=2, chunk=2)
    assert state == "success"
    assert (tasks["migrate_canaries"], tasks["migrate"]) == (["success"], ["success"] * 3)
    for name in tenants:
        migrations.require(connection, name, "memory")


def test_a_canary_that_fails_keeps_all_others_as_they_are(
    connection: psycopg.Connection, namespace: str, tenants: list[str]
) -> None:
    ledger = sql.Identifier(tenants[0], "schema_migration")
    connection.execute(sql.SQL("UPDATE {} SET sha256 = 'x'").format(ledger))
    state, tasks = run(namespace, canary=2, chunk=2)
    assert state == "failed"
    assert tasks["migrate_canaries"] == ["failed"]
    assert set(tasks["migrate"]) == {"upstream_failed"}
    assert migrations.plan(connection, tenants[6], "memory")


def test_without_canaries_a_chunk_that_fails_leaves_the_others_done(
    connection: psycopg.Connection, namespace: str, tenants: list[str]
) -> None:
    ledger = sql.Identifier(tenants[0], "schema_migration")
    connection.execute(sql.SQL("UPDATE {} SET sha256 = 'x'").format(ledger))
    state, tasks = run(namespace, canary=0, chunk=4)
    assert state == "failed"
    assert tasks["migrate"] == ["failed", "success"]
    for name in tenants[1:]:
        migrations.require(connection, name, "memory")


def test_a_pattern_that_finds_nothing_fails_the_run(namespace: str) -> None:
    state, tasks = run(f"{namespace}_none")
    assert (state, tasks["find"], tasks["migrate"]) == ("failed", ["failed"], ["upstream_failed"])
