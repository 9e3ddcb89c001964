"""The DAG that puts failed jobs back, of a window of time."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from parkkeeper.dags.common import NAME_PATTERN, maintenance_dag, operator_defaults
from parkkeeper.dags.window import BACKFILLED, timetable, window_params, window_task
from parkkeeper.operators import RetryFailedOperator

DOC = """\
Put failed jobs back as if they were new: those that failed in a window of time.

Start it by hand with `finalized_from` and `finalized_before`, or by `airflow backfill create`, whose runs take a data
interval each. `window` says which window it is and fails before anything is touched if there is none. `redrive` puts
back what is still retryable: a job past its failed retention is gone, and counted in `pruned_failed_total`.

**Parameters**: `namespace`; `finalized_from` and `finalized_before`; `queue` or `kind` (none: every queue); `limit`,
how many jobs at most; `dry_run`, which counts what would be tried and puts nothing back.
"""


def parkkeeper_queue_redrive(
    *, namespace: str | None = None, conn_id: str | None = None, interval: str = "@daily"
) -> DAG:
    """Return the DAG ``parkkeeper_queue_redrive``, which is started by hand or by a backfill, never by the clock.

    Parameters
    ----------
    namespace
        What the parameter `namespace` proposes; None: ``[parkkeeper] namespace`` of Airflow's configuration.
    conn_id
        The Airflow connection; None: ``[parkkeeper] conn_id`` of the configuration.
    interval
        What a backfill cuts time into: a cron expression, in UTC.
    """
    dag = maintenance_dag(
        "parkkeeper_queue_redrive",
        doc=DOC,
        schedule=timetable(interval),
        family="queue",
        done_within=timedelta(hours=2),
        namespace=namespace,
        conn_id=conn_id,
        params={
            **window_params("finalized_from", "finalized_before", "Failed"),
            "queue": Param(
                None,
                type=["null", "string"],
                maxLength=200,
                pattern=NAME_PATTERN,
                title="Queue",
                description="Only jobs of this queue. Empty: of every one.",
            ),
            "kind": Param(
                None,
                type=["null", "string"],
                maxLength=200,
                pattern=NAME_PATTERN,
                title="Kind",
                description="Only jobs of this kind, in whatever queue; not beside a queue.",
            ),
            "limit": Param(
                None,
                type=["null", "integer"],
                minimum=1,
                title="Most jobs",
                description="How many jobs at most, those that failed first in front. Empty: all.",
            ),
            "dry_run": Param(
                False,
                type="boolean",
                title="Dry run",
                description="Count what would be tried; write nothing.",
            ),
        },
        **BACKFILLED,
    )
    with dag:
        window = window_task("finalized_from", "finalized_before")
        RetryFailedOperator(
            task_id="redrive",
            job_queue="{{ params.queue }}",
            kind="{{ params.kind }}",
            finalized_from=window["finalized_from"],
            finalized_before=window["finalized_before"],
            limit="{{ params.limit }}",
            dry_run="{{ params.dry_run }}",
            execution_timeout=timedelta(minutes=60),
            **operator_defaults(conn_id),
        )
    return dag
