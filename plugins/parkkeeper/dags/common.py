"""What the DAGs have in common; nothing here or beside it asks a database while a DAG file is read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.sdk import DAG, Param

from parkkeeper.deadlines import alert
from parkkeeper.provider import option

NAMESPACE_PATTERN = r"^(?!pg_)(?!public$)(?!information_schema$)[a-z][a-z0-9_]{0,47}$"


def maintenance_dag(
    dag_id: str,
    *,
    doc: str,
    schedule: str | None,
    family: str,
    done_within: timedelta,
    namespace: str | None,
    params: dict[str, Param],
) -> DAG:
    """Return an empty DAG with the retries, the deadline and the parameter `namespace` that all of them have.

    Parameters
    ----------
    done_within
        The deadline of a run, from the moment at which it was queued.
    namespace
        What the parameter proposes and scheduled runs use; None: what the site has configured.
    """
    return DAG(
        dag_id,
        description=doc.strip().splitlines()[0],
        doc_md=doc,
        schedule=schedule,
        start_date=pendulum.datetime(2025, 1, 1, tz="UTC"),
        catchup=False,
        max_active_runs=1,
        tags=["parkkeeper", *([family] if family else [])],
        deadline=alert(done_within),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        params={
            "namespace": Param(
                namespace or option("namespace"),
                type="string",
                pattern=NAMESPACE_PATTERN,
                title="Namespace",
                description="The schema to work on: a-z, 0-9 and _, starting with a letter, 48 at most.",
            ),
            **params,
        },
    )


def operator_defaults(conn_id: str | None) -> dict[str, Any]:
    """Return the arguments that every operator of these DAGs is given."""
    return {"namespace": "{{ params.namespace }}", "conn_id": conn_id or option("conn_id")}
