"""The DAG that looks after a queue: jobs of dead workers, and the ring."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Context, Param, task_group
from airflow.sdk.exceptions import AirflowSkipException

from parkkeeper.dags.common import (
    FINITE,
    end_and_alarm,
    limits,
    maintenance_dag,
    namespaces_task,
    operator_defaults,
)
from parkkeeper.operators import (
    PruneWithCarryOperator,
    PurgeDeadLettersOperator,
    RescueOperator,
    RollupCountsOperator,
    RotateRingOperator,
)

if TYPE_CHECKING:
    from airflow.sdk.definitions.dag import ScheduleArg

DOC = """\
Look after a queue namespace: take back jobs of dead workers, open the ring's next slot, reclaim the sealed ones, fold
the ledger of counts.

`rescue` takes back jobs whose lease has run out: they are tried again, or failed at their cap, and no longer pin
their slot. `rotate` moves jobs that pin old slots out of the ring and opens an empty slot for new jobs. `prune` then
reclaims, oldest first, each sealed slot that nothing uses any more; a failed job inside its retention is carried on
and stays retryable, one past it is dropped and counted in `pruned_failed_total` for ever. `roll_up` folds what was
counted since, so that counting stays cheap. `purge_dead_letters` deletes dead letters that are older than their queue
wants to keep them. The rings of leases and of claims, which hold no jobs, are turned beside that: `rotate_lease`,
`prune_lease`, `rotate_claim`, `prune_claim`. Nothing to do, or locks that another session holds, is a success with that
`outcome`. `work_done` ends the work and fails with any part of it. `lag_check` looks how far behind the namespace is,
whatever became of the work, and fails when a limit is passed.

**Parameters**: `namespace`; `failed_retention_seconds` (none: what the namespace says); `max_pruned_failed`,
above which a slot is left alone and the run fails; `lock_timeout_seconds`; `dry_run`, which reports what
the prunes would do, changes nothing and leaves the other tasks out; and the limits of `lag_check`, each of which may be
empty: `max_ready_age_seconds`, `max_unpruned_age_seconds`, `max_pinned_age_seconds`, `max_blocked`, `max_expiring`.
"""


_LIMITS = {
    "max_ready_age_seconds": (3600, "How long the job that has waited longest may have been claimable."),
    "max_unpruned_age_seconds": (
        3600,
        "How long ago the oldest slot that could be pruned may have been sealed.",
    ),
    "max_pinned_age_seconds": (86_400, "How long ago the oldest slot that a job pins may have been sealed."),
    "max_blocked": (6, "How many prunes in a row may have been blocked."),
    "max_expiring": (None, "How many failed jobs may be about to pass their retention, within a day."),
}


def _leave_out_of_a_dry_run(context: Context) -> None:
    if context["params"]["dry_run"]:
        raise AirflowSkipException("a dry run changes nothing")


def parkkeeper_queue_maintenance(
    *,
    namespace: str | None = None,
    conn_id: str | None = None,
    schedule: ScheduleArg = "*/5 * * * *",
    namespaces_variable: str | None = None,
    alarms: Mapping[str, float | None] | None = None,
) -> DAG:
    """Return the DAG ``parkkeeper_queue_maintenance``: turn each ring, fold the counts, purge dead letters.

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
        Instead of `namespace`: an Airflow Variable that holds a JSON list of namespaces, read by each run. The tasks
        stand in a group then, once for each namespace: what fails in one does not keep the others waiting.
    alarms
        Other limits for `lag_check` than the DAG proposes, by the name of the parameter; None: no such alarm.
    """
    dag = maintenance_dag(
        "parkkeeper_queue_maintenance",
        doc=DOC,
        schedule=schedule,
        family="queue",
        done_within=timedelta(minutes=15),
        namespace=namespace,
        conn_id=conn_id,
        namespaces_variable=namespaces_variable,
        params={
            "failed_retention_seconds": Param(
                None,
                type=["null", "integer"],
                minimum=0,
                title="Failed retention (seconds)",
                description="How long one stays retryable. Empty: what the namespace says. 0: not at all.",
            ),
            "max_pruned_failed": Param(
                None,
                type=["null", "integer"],
                minimum=0,
                title="Most failed jobs to drop",
                description="A slot that would drop more is left alone and the run fails. Empty: no limit.",
            ),
            "lock_timeout_seconds": Param(
                0.05,
                type="number",
                exclusiveMinimum=0,
                maximum=5,
                **FINITE,
                title="Lock timeout (seconds)",
                description="How long to wait for the ring's locks; readers may have to wait as long.",
            ),
            "dry_run": Param(
                False,
                type="boolean",
                title="Dry run",
                description="Report what the prunes would do and change nothing.",
            ),
            **limits(_LIMITS, alarms),
        },
    )
    with dag:
        names = namespaces_task(namespaces_variable)
        if names is None:
            _look_after(operator_defaults(conn_id))
        else:

            @task_group
            def look_after(namespace: str) -> None:
                _look_after(operator_defaults(conn_id) | {"namespace": namespace})

            look_after.expand(namespace=names)
    return dag


def _look_after(session: dict[str, Any]) -> None:
    """Make the tasks that look after one namespace."""
    defaults = session | {"lock_timeout": "{{ params.lock_timeout_seconds }}"}
    rescue = RescueOperator(
        task_id="rescue",
        pre_execute=_leave_out_of_a_dry_run,
        execution_timeout=timedelta(minutes=5),
        **session,
    )
    rotate = RotateRingOperator(
        task_id="rotate",
        pre_execute=_leave_out_of_a_dry_run,
        execution_timeout=timedelta(minutes=1),
        **defaults,
    )
    prune = PruneWithCarryOperator(
        task_id="prune",
        failed_retention="{{ params.failed_retention_seconds }}",
        max_pruned_failed="{{ params.max_pruned_failed }}",
        dry_run="{{ params.dry_run }}",
        trigger_rule="none_failed",
        execution_timeout=timedelta(minutes=5),
        **defaults,
    )
    roll_up = RollupCountsOperator(
        task_id="roll_up",
        pre_execute=_leave_out_of_a_dry_run,
        execution_timeout=timedelta(minutes=5),
        **defaults,
    )
    purge = PurgeDeadLettersOperator(
        task_id="purge_dead_letters",
        execution_timeout=timedelta(minutes=5),
        **session,
    )
    rescue >> rotate >> prune >> roll_up
    # Beside the ring, which neither waits for it nor keeps it waiting.
    rescue >> purge
    work = [roll_up, purge]
    # Beside the queue's own ring: whichever of the three fails, the others turn, and the run fails.
    for ring in ("lease", "claim"):
        rotate_other = RotateRingOperator(
            task_id=f"rotate_{ring}",
            ring=ring,
            pre_execute=_leave_out_of_a_dry_run,
            execution_timeout=timedelta(minutes=1),
            **defaults,
        )
        prune_other = PruneWithCarryOperator(
            task_id=f"prune_{ring}",
            ring=ring,
            dry_run="{{ params.dry_run }}",
            trigger_rule="none_failed",
            execution_timeout=timedelta(minutes=5),
            **defaults,
        )
        rescue >> rotate_other >> prune_other
        work.append(prune_other)
    end_and_alarm(work, _LIMITS, session)
