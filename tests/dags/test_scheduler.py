"""Every DAG once under a real scheduler, as a site has them: three lines in a file, started over the REST API."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from parkkeeper import database
from parkkeeper.demo.airflow import AirflowStandalone
from parkkeeper.demo.client import AirflowError, until
from parkkeeper.memory import MemoryStore
from parkkeeper.queue import QueueStorage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
DAGS = (
    "parkkeeper_migrate",
    "parkkeeper_queue_maintenance",
    "parkkeeper_memory_formation",
    "parkkeeper_park_sweep",
)
CONTENT = "the words of a customer"
PATIENCE = timedelta(minutes=5)  # a busy machine takes ten times what an idle one does

DAG_FILE = """
# An Airflow DAG.
from parkkeeper.dags import {dag_id}

dag = {dag_id}(namespace="{namespace}"{more})
"""
LATE_FILE = """
# An Airflow DAG whose run fails and so is never done in time.
from datetime import timedelta

from airflow.sdk import DAG

from parkkeeper.deadlines import alert
from parkkeeper.operators import FreshnessOperator

with DAG("late", schedule=None, deadline=alert(timedelta(seconds=1))) as dag:
    FreshnessOperator(task_id="fails", namespace="nowhere", retries=0)
"""


@pytest.fixture(scope="module")
def space(server_dsn: str) -> Iterator[str]:
    """The namespace that the DAGs look after; the first of them makes it."""
    name = f"test_{uuid.uuid4().hex[:16]}"
    yield name
    with database.connect(server_dsn) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def airflow(server_dsn: str, space: str) -> Iterator[AirflowStandalone]:
    """Airflow, running; it reads DAG files of the kind that a site writes."""
    folder = Path(tempfile.mkdtemp(prefix="parkkeeper-test-"))
    try:
        folder.chmod(0o755)  # the metadata server may have to run as another user
        dags = folder / "dags"
        dags.mkdir()
        for dag_id in DAGS:
            # Without a schedule: a run of the scheduler's own would count into the figures.
            more = "" if dag_id == "parkkeeper_migrate" else ", schedule=None"
            (dags / f"{dag_id}.py").write_text(DAG_FILE.format(dag_id=dag_id, namespace=space, more=more))
        (dags / "late.py").write_text(LATE_FILE)
        running = AirflowStandalone(folder / "home", dsn=server_dsn, dags=dags, plugins=PLUGINS)
        try:
            running.prepare()
            running.launch()
            running.wait_until_ready(timeout=PATIENCE)
            expected = {*DAGS, "late"}
            running.client.wait_for_dags(expected, PATIENCE)
            for dag_id in expected:
                running.client.unpause(dag_id)
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder)


def run(airflow: AirflowStandalone, dag_id: str, **conf: Any) -> dict[str, dict[str, Any]]:
    """Run a DAG to its end; return the XComs of each task, of which none said a warning or a customer's word."""
    client = airflow.client
    done = client.wait(client.trigger(dag_id, conf), PATIENCE)
    tasks = client.task_instances(done)
    logs = {task.task_id: client.log(done, task) for task in tasks}
    assert done.state == "success", logs
    assert {task.state for task in tasks} == {"success"}
    assert {task.try_number for task in tasks} == {1}
    # The leaf that ends a run's work is an empty task, which says nothing.
    said = [name for name, lines in logs.items() if any("Namespace" in line["event"] for line in lines)]
    assert sorted(said) == sorted(logs.keys() - {"work_done"})
    for lines in logs.values():
        assert [line for line in lines if line.get("level", "info") != "info" and not foreign(line)] == []
        assert CONTENT not in str(lines)
    return {task.task_id: client.xcoms(done, task) for task in tasks}


def foreign(line: dict[str, Any]) -> bool:
    """Tell whether a line is a warning that Python attributes to another package."""
    return "category" in line and "/parkkeeper/" not in line["filename"]


