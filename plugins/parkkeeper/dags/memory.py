"""The DAGs that form turns into memory and look after those that would not form."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, get_current_context, task

from parkkeeper.dags.common import (
    DEFAULT_POOL,
    FINITE,
    NAME_PATTERN,
    each,
    end_and_alarm,
    limits,
    maintenance_dag,
    namespaces_task,
    operator_defaults,
    reading,
)
from parkkeeper.errors import ParkkeeperError
from parkkeeper.memory import MemoryStore, SweepPolicy
from parkkeeper.memory.extractors import ERROR_CLASSES
from parkkeeper.operators import FormationBatchOperator, FreshnessOperator, ParkSweepOperator

if TYPE_CHECKING:
    from airflow.sdk.definitions.dag import ScheduleArg

log = logging.getLogger(__name__)

FORMATION_DOC = """\
Form the turns that are due into memory, then say how far the memory reaches.

`plan` counts the scopes that have a turn to be formed and shares them out. Each `form` takes one batch of its share.
A turn that fails spends one of its own attempts and is tried again later; at its last one it is parked: kept, counted
in `parked_total`, and no longer in the way. None of that fails the run, which fails only when the database does.
`freshness` reports `backlog`, `scopes_behind` and the rest over all scopes. `work_done` ends the work and fails with
any part of it. `lag_check` looks how far behind the namespace is, whatever became of the work, and fails when a limit
is passed.

**Parameters**: `namespace`; `scope` (none: all of them, fairly); `limit`, how many turns a batch tries at most;
`scopes_per_batch` and `max_batches`, how the scopes are shared out; `max_attempts`; `turn_budget_seconds`, how long
one turn may take; and the limits of `lag_check`, each of which may be empty: `max_pending_age_seconds`,
`max_parked_share`.
"""

SWEEP_DOC = """\
Look after turns that would not form.

Parks what has spent its attempts, returns claims whose worker is gone, and unparks turns whose failure was
the provider's. `parked_total` is how many turns are parked then, over all scopes.

