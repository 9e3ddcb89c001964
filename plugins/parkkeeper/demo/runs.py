"""Running DAGs through the real scheduler, and what their tasks reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from parkkeeper.demo.client import AirflowClient, DagRun, TaskInstance
from parkkeeper.errors import ParkkeeperError

MIGRATE = "parkkeeper_migrate"
MAINTENANCE = "parkkeeper_queue_maintenance"
FORMATION = "parkkeeper_memory_formation"
SWEEP = "parkkeeper_park_sweep"
#: A DAG retries what the database refused after half a minute.
TIMEOUT = timedelta(minutes=3)
RESULT = "return_value"
#: What is told first.
ORDER = (
    "outcome",
    "carried_failed",
    "pruned_failed",
    "pruned_failed_total",
    "formed",
    "parked",
    "parked_total",
)
_PACKAGE = str(Path(__file__).resolve().parents[1])
DAGS = (MIGRATE, MAINTENANCE, FORMATION, SWEEP)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One task of a run, what it pushed to XCom, and the warnings of this package in its log."""

    task: TaskInstance
    figures: Mapping[str, Any]
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run, and its tasks in the order in which they started."""

    run: DagRun
    tasks: tuple[TaskReport, ...]

    def figure(self, task_id: str, key: str) -> Any:
        """Return what task `task_id` pushed under `key`; None if it did not."""
        return next(
            (report.figures.get(key) for report in self.tasks if report.task.task_id == task_id), None
        )


class RunFailed(ParkkeeperError):
    """A run did not succeed; what follows would build on it."""


def start(client: AirflowClient, dag_id: str, conf: dict[str, Any] | None = None) -> DagRun:
    """Let the scheduler have the DAG, and start a run of it by hand."""
    client.unpause(dag_id)
    return client.trigger(dag_id, conf)


def hold(client: AirflowClient, dag_id: str) -> None:
    """Have no further runs of the DAG started, and wait for those that were."""
    client.pause(dag_id)
    for run in client.runs(dag_id):
        client.wait(run, TIMEOUT)


def finish(client: AirflowClient, run: DagRun) -> RunReport:
    """Wait for `run` and return what its tasks pushed.

    Raises
    ------
    RunFailed
        It did not succeed; the message names the task and the error in its log.
    """
    found = report(client, client.wait(run, TIMEOUT))
    if found.run.state != "success":
        failed = [one.task for one in found.tasks if one.task.state == "failed"]
        reasons = [f"task {task.task_id}: {_error(client.log(found.run, task))}" for task in failed]
        raise RunFailed(f"run {run.run_id} of {run.dag_id} {found.run.state}: {'; '.join(reasons)}")
    return found


def report(client: AirflowClient, run: DagRun) -> RunReport:
    """Return a finished run, and of each of its tasks what it pushed and which warnings of ours its log has."""
    return RunReport(run, tuple(_report_task(client, run, task) for task in client.task_instances(run)))


def _report_task(client: AirflowClient, run: DagRun, task: TaskInstance) -> TaskReport:
    keys = client.xcom_keys(run, task)
    # The whole result is there too: one call for all values instead of one for each.
    whole = client.xcom(run, task) if RESULT in keys else {}
    figures = {key: whole[key] for key in ORDER if key in keys}
    figures |= {key: whole[key] for key in keys if key in whole}
    return TaskReport(task, figures, tuple(_warnings(client.log(run, task))))


def report_all(client: AirflowClient) -> tuple[RunReport, ...]:
    """Return every run of the demo's DAGs, those that the schedule started meanwhile too, each when it has finished."""
    return tuple(report(client, client.wait(run)) for dag_id in DAGS for run in client.runs(dag_id))


def _error(log: Sequence[Mapping[str, Any]]) -> str:
    errors = [detail for line in log for detail in line.get("error_detail") or []]
    return f"{errors[-1]['exc_type']}: {errors[-1]['exc_value']}" if errors else "its log names no error"


def _warnings(log: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the warnings and errors that came from this package; Airflow has some of its own."""
    for line in log:
        source = str(line.get("filename", ""))
        ours = str(line.get("logger", "")).startswith("parkkeeper") or source.startswith(_PACKAGE)
        if ours and line.get("level") in ("warning", "error", "critical"):
            yield str(line.get("event"))
