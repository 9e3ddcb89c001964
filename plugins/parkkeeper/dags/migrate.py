"""The DAG that makes a namespace's tables and keeps them up to date."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from parkkeeper import migrations
from parkkeeper.dags.common import maintenance_dag, operator_defaults
from parkkeeper.operators import MigrateOperator

DOC = """\
Make the tables of a namespace, or bring them up to date.

Run it by hand: once for a new namespace, and after each upgrade of the package. It applies what is missing,
first of the queue, then of the memory, each migration in a transaction of its own; when nothing is missing it
does nothing. A migration that was applied and reads differently now, or a database newer than the package,
fails the run and changes nothing.

**Parameters**: `namespace`; `queue_slots`, the size of the queue's ring, which counts only when the ring is
made.
"""


def parkkeeper_migrate(*, namespace: str | None = None, conn_id: str | None = None) -> DAG:
    """Return the DAG ``parkkeeper_migrate``, which is started by hand.

    Parameters
    ----------
    namespace
        What the parameter `namespace` proposes; None: ``[parkkeeper] namespace`` of Airflow's configuration.
    conn_id
        The Airflow connection; None: ``[parkkeeper] conn_id`` of the configuration.
    """
    slots = migrations.QUEUE_SLOTS
    dag = maintenance_dag(
        "parkkeeper_migrate",
        doc=DOC,
        schedule=None,
        family="",
        done_within=timedelta(hours=1),
        namespace=namespace,
        conn_id=conn_id,
        params={
            "queue_slots": Param(
                16,
                type="integer",
                minimum=slots.start,
                maximum=slots.stop - 1,
                title="Slots of the queue's ring",
                description="Used when the ring is first made; a ring that exists keeps its size.",
            )
        },
    )
    with dag:
        defaults = operator_defaults(conn_id) | {"execution_timeout": timedelta(minutes=20)}
        queue = MigrateOperator(
            task_id="migrate_queue", family="queue", queue_slots="{{ params.queue_slots }}", **defaults
        )
        queue >> MigrateOperator(task_id="migrate_memory", family="memory", **defaults)
    return dag
