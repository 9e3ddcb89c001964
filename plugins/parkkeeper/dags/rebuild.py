"""The DAG that forms turns again, of a window of time."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from parkkeeper.dags.common import DEFAULT_POOL, maintenance_dag, operator_defaults
from parkkeeper.dags.memory import SCOPE, TURN_BUDGET
from parkkeeper.dags.window import BACKFILLED, timetable, window_params, window_task
from parkkeeper.operators import RebuildOperator

DOC = """\
Form turns again, with another extractor or another version of it: those that were stored in a window of time.

Start it by hand with `ingested_from` and `ingested_before`, or by `airflow backfill create`, whose runs take a data
interval each. `window` says which window it is and fails before anything is touched if there is none. `rebuild` goes
scope by scope, from the first turn of the window to the last; the old memory is found until the new one replaces it.
A try after a failure goes on where the last one stopped. While the provider does not answer the task fails.

**Parameters**: `namespace`; `ingested_from` and `ingested_before`; `scope` (none: all of them); `turn_budget_seconds`,
how long one turn may take.
"""


def parkkeeper_memory_rebuild(
    *,
    namespace: str | None = None,
    conn_id: str | None = None,
    interval: str = "@daily",
    extractor: str = "chunks",
    llm_conn_id: str | None = None,
    concurrency: int = 1,
    pool: str = DEFAULT_POOL,
) -> DAG:
    """Return the DAG ``parkkeeper_memory_rebuild``, which is started by hand or by a backfill, never by the clock.

    Parameters
    ----------
    namespace
        What the parameter `namespace` proposes; None: ``[parkkeeper] namespace`` of Airflow's configuration.
    conn_id
        The Airflow connection; None: ``[parkkeeper] conn_id`` of the configuration.
    interval
        What a backfill cuts time into: a cron expression, in UTC.
    extractor
        The name of an extractor: ``chunks``, ``llm``, or another that an installed distribution registers.
    llm_conn_id
        The connection of the extractor ``llm``. Whoever starts a run cannot choose another: it says where turns go.
    concurrency
        How many turns are extracted at once.
    pool
        The Airflow pool of the rebuild, which must exist.
    """
    dag = maintenance_dag(
        "parkkeeper_memory_rebuild",
        doc=DOC,
        schedule=timetable(interval),
        family="memory",
        done_within=timedelta(hours=24),
        namespace=namespace,
        conn_id=conn_id,
        params={
            **window_params("ingested_from", "ingested_before", "Stored"),
            "scope": SCOPE,
            "turn_budget_seconds": TURN_BUDGET,
        },
        **BACKFILLED,
    )
    with dag:
        window = window_task("ingested_from", "ingested_before")
        RebuildOperator(
            task_id="rebuild",
            scope="{{ params.scope }}",
            extractor=extractor,
            llm_conn_id=llm_conn_id,
            ingested_from=window["ingested_from"],
            ingested_before=window["ingested_before"],
            turn_budget="{{ params.turn_budget_seconds }}",
            concurrency=concurrency,
            pool=pool,
            execution_timeout=timedelta(hours=6),
            **operator_defaults(conn_id),
        )
    return dag
