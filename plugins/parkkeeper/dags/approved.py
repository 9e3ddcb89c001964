"""The DAGs that destroy something on purpose: a person is shown the figures first, and approves or rejects them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param

from parkkeeper.dags.common import FINITE, fail_on, maintenance_dag, operator_defaults
from parkkeeper.operators import EraseOperator, PruneWithCarryOperator

ERASURE_DOC = """\
Carry out an erasure that was requested, once somebody has approved it.

The request is made from the command line (`parkkeeper memory request-erasure`) or from Python, and says what is to
go. This DAG, its runs and the approval know its `request_id` and how many turns it is about, and nothing else. `look`
counts them, `approve` waits for a person, `erase` deletes what is there then. For a request that was carried out the
tasks are skipped. Rejected, or not answered in time, the run fails and nothing was erased.

**Parameters**: `namespace`; `request_id`.
"""

PRUNE_DOC = """\
Prune beyond the guard, once somebody has approved how many failed jobs that drops.

`look` counts, without a change, what the prune of the oldest reclaimable slot would drop; when there is nothing to
reclaim, all is skipped. `approve` shows the figures and waits for a person. `prune` then drops as many failed jobs as
were approved, and no more: if more are past their retention by then, the slot is left as it is and the run fails. It is
tried once, since another try would not know what a lost one had dropped: start a new run, which counts anew.
Rejected, or not answered in time, the run fails and nothing was dropped.

**Parameters**: `namespace`; `failed_retention_seconds` (none: what the namespace says); `lock_timeout_seconds`.
"""


def parkkeeper_erasure(
    *,
    namespace: str | None = None,
    conn_id: str | None = None,
    answer_within: timedelta = timedelta(days=7),
) -> DAG:
    """Return the DAG ``parkkeeper_erasure``, which is started by hand and waits for an approval.

    Parameters
    ----------
    namespace
        What the parameter `namespace` proposes; None: ``[parkkeeper] namespace`` of Airflow's configuration.
    conn_id
        The Airflow connection; None: ``[parkkeeper] conn_id`` of the configuration.
    answer_within
        How long to wait for the approval before the run fails.
    """
    dag = maintenance_dag(
        "parkkeeper_erasure",
        doc=ERASURE_DOC,
        schedule=None,
        family="memory",
        done_within=None,
        namespace=namespace,
        params={
            "request_id": Param(
                type="string",
                pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
                title="Request",
                description="The id that the request of the erasure returned; never a person's name.",
            )
        },
    )
    with dag:
        defaults = operator_defaults(conn_id) | {"request_id": "{{ params.request_id }}"}
        look = EraseOperator(
            task_id="look",
            dry_run=True,
            skip_on_outcome="noop",
            execution_timeout=timedelta(minutes=10),
            **defaults,
        )
        approve = _approval(
            subject="Erase what request {{ params.request_id }} asks for in namespace {{ params.namespace }}?",
            body="{{ ti.xcom_pull(task_ids='look', key='matched') }} turns, with all that was made of them. "
            "This cannot be undone.",
            answer_within=answer_within,
        )
        erase = EraseOperator(task_id="erase", execution_timeout=timedelta(hours=1), **defaults)
        look >> approve >> erase
    return dag


def parkkeeper_queue_prune_approved(
    *,
    namespace: str | None = None,
    conn_id: str | None = None,
    answer_within: timedelta = timedelta(days=1),
) -> DAG:
    """Return the DAG ``parkkeeper_queue_prune_approved``, which is started by hand and waits for an approval.

    Parameters
    ----------
    namespace
        What the parameter `namespace` proposes; None: ``[parkkeeper] namespace`` of Airflow's configuration.
    conn_id
        The Airflow connection; None: ``[parkkeeper] conn_id`` of the configuration.
    answer_within
        How long to wait for the approval before the run fails.
    """
    dag = maintenance_dag(
        "parkkeeper_queue_prune_approved",
        doc=PRUNE_DOC,
        schedule=None,
        family="queue",
        done_within=None,
        namespace=namespace,
        params={
            "failed_retention_seconds": Param(
                None,
                type=["null", "integer"],
                minimum=0,
                title="Failed retention (seconds)",
                description="How long one stays retryable. Empty: what the namespace says. 0: not at all.",
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
        },
    )
    with dag:
        defaults = operator_defaults(conn_id) | {
            "failed_retention": "{{ params.failed_retention_seconds }}",
            "lock_timeout": "{{ params.lock_timeout_seconds }}",
            "execution_timeout": timedelta(minutes=10),
        }
        look = PruneWithCarryOperator(
            task_id="look",
            dry_run=True,
            skip_on_outcome="noop",
            post_execute=fail_on("blocked", "skipped_active"),
            **defaults,
        )
        approve = _approval(
            subject="Drop {{ ti.xcom_pull(task_ids='look', key='pruned_failed') }} failed jobs from namespace "
            "{{ params.namespace }}?",
            body="Slot {{ ti.xcom_pull(task_ids='look', key='slot') }}: "
            "{{ ti.xcom_pull(task_ids='look', key='pruned_failed') }} failed jobs past their retention go and can "
            "never be retried; {{ ti.xcom_pull(task_ids='look', key='carried_failed') }} stay. This cannot be undone.",
            answer_within=answer_within,
        )
        prune = PruneWithCarryOperator(
            task_id="prune",
            approved_pruned_failed="{{ ti.xcom_pull(task_ids='look', key='pruned_failed') }}",
            # Another try would not know what the lost one had dropped, and might drop as many again.
            retries=0,
            post_execute=fail_on("blocked", "skipped_active"),
            **defaults,
        )
        look >> approve >> prune
    return dag


def _approval(*, subject: str, body: str, answer_within: timedelta) -> Any:
    """Return the task that waits for a person; without an approval what follows is not done, and the run says so."""
    return ApprovalOperator(
        task_id="approve",
        subject=subject,
        body=body,
        response_timeout=answer_within,
        # Else a rejected run would end as a success of which nothing was done.
        fail_on_reject=True,
        retries=0,
    )
