"""Running tasks and DAGs in this process as Airflow itself runs them, on a metadata database of the session's own."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pendulum
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagrun import get_or_create_dagrun
from airflow.models.xcom import XComModel
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.api.datamodels._generated import TaskInstance
from airflow.sdk.execution_time.supervisor import run_task_in_process
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import select

Task = TypeVar("Task")

BUNDLE = "dags-folder"


@dataclass(frozen=True)
class Ran:
    """How a task ended: Airflow's state, what `execute` raised, and the XComs that it pushed."""

    state: str
    error: BaseException | None
    xcoms: dict[str, Any]


@cache
def metadata() -> None:
    """Make the metadata database, once a session."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    initdb()
    DagBundlesManager().sync_bundles_to_db()


def known_dag(make: Callable[[], Task]) -> tuple[DAG, Task]:
    """Make a DAG of the one task that `make` returns, and let the metadata database know of it."""
    metadata()
    with DAG(f"dag_{uuid.uuid4().hex}", schedule=None, start_date=pendulum.datetime(2025, 1, 1)) as dag:
        task = make()
    bag = DagBag(dag_folder="/dev/null", load_op_links=False)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, BUNDLE, None)
    return dag, task


def run_task(make: Callable[[], BaseOperator], conf: dict[str, Any] | None = None) -> Ran:
    """Run the one task that `make` returns, in a run of a DAG of its own, through Airflow's own task runner."""
    dag, task = known_dag(make)
    now = pendulum.now("UTC")
    with create_session() as session:
        run = get_or_create_dagrun(
            dag=DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)),
            run_id="test",
            logical_date=None,
            data_interval=None,
            run_after=now,
            start_date=now,
            conf=conf,
            triggered_by=DagRunTriggeredByType.TEST,
            triggering_user_name="test",
            session=session,
        )
        (row,) = run.get_task_instances(session=session)
        row.try_number = 1
        row.set_state("queued", session=session)
        ti = TaskInstance(
            id=row.id,
            task_id=row.task_id,
            dag_id=row.dag_id,
            run_id=row.run_id,
            try_number=1,
            map_index=-1,
            dag_version_id=row.dag_version_id,
        )
    result = run_task_in_process(ti=ti, task=task)
    return Ran(result.ti.state.value, result.error, xcoms(dag.dag_id, "test", task.task_id))


def xcoms(dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
    """Return what a task pushed, by key, without the whole in one piece."""
    with create_session() as session:
        rows = session.scalars(
            select(XComModel).where(
                XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.task_id == task_id
            )
        )
        return {
            row.key: XComModel.deserialize_value(row)
            for row in rows
            if row.key != "return_value" and not row.key.startswith("_link_")
        }


def dag_bag() -> DagBag:
    """Read the DAG files of the checkout."""
    return DagBag(dag_folder=Path(__file__).parents[1] / "dags", load_op_links=False)
