"""The DAGs that form turns into memory and look after those that would not form."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from parkkeeper.dags.common import maintenance_dag, operator_defaults
from parkkeeper.operators import FormationBatchOperator, FreshnessOperator, ParkSweepOperator

FORMATION_DOC = """\
Form the turns that are due into memory, then say how far the memory reaches.

`form` takes one batch. A turn that fails spends one of its own attempts and is tried again later; at its last
one it is parked: kept, counted in `parked_total`, and no longer in the way. None of that fails the run, which
fails only when the database does. `freshness` reports `backlog`, `scopes_behind` and the rest over all
scopes.

**Parameters**: `namespace`; `scope` (none: all of them, fairly); `limit`, how many turns at most;
`max_attempts`; `turn_budget_seconds`, how long one turn may take.
"""

SWEEP_DOC = """\
Look after turns that would not form.

Parks what has spent its attempts, returns claims whose worker is gone, and unparks turns whose failure was
the provider's. `parked_total` is how many turns are parked then, over all scopes.

**Parameters**: `namespace`.
"""


def parkkeeper_memory_formation(
    *,
    namespace: str | None = None,
    conn_id: str | None = None,
    schedule: str | None = "*/5 * * * *",
    extractor: str = "chunks",
    llm_conn_id: str | None = None,
    concurrency: int = 1,
) -> DAG:
    """Return the DAG ``parkkeeper_memory_formation``: one batch of formation, then freshness.

    Parameters
    ----------
    namespace
        What scheduled runs look after and the parameter proposes; None: ``[parkkeeper] namespace`` of
        Airflow's configuration.
    conn_id
        The Airflow connection; None: ``[parkkeeper] conn_id`` of the configuration.
    schedule
        When it runs; None: by hand only.
    extractor
        The name of an extractor: ``chunks``, ``llm``, or another that an installed distribution registers.
    llm_conn_id
        The connection of the extractor ``llm``. Whoever starts a run cannot choose another: it says where turns go.
    concurrency
        How many turns are extracted at once.
    """
    dag = maintenance_dag(
        "parkkeeper_memory_formation",
        doc=FORMATION_DOC,
        schedule=schedule,
        family="memory",
        done_within=timedelta(minutes=20),
        namespace=namespace,
        params={
            "scope": Param(
                None,
                type=["null", "string"],
                minLength=1,
                title="Scope",
                description="Form only this scope. Empty: all of them, fairly.",
            ),
            "limit": Param(
                1000,
                type="integer",
                minimum=1,
                maximum=100_000,
                title="Most turns",
                description="How many turns this run tries at most.",
            ),
            "max_attempts": Param(
                6,
                type="integer",
                minimum=1,
                maximum=100,
                title="Attempts",
                description="After how many failed attempts a turn is parked.",
            ),
            "turn_budget_seconds": Param(
                60,
                type="number",
                exclusiveMinimum=0,
                maximum=600,
                title="Turn budget (seconds)",
                description="How long one turn may take.",
            ),
        },
    )
    with dag:
        defaults = operator_defaults(conn_id)
        form = FormationBatchOperator(
            task_id="form",
            extractor=extractor,
            llm_conn_id=llm_conn_id,
            concurrency=concurrency,
            scope="{{ params.scope }}",
            limit="{{ params.limit }}",
            max_attempts="{{ params.max_attempts }}",
            turn_budget="{{ params.turn_budget_seconds }}",
            execution_timeout=timedelta(minutes=15),
            **defaults,
        )
        form >> FreshnessOperator(task_id="freshness", execution_timeout=timedelta(minutes=1), **defaults)
    return dag


def parkkeeper_park_sweep(
    *, namespace: str | None = None, conn_id: str | None = None, schedule: str | None = "0 * * * *"
) -> DAG:
    """Return the DAG ``parkkeeper_park_sweep``: park, return expired claims, unpark.

    Parameters
    ----------
    namespace
        What scheduled runs look after and the parameter proposes; None: ``[parkkeeper] namespace`` of
        Airflow's configuration.
    conn_id
        The Airflow connection; None: ``[parkkeeper] conn_id`` of the configuration.
    schedule
        When it runs; None: by hand only.
    """
    dag = maintenance_dag(
        "parkkeeper_park_sweep",
        doc=SWEEP_DOC,
        schedule=schedule,
        family="memory",
        done_within=timedelta(minutes=30),
        namespace=namespace,
        params={},
    )
    with dag:
        ParkSweepOperator(
            task_id="sweep", execution_timeout=timedelta(minutes=5), **operator_defaults(conn_id)
        )
    return dag