def figures(xcoms: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a task's XComs without the whole in one piece and the task's links."""
    return {key: value for key, value in xcoms.items() if key != "return_value" and key[:6] != "_link_"}


def test_airflow_knows_the_provider_and_the_plugin_once_and_has_nothing_to_complain_of(
    airflow: AirflowStandalone,
) -> None:
    assert airflow.client.import_errors() == []
    assert [plugin["name"] for plugin in airflow.client.plugins() if "parkkeeper" in plugin["name"]] == [
        "parkkeeper"
    ]
    providers = {provider["package_name"] for provider in airflow.client.providers()}
    assert "airflow-provider-parkkeeper" in providers


def test_each_dag_does_its_work(airflow: AirflowStandalone, server_dsn: str, space: str) -> None:
    made = run(airflow, "parkkeeper_migrate", queue_slots=4)
    assert {task: xcoms["outcome"] for task, xcoms in made.items()} == {
        "migrate_queue": "migrated",
        "migrate_memory": "migrated",
    }
    with database.connect(server_dsn) as connection:
        storage, store = QueueStorage(connection, space), MemoryStore(connection, space)
        storage.enqueue_many("letters", "print", [{"words": CONTENT}] * 3)
        claims = storage.claim("letters", 3)
        storage.complete(claims[:1])
        storage.fail_many([(claim, CONTENT) for claim in claims[1:]], terminal=True)
        for _ in range(2):
            store.append("a", [{"role": "user", "content": CONTENT}])

    ring = run(airflow, "parkkeeper_queue_maintenance", failed_retention_seconds=0)
    formation = run(airflow, "parkkeeper_memory_formation", limit=1)
    sweep = run(airflow, "parkkeeper_park_sweep")

    assert figures(ring["rotate"]) == {
        "outcome": "rotated",
        "slot": 1,
        "generation": 1,
        "carried_failed": 0,
        "pruned_failed": 0,
        "pruned_completed": 0,
        "pruned_failed_total": 0,
        "evacuated": 0,
    }
    assert ring["prune"].pop("lock_ms") > 0
    assert figures(ring["prune"]) == {
        "outcome": "pruned",
        "slot": 0,
        "generation": 0,
        "carried_failed": 0,
        "pruned_failed": 2,
        "pruned_completed": 1,
        "pruned_failed_total": 2,
    }
    nothing = {"failed": 0, "parked": 0, "deferred": 0}
    assert figures(formation["form"]) == {
        "outcome": "formed",
        "formed": 1,
        "parked_total": 0,
        "backlog": 1,
        "discarded": 0,
        "circuit": "closed",
        **nothing,
    }
    assert figures(formation["freshness"]) == {
        "outcome": "behind",
        "scopes": 1,
        "scopes_behind": 1,
        "stored": 2,
        "formed": 1,
        "erased": 0,
        "parked_total": 0,
        "backlog": 1,
    }
    assert figures(sweep["sweep"]) == {
        "outcome": "noop",
        "formed": 0,
        "parked_total": 0,
        "backlog": 1,
        "unparked": 0,
        "claims_returned": 0,
        **nothing,
    }


@pytest.mark.parametrize(
    "conf", [{"namespace": "Public"}, {"failed_retention_seconds": -1}, {"dry_run": "perhaps"}]
)
def test_a_bad_parameter_starts_no_run(airflow: AirflowStandalone, conf: dict[str, Any]) -> None:
    before = airflow.client.runs("parkkeeper_queue_maintenance")
    with pytest.raises(AirflowError, match="refused with status 4"):
        airflow.client.trigger("parkkeeper_queue_maintenance", conf)
    assert airflow.client.runs("parkkeeper_queue_maintenance") == before


def test_a_run_that_is_not_done_in_time_is_told_in_the_triggerers_log(airflow: AirflowStandalone) -> None:
    late = airflow.client.wait(airflow.client.trigger("late"), PATIENCE)
    assert late.state == "failed"
    log = airflow.home / "parts" / "triggerer.log"
    line = f"Deadline missed: dag_id=late run_id={late.run_id}"
    assert line in until(log.read_text, lambda text: line in text, PATIENCE)


def test_the_page_is_served_to_people_who_are_logged_in(airflow: AirflowStandalone, space: str) -> None:
    import httpx

    address = f"{airflow.url}/parkkeeper/figures?namespace={space}"
    assert httpx.get(address, trust_env=False).status_code == 401
    token = httpx.post(
        f"{airflow.url}/auth/token", json={"username": "admin", "password": "admin"}, trust_env=False
    ).json()["access_token"]
    answer = httpx.get(address, headers={"Authorization": f"Bearer {token}"}, trust_env=False)
    assert answer.status_code == 200
    (letters,) = answer.json()["figures"]["queues"]
    assert (letters["terminal"], letters["pruned_failed"]) == (3, 2)