**Parameters**: `namespace`; `scope` (none: all of them); `max_attempts`, at which a turn is parked; `unpark_classes`,
the classes of failure whose turns are unparked (none at all: an empty list); `parked_for_seconds`, how long they stay
parked at least; `max_park_count`, above which they stay parked; `unpark_limit`; `dry_run`, which counts and writes
nothing.
"""

_LIMITS = {
    "max_pending_age_seconds": (
        3600,
        "How long ago the oldest turn that is still to be formed may have been stored.",
    ),
    "max_parked_share": (0.25, "Which share of the turns that there are may be parked, from 0 to 1."),
}
SCOPE = Param(
    None,
    type=["null", "string"],
    maxLength=200,
    pattern=NAME_PATTERN,
    title="Scope",
    description="Only this scope. Empty: all of them.",
)
TURN_BUDGET = Param(
    60,
    type="number",
    exclusiveMinimum=0,
    maximum=600,
    **FINITE,
    title="Turn budget (seconds)",
    description="How long one turn may take.",
)
_MAX_ATTEMPTS = Param(
    6,
    type="integer",
    minimum=1,
    maximum=100,
    title="Attempts",
    description="After how many failed attempts a turn is parked.",
)


def parkkeeper_memory_formation(
    *,
    namespace: str | None = None,
    conn_id: str | None = None,
    schedule: ScheduleArg = "*/5 * * * *",
    namespaces_variable: str | None = None,
    extractor: str = "chunks",
    llm_conn_id: str | None = None,
    concurrency: int = 1,
    pool: str = DEFAULT_POOL,
    alarms: Mapping[str, float | None] | None = None,
) -> DAG:
    """Return the DAG ``parkkeeper_memory_formation``: batches of formation over shares of the scopes, then freshness.

    Parameters
    ----------
    namespace
        What scheduled runs look after and the parameter proposes; None: ``[parkkeeper] namespace`` of
        Airflow's configuration.
    conn_id
        The Airflow connection; None: ``[parkkeeper] conn_id`` of the configuration.
    schedule
        When it runs; None: by hand only.
    namespaces_variable
        Instead of `namespace`: an Airflow Variable that holds a JSON list of namespaces, read by each run.
    extractor
        The name of an extractor: ``chunks``, ``llm``, or another that an installed distribution registers.
    llm_conn_id
        The connection of the extractor ``llm``. Whoever starts a run cannot choose another: it says where turns go.
    concurrency
        How many turns each batch extracts at once.
    pool
        The Airflow pool of the batches, which must exist: its slots times `concurrency` are the calls to a provider
        at once.
    alarms
        Other limits for `lag_check` than the DAG proposes, by the name of the parameter; None: no such alarm.
    """
    dag = maintenance_dag(
        "parkkeeper_memory_formation",
        doc=FORMATION_DOC,
        schedule=schedule,
        family="memory",
        done_within=timedelta(minutes=20),
        namespace=namespace,
        conn_id=conn_id,
        namespaces_variable=namespaces_variable,
        params={
            "scope": SCOPE,
            "limit": Param(
                1000,
                type="integer",
                minimum=1,
                maximum=100_000,
                title="Most turns",
                description="How many turns a batch tries at most.",
            ),
            "scopes_per_batch": Param(
                500,
                type="integer",
                minimum=1,
                title="Scopes a batch",
                description="How many scopes with a turn to be formed make another batch.",
            ),
            "max_batches": Param(
                24,
                type="integer",
                minimum=1,
                maximum=500,
                title="Most batches",
                description="Into how many batches the scopes of a namespace are shared out at most.",
            ),
            "max_attempts": _MAX_ATTEMPTS,
            "turn_budget_seconds": TURN_BUDGET,
            **limits(_LIMITS, alarms),
        },
    )
    with dag:
        defaults = operator_defaults(conn_id)

        @task(execution_timeout=timedelta(minutes=5))
        def plan(names: list[str] | None) -> list[dict[str, Any]]:
            return _batches(defaults["conn_id"], names)

        namespaces = namespaces_task(namespaces_variable)
        form = FormationBatchOperator.partial(
            task_id="form",
            extractor=extractor,
            llm_conn_id=llm_conn_id,
            concurrency=concurrency,
            scope="{{ params.scope }}",
            limit="{{ params.limit }}",
            max_attempts="{{ params.max_attempts }}",
            turn_budget="{{ params.turn_budget_seconds }}",
            pool=pool,
            execution_timeout=timedelta(minutes=15),
            conn_id=defaults["conn_id"],
        ).expand_kwargs(plan(namespaces))  # type: ignore[arg-type]
        freshness = each(
            FreshnessOperator,
            namespaces,
            task_id="freshness",
            execution_timeout=timedelta(minutes=1),
            **defaults,
        )
        form >> freshness
        end_and_alarm([freshness], _LIMITS, defaults, namespaces)
    return dag


def _batches(conn_id: str, names: list[str] | None) -> list[dict[str, Any]]:
    """Return which shard of which namespace each batch takes: one a namespace at least, which says that it has none."""
    params = get_current_context()["params"]
    batches: list[dict[str, Any]] = []
    for name in names or [params["namespace"]]:
        with reading(conn_id) as connection:
            try:
                due = 1 if params["scope"] else MemoryStore(connection, name).due_scopes()
            except ParkkeeperError as error:
                # The others are formed; this one's batch meets the same and fails by it.
                log.warning("Namespace %s cannot be looked at: %s: %s", name, type(error).__name__, error)
                due = 0
        shards = min(params["max_batches"], max(1, math.ceil(due / params["scopes_per_batch"])))
        log.info("Namespace %s: due_scopes=%d, batches=%d", name, due, shards)
        batches += [{"namespace": name, "shard": shard, "shards": shards} for shard in range(shards)]
    return batches


def parkkeeper_park_sweep(
    *,
    namespace: str | None = None,
    conn_id: str | None = None,
    schedule: ScheduleArg = "0 * * * *",
    namespaces_variable: str | None = None,
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
    namespaces_variable
        Instead of `namespace`: an Airflow Variable that holds a JSON list of namespaces, read by each run.
    """
    policy = SweepPolicy()
    dag = maintenance_dag(
        "parkkeeper_park_sweep",
        doc=SWEEP_DOC,
        schedule=schedule,
        family="memory",
        done_within=timedelta(minutes=30),
        namespace=namespace,
        conn_id=conn_id,
        namespaces_variable=namespaces_variable,
        params={
            "scope": SCOPE,
            "max_attempts": _MAX_ATTEMPTS,
            "unpark_classes": Param(
                list(policy.unpark_classes),
                type="array",
                items={"type": "string", "enum": list(ERROR_CLASSES)},
                uniqueItems=True,
                title="Classes to unpark",
                description="Turns that were parked for one of these classes of failure are unparked.",
            ),
            "parked_for_seconds": Param(
                None,
                type=["null", "number"],
                minimum=0,
                **FINITE,
                title="Parked for (seconds)",
                description="Turns that were parked less than this ago stay parked. Empty: however short.",
            ),
            "max_park_count": Param(
                policy.max_park_count,
                type="integer",
                minimum=1,
                title="Parks",
                description="A turn that was parked more often than this stays parked.",
            ),
            "unpark_limit": Param(
                policy.unpark_limit, type="integer", minimum=1, title="Most turns to unpark"
            ),
            "dry_run": Param(
                False, type="boolean", title="Dry run", description="Count what would be done; write nothing."
            ),
        },
    )
    with dag:
        each(
            ParkSweepOperator,
            namespaces_task(namespaces_variable),
            task_id="sweep",
            scope="{{ params.scope }}",
            max_attempts="{{ params.max_attempts }}",
            unpark_classes="{{ params.unpark_classes | tojson }}",
            parked_for="{{ params.parked_for_seconds }}",
            max_park_count="{{ params.max_park_count }}",
            unpark_limit="{{ params.unpark_limit }}",
            dry_run="{{ params.dry_run }}",
            execution_timeout=timedelta(minutes=5),
            **operator_defaults(conn_id),
        )
    return dag
