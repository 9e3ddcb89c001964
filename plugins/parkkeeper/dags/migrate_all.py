"""The DAG that keeps many namespaces up to date, a chunk a task."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task

from parkkeeper.dags.common import FINITE, maintenance_dag
from parkkeeper.deadlines import alert
from parkkeeper.errors import InvalidArgument
from parkkeeper.operators import MigrateOperator
from parkkeeper.provider import option

DOC = """\
Bring many namespaces up to date, first a few as canaries.

Run it by hand after each upgrade of the package. It finds the namespaces, and fails if there is none; it migrates the
canaries, and, if all of them succeed, the others in chunks, four tasks at a time at most. A namespace that fails fails
its chunk's task, whose log names it and the reason; all others are done. Clear the tasks that failed to go on.

**Parameters**: `canary`, how many to do first; `chunk`, how many namespaces a task does; `lock_timeout_seconds`, how
long a statement waits for a lock, and writers behind it.
"""


def parkkeeper_migrate_all(
    *,
    family: str,
    pattern: str | None = None,
    query: str | None = None,
    conn_id: str | None = None,
    dag_id: str = "parkkeeper_migrate_all",
) -> DAG:
    """Return a DAG, started by hand, that migrates `family` in all namespaces that a pattern or a query finds.

    Parameters
    ----------
    family
        ``queue`` or ``memory``.
    pattern
        Of the names of namespaces that have the family, with ``*`` and ``?``.
    query
        Instead of a pattern: a SELECT of one column that returns names.
    conn_id
        The Airflow connection; None: ``[parkkeeper] conn_id`` of the configuration.
    dag_id
        Another one, for a second DAG.
    """
    connection_id = conn_id or option("conn_id")
    dag = maintenance_dag(
        dag_id,
        doc=DOC,
        schedule=None,
        family=family,
        done_within=None,
        namespace=None,
        params={
            "canary": Param(2, type="integer", minimum=0, title="Canaries"),
            "chunk": Param(50, type="integer", minimum=1, maximum=1000, title="Namespaces a task"),
            "lock_timeout_seconds": Param(
                2, type="number", exclusiveMinimum=0, title="Lock timeout", **FINITE
            ),
        },
    )
    del dag.params["namespace"]
    dag.deadline = alert(timedelta(hours=6))  # of no one namespace
    with dag:

        @task(execution_timeout=timedelta(minutes=10))
        def find() -> list[str]:
            return _found(connection_id, family, pattern, query)

        @task
        def chunks(names: list[str], *, canaries: bool) -> list[list[str]]:
            params = get_current_context()["params"]
            first, rest = names[: params["canary"]], names[params["canary"] :]
            if canaries:
                return [first] if first else []
            return [rest[at : at + params["chunk"]] for at in range(0, len(rest), params["chunk"])]

        common: dict[str, Any] = {
            "family": family,
            "conn_id": connection_id,
            "parallel": 1,
            "lock_timeout": "{{ params.lock_timeout_seconds }}",
            "execution_timeout": timedelta(hours=2),
        }
        names = find()
        first = MigrateOperator.partial(task_id="migrate_canaries", **common).expand(
            namespaces=chunks.override(task_id="canaries")(names, canaries=True)  # type: ignore[arg-type]
        )
        # Each task has one session: the four of them together take the locks of four namespaces.
        rest = MigrateOperator.partial(
            task_id="migrate", max_active_tis_per_dag=4, trigger_rule="none_failed", **common
        ).expand(
            namespaces=chunks.override(task_id="chunks")(names, canaries=False)  # type: ignore[arg-type]
        )
        first >> rest
    return dag


def _found(conn_id: str, family: str, pattern: str | None, query: str | None) -> list[str]:
    from parkkeeper import migrations
    from parkkeeper.hooks import ParkkeeperHook
    from parkkeeper.operators.errors import translated

    with (
        translated(),
        ParkkeeperHook(conn_id).session(
            application_name="parkkeeper-migrate-all", statement_timeout=timedelta(minutes=5)
        ) as connection,
    ):
        names = migrations.find_namespaces(connection, family, pattern=pattern, query=query)
        if not names:
            raise InvalidArgument(
                f"no namespace of family {family} is found by "
                + (f"pattern {pattern!r}" if query is None else "the query")
                + ": a run that migrates none is no success; look at it and at the connection"
            )
        return names
