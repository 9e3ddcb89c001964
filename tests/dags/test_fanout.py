"""Runs that are shared out: formation over shards of scopes, each DAG over the namespaces of a Variable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from psycopg import sql

from airflow_env import BUNDLE, metadata
from memory_kit import say
from parkkeeper import dags, migrations
from parkkeeper.dags.common import chosen_namespaces
from parkkeeper.memory import MemoryStore
from parkkeeper.queue import QueueStorage

pytestmark = pytest.mark.usefixtures("airflow_connection")

VARIABLE = "parkkeeper_namespaces"


def run(dag: DAG, **conf: Any) -> tuple[str, dict[str, list[str]]]:
    """Run a DAG; return the state of the run and the states of each task's instances."""
    metadata()
    dag.deadline = None  # dag.test() of Airflow 3.3 cannot run a DAG with a deadline (apache/airflow#73428)
    for one in dag.tasks:
        if one.is_mapped:
            one.partial_kwargs["retries"] = 0
        else:
            one.retries = 0
    bag = DagBag(dag_folder="/dev/null", load_op_links=False)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, BUNDLE, None)
    done = dag.test(run_conf=conf)
    states: dict[str, list[str]] = {}
    for ti in sorted(done.get_task_instances(), key=lambda ti: ti.map_index):
        states.setdefault(ti.task_id, []).append(str(ti.state))
    return str(done.state), states


@pytest.fixture
def two(
    connection: psycopg.Connection[Any], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """Two namespaces with a queue, and between them one that has none, as the Variable names them."""
    names = [f"{namespace}_{which}" for which in ("a", "none", "b")]
    for name in (names[0], names[2]):
        migrations.migrate(connection, name, "queue", queue_slots=4)
    monkeypatch.setenv(f"AIRFLOW_VAR_{VARIABLE.upper()}", json.dumps(names))
    yield names
    for name in names:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


def test_what_one_run_is_given_is_no_other_dags_default() -> None:
    formation = dags.parkkeeper_memory_formation(schedule=None, namespace="support")
    formation.params["scope"] = "ada"
    assert dags.parkkeeper_memory_formation(schedule=None, namespace="support").params["scope"] is None
    assert dags.parkkeeper_park_sweep(schedule=None, namespace="support").params["scope"] is None


def test_scopes_are_shared_out_among_batches(connection: psycopg.Connection[Any], namespace: str) -> None:
    migrations.migrate(connection, namespace, "memory")
    store = MemoryStore(connection, namespace)
    for number in range(25):
        store.append(f"scope {number}", say("x"))
    dag = dags.parkkeeper_memory_formation(schedule=None, namespace=namespace)
    state, tasks = run(dag, scopes_per_batch=10, max_batches=4)
    assert (state, tasks["form"]) == ("success", ["success"] * 3)
    assert [store.freshness(f"scope {number}").formed for number in range(25)] == [0] * 25


def test_what_fails_in_one_namespace_keeps_no_other_waiting(
    connection: psycopg.Connection[Any], two: list[str]
) -> None:
    for name in (two[0], two[2]):
        storage = QueueStorage(connection, name)
        storage.enqueue("letters", "print")
        storage.complete(storage.claim("letters"))
    dag = dags.parkkeeper_queue_maintenance(schedule=None, namespaces_variable=VARIABLE)
    state, tasks = run(dag)
    assert state == "failed"
    assert tasks["look_after.rescue"] == ["success", "failed", "success"]
    assert tasks["look_after.roll_up"] == ["success", "upstream_failed", "success"]
    for name in (two[0], two[2]):
        assert QueueStorage(connection, name).rotate().outcome == "skipped_idle"  # all is pruned


def test_formation_and_sweep_go_on_where_one_namespace_has_no_memory(
    connection: psycopg.Connection[Any], two: list[str]
) -> None:
    migrations.migrate(connection, two[2], "memory")
    store = MemoryStore(connection, two[2])
    for number in range(25):
        store.append(f"scope {number}", say("x"))
    dag = dags.parkkeeper_memory_formation(schedule=None, namespaces_variable=VARIABLE)
    state, tasks = run(dag, scopes_per_batch=10, max_batches=2)
    assert (state, tasks["form"]) == ("failed", ["failed", "failed", "success", "success"])
    assert [store.freshness(f"scope {number}").formed for number in range(25)] == [0] * 25
    state, tasks = run(dags.parkkeeper_park_sweep(schedule=None, namespaces_variable=VARIABLE))
    assert (state, tasks["sweep"]) == ("failed", ["failed", "failed", "success"])


@pytest.mark.parametrize("value", [None, "[]", "orders", '{"orders": 1}', "[1]"])
def test_a_variable_that_names_no_namespace_is_refused(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata()
    if value is not None:
        monkeypatch.setenv(f"AIRFLOW_VAR_{VARIABLE.upper()}", value)
    with pytest.raises(AirflowFailException, match=f"Variable {VARIABLE} "):
        chosen_namespaces(None, VARIABLE)


def test_a_run_looks_after_the_namespace_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"AIRFLOW_VAR_{VARIABLE.upper()}", '["orders", "letters"]')
    assert chosen_namespaces(None, VARIABLE) == ["orders", "letters"]
    assert chosen_namespaces("mail", VARIABLE) == ["mail"]
