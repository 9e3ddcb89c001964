"""The DAG files: read without a database, complete, and strict about their parameters."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.file import might_contain_dag

from parkkeeper import dags
from parkkeeper.errors import InvalidArgument
from parkkeeper.timetables import BackfillTimetable

SCHEDULES = {
    "parkkeeper_erasure": None,
    "parkkeeper_memory_formation": "*/5 * * * *",
    "parkkeeper_memory_rebuild": BackfillTimetable("@daily", "UTC"),
    "parkkeeper_migrate": None,
    "parkkeeper_park_sweep": "0 * * * *",
    "parkkeeper_queue_maintenance": "*/5 * * * *",
    "parkkeeper_queue_prune_approved": None,
    "parkkeeper_queue_redrive": BackfillTimetable("@daily", "UTC"),
}
DAGS = tuple(SCHEDULES)
#: These wait for a person, and a person has no deadline.
APPROVED = ("parkkeeper_erasure", "parkkeeper_queue_prune_approved")
#: These may be backfilled, and are never started by the clock.
BACKFILLED = ("parkkeeper_memory_rebuild", "parkkeeper_queue_redrive")

#: What a template could not tell from a name that was not given, and then all are meant.
NO_NAMES = ("", " ", "None", " None ", "None\n")


def make(dag_id: str, **arguments: Any) -> DAG:
    dag: DAG = getattr(dags, dag_id)(**arguments)
    return dag


def connections(dag: DAG) -> set[str]:
    """Return the connections of the operators of a DAG, of mapped ones too."""
    given = [task.partial_kwargs if task.is_mapped else vars(task) for task in dag.tasks]
    return {arguments["conn_id"] for arguments in given if "conn_id" in arguments}


def test_the_files_are_read_without_a_database_a_network_or_a_warning_of_ours(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql+psycopg://nobody@127.0.0.1:1/none",
    }
    program = Path(__file__).with_name("read_dags.py")
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "dags": list(DAGS),
        "errors": {},
        "warnings": [],
        "attempts": [],
        "hook": False,
        "web": False,
    }


@pytest.mark.parametrize("dag_id", DAGS)
def test_a_dag_has_what_keeps_it_from_hanging_or_piling_up(dag_id: str) -> None:
    dag = make(dag_id)
    assert dag.dag_id == dag_id
    schedule = SCHEDULES[dag_id]
    assert dag.schedule == schedule or (
        isinstance(schedule, BackfillTimetable) and dag.timetable.serialize() == schedule.serialize()
    )
    assert dag.catchup is False
    assert dag.max_active_runs == 1
    assert "parkkeeper" in dag.tags
    assert dag.doc_md
    assert (dag.allowed_run_types is not None) == (dag_id in BACKFILLED)
    longest = timedelta(hours=1)
    if dag_id not in APPROVED:
        (deadline,) = dag.deadline if isinstance(dag.deadline, list) else [dag.deadline]
        assert deadline.reference.reference_name == "DagRunQueuedAtDeadline"
        assert deadline.callback.path == "parkkeeper.deadlines.missed"
        longest = deadline.interval
    for task in dag.tasks:
        if isinstance(task, ApprovalOperator):
            assert task.response_timeout > longest
            assert task.retries == 0  # else whoever rejects is asked again
            continue
        if isinstance(task, EmptyOperator):
            continue  # the scheduler ends it without a worker
        # A prune that was approved is tried once: what a lost try had dropped would be dropped again, of other jobs.
        assert task.retries == (
            0 if (dag_id, task.task_id) == ("parkkeeper_queue_prune_approved", "prune") else 2
        )
        assert task.retry_delay >= timedelta(seconds=30)
        assert timedelta(0) < task.execution_timeout <= longest


@pytest.mark.parametrize("dag_id", ["parkkeeper_memory_formation", "parkkeeper_queue_maintenance"])
def test_the_work_and_the_alarm_are_leaves_of_which_none_hides_the_other(dag_id: str) -> None:
    dag = make(dag_id)
    assert {leaf.task_id: leaf.trigger_rule.value for leaf in dag.leaves} == {
        "work_done": "none_failed",
        "lag_check": "all_done",
    }


def test_a_site_has_limits_of_its_own_for_the_alarms() -> None:
    dag = make("parkkeeper_queue_maintenance", alarms={"max_blocked": 3, "max_pinned_age_seconds": None})
    assert (dag.params["max_blocked"], dag.params["max_pinned_age_seconds"]) == (3, None)
    assert dag.params["max_ready_age_seconds"] == 3600
    with pytest.raises(InvalidArgument, match="alarm 'max_age' is refused"):
        make("parkkeeper_queue_maintenance", alarms={"max_age": 3})


@pytest.mark.parametrize("dag_id", APPROVED)
def test_what_cannot_be_undone_waits_for_a_person_in_a_dag_of_its_own(dag_id: str) -> None:
    dag = make(dag_id)
    assert dag.deadline in (None, [])
    (last,) = dag.leaves
    assert [type(task) for task in last.upstream_list] == [ApprovalOperator]
    assert last.upstream_list[0].fail_on_reject
    assert {task.task_id for task in dag.tasks} - {last.task_id} == {"look", "approve"}


@pytest.mark.parametrize("dag_id", DAGS)
def test_a_dag_survives_the_way_to_the_scheduler(dag_id: str) -> None:
    dag = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(make(dag_id)))
    assert set(dag.task_dict) == {task.task_id for task in make(dag_id).tasks}


@pytest.mark.parametrize(
    ("dag_id", "param", "value"),
    [
        *[
            (dag_id, "namespace", name)
            for dag_id in DAGS
            for name in ("public", "pg_x", "A", "a-b", "", "a" * 49, 1)
        ],
        *[("parkkeeper_erasure", "request_id", value) for value in (None, "", "alice", "1")],
        *[("parkkeeper_queue_prune_approved", "failed_retention_seconds", value) for value in (-1, 1.5)],
        *[("parkkeeper_queue_prune_approved", "lock_timeout_seconds", value) for value in (0, 6)],
        *[
            (dag_id, f"{event}_{bound}", value)
            for dag_id, event in zip(BACKFILLED, ("ingested", "finalized"), strict=True)
            for bound in ("from", "before")
            for value in ("yesterday", "2026-03-02", 1)
        ],
        *[("parkkeeper_queue_redrive", "queue", value) for value in (*NO_NAMES, "q" * 201, 1)],
        *[("parkkeeper_queue_redrive", "kind", value) for value in NO_NAMES],
        *[("parkkeeper_queue_redrive", "limit", value) for value in (0, "all")],
        *[("parkkeeper_migrate", "queue_slots", slots) for slots in (3, 257, "16", 4.5, None)],
        *[("parkkeeper_queue_maintenance", "failed_retention_seconds", value) for value in (-1, 1.5, "1h")],
        *[("parkkeeper_queue_maintenance", "max_pruned_failed", value) for value in (-1, "1")],
        *[("parkkeeper_queue_maintenance", "lock_timeout_seconds", value) for value in (0, 5.1, None)],
        *[("parkkeeper_queue_maintenance", "dry_run", value) for value in ("yes", None, 1)],
        *[("parkkeeper_memory_formation", "limit", value) for value in (0, -1, "1", None)],
        *[("parkkeeper_memory_formation", "max_attempts", value) for value in (0, None)],
        *[("parkkeeper_memory_formation", "turn_budget_seconds", value) for value in (0, 601)],
        *[("parkkeeper_memory_formation", "scope", value) for value in (*NO_NAMES, "s" * 201, 1)],
        *[("parkkeeper_memory_formation", "max_batches", value) for value in (0, 501, "8")],
        *[("parkkeeper_memory_formation", "scopes_per_batch", value) for value in (0, None)],
        *[("parkkeeper_memory_formation", "max_parked_share", value) for value in (-0.1, 1.1, "0.5")],
        *[("parkkeeper_queue_maintenance", "max_blocked", value) for value in (-1, 0.5, "6")],
        *[("parkkeeper_queue_maintenance", "max_ready_age_seconds", value) for value in (-1, "1h")],
        *[("parkkeeper_park_sweep", "unpark_classes", value) for value in ("quota", ["prose"], None)],
        *[("parkkeeper_park_sweep", "parked_for_seconds", value) for value in (-1, "1h")],
        *[("parkkeeper_park_sweep", "max_park_count", value) for value in (0, None)],
        *[("parkkeeper_park_sweep", "unpark_limit", value) for value in (0, None)],
        *[("parkkeeper_park_sweep", "dry_run", value) for value in ("no", None)],
    ],
)
def test_a_bad_parameter_is_refused_by_its_schema(dag_id: str, param: str, value: Any) -> None:
    params = make(dag_id).params
    with pytest.raises(ParamValidationError):
        params[param] = value


@pytest.mark.parametrize("dag_id", [*DAGS, "parkkeeper_migrate_all"])
def test_a_number_that_is_none_is_refused_by_its_schema(dag_id: str) -> None:
    """It passes every bound, and is nothing when it reaches the task, which would mean no limit and no alarm."""
    params = make(dag_id, **({"family": "queue", "pattern": "t_*"} if dag_id not in DAGS else {})).params
    for name in params:
        kinds = params.get_param(name).schema["type"]
        if {"number", "integer"} & set([kinds] if isinstance(kinds, str) else kinds):
            for value in (math.nan, math.inf, -math.inf):
                with pytest.raises(ParamValidationError):
                    params[name] = value


@pytest.mark.parametrize("dag_id", DAGS)
def test_a_site_sets_the_namespace_and_the_connection_in_its_configuration(
    dag_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make(dag_id).params["namespace"] == "parkkeeper"
    assert connections(make(dag_id)) == {"parkkeeper_default"}

    monkeypatch.setenv("AIRFLOW__PARKKEEPER__NAMESPACE", "orders")
    monkeypatch.setenv("AIRFLOW__PARKKEEPER__CONN_ID", "warehouse")
    assert make(dag_id).params["namespace"] == "orders"
    assert connections(make(dag_id)) == {"warehouse"}

    given = make(dag_id, namespace="letters", conn_id="mail")
    assert given.params["namespace"] == "letters"
    assert connections(given) == {"mail"}


def examples(page: str) -> list[tuple[str, list[str]]]:
    """Execute the examples of a guide; return the DAG of each, with its tasks."""
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / page).read_text()
    made: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```python\n(.+?)```", guide, flags=re.DOTALL):
        names: dict[str, Any] = {}
        exec(compile(block, page, "exec"), names)
        made.append((names["dag"].dag_id, [task.task_id for task in names["dag"].tasks]))
    return made


def test_airflow_opens_each_file_that_the_guides_tell_to_make(tmp_path: Path) -> None:
    """A file in which a word is missing is passed over: it makes no DAG, and no import error either."""
    passed_over = []
    for page in (Path(__file__).parents[2] / "docs").rglob("*.md"):
        fenced_or_indented = r"```python\n(.+?)```|((?:^    [^\n]*\n|^\n)+)"
        blocks = re.findall(fenced_or_indented, page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for block in ("".join(found) for found in blocks):
            if "from parkkeeper.dags import" in block:
                file = tmp_path / "dag.py"
                file.write_text(block)
                if not might_contain_dag(str(file), safe_mode=True):
                    passed_over.append((page.name, block))
    assert passed_over == []


def test_the_examples_of_the_other_guides_make_dags() -> None:
    assert [dag_id for dag_id, _ in examples("alerting.md")] == [
        "parkkeeper_queue_maintenance",
        "orders_losses",
    ]
    assert [dag_id for dag_id, _ in examples("schedules-and-sizes.md")] == ["parkkeeper_memory_formation"]


def test_the_examples_of_the_guide_make_dags() -> None:
    made = examples("airflow.md")
    rings = ["rotate_lease", "prune_lease", "rotate_claim", "prune_claim"]
    tasks = ["rescue", "rotate", "prune"]
    ring = [*tasks, "roll_up", "purge_dead_letters", *rings, "work_done", "lag_check"]
    assert made == [
        ("parkkeeper_queue_maintenance", ring),
        ("parkkeeper_queue_maintenance", ["namespaces", *(f"look_after.{task}" for task in ring)]),
        ("orders_queue", [*tasks, "roll_up", *rings]),
        ("parkkeeper_migrate_all", ["find", "canaries", "migrate_canaries", "chunks", "migrate"]),
    ]
