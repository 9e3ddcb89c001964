"""What the DAGs have in common; nothing here or beside it asks a database while a DAG file is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pendulum
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Context, Param, XComArg, get_current_context, task
from airflow.sdk.exceptions import AirflowException

from parkkeeper.deadlines import alert, named_by
from parkkeeper.errors import InvalidArgument
from parkkeeper.operators import LagCheckOperator, ParkkeeperOperator
from parkkeeper.operators.errors import translated
from parkkeeper.provider import option

if TYPE_CHECKING:
    import psycopg
    from airflow.sdk.definitions.dag import ScheduleArg

NAMESPACE_PATTERN = r"^(?!pg_)(?!public$)(?!information_schema$)[a-z][a-z0-9_]{0,47}$"

#: A name of a queue, a kind or a scope. Templates make `None` of nothing, so that the name would mean all of them.
NAME_PATTERN = r"^(?!None$)\S(.*\S)?$"

#: In the schema of a number: refuses infinity, and NaN, which passes every bound and reaches the task as nothing.
FINITE: dict[str, Any] = {"not": {"type": "number", "exclusiveMinimum": 2**53}}

#: Limits of the alarms by the name of their parameter: what is proposed (None: no alarm), and what it is about.
Limits = Mapping[str, tuple[float | None, str]]

#: Where tasks run that a site has given no pool of its own: a pool that does not exist keeps them waiting for ever.
DEFAULT_POOL = "default_pool"


def maintenance_dag(
    dag_id: str,
    *,
    doc: str,
    schedule: ScheduleArg,
    family: str,
    done_within: timedelta | None,
    namespace: str | None,
    params: dict[str, Param],
    conn_id: str | None = None,
    namespaces_variable: str | None = None,
    **more: Any,
) -> DAG:
    """Return an empty DAG with the retries, the deadline and the parameter `namespace` that all of them have.

    Parameters
    ----------
    done_within
        The deadline of a run, from the moment at which it was queued; None for a run that waits for a person.
    namespace
        What the parameter proposes and scheduled runs use; None: what the site has configured.
    namespaces_variable
        Instead: the Airflow Variable that names the namespaces of scheduled runs. The parameter proposes none then.
    more
        Further arguments of Airflow's DAG.
    """
    default = None if namespaces_variable else namespace or option("namespace")
    every = f" Empty: all that the Variable {namespaces_variable} names." if namespaces_variable else ""
    return DAG(
        dag_id,
        description=doc.strip().splitlines()[0],
        doc_md=doc,
        schedule=schedule,
        start_date=pendulum.datetime(2025, 1, 1, tz="UTC"),
        catchup=False,
        max_active_runs=1,
        tags=["parkkeeper", *([family] if family else [])],
        deadline=alert(done_within, default, conn_id, namespaces_variable) if done_within else None,
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        params={
            "namespace": Param(
                default,
                type=["null", "string"] if namespaces_variable else "string",
                pattern=NAMESPACE_PATTERN,
                title="Namespace",
                description="The schema to work on: a-z, 0-9 and _, starting with a letter, 48 at most."
                + every,
            ),
            # Airflow writes a run's values into these: what two DAGs share must be two.
            **deepcopy(params),
        },
        **more,
    )


def operator_defaults(conn_id: str | None) -> dict[str, Any]:
    """Return the arguments that every operator of these DAGs is given."""
    return {"namespace": "{{ params.namespace }}", "conn_id": conn_id or option("conn_id")}


def chosen_namespaces(one: str | None, variable: str) -> list[str]:
    """Return which namespaces a run looks after: the one that it is given, else those that the Variable names.

    Raises
    ------
    AirflowFailException
        There is no such Variable, or it is no list of names, or an empty one.
    """
    if one is not None:
        return [one]
    with translated():
        return named_by(variable)


def namespaces_task(variable: str | None) -> XComArg | None:
    """Return the task that says which namespaces a run looks after; None when a parameter says it."""
    if variable is None:
        return None

    @task(task_id="namespaces", execution_timeout=timedelta(minutes=1))
    def namespaces() -> list[str]:
        return chosen_namespaces(get_current_context()["params"]["namespace"], variable)

    return namespaces()


def each(operator: type[ParkkeeperOperator], namespaces: XComArg | None, **given: Any) -> Any:
    """Return one task for the namespace of the parameter, or one for each of `namespaces`."""
    if namespaces is None:
        return operator(**given)
    del given["namespace"]
    return operator.partial(**given).expand(namespace=namespaces)


def fail_on(*outcomes: str) -> Callable[[Context, Any], None]:
    """Return a task's `post_execute` that fails it with one of `outcomes`: what was asked for is not done."""

    def fail(context: Context, figures: Any) -> None:
        if figures["outcome"] in outcomes:
            raise AirflowException(f"outcome {figures['outcome']}: what was asked for is not done")

    return fail


def limits(proposed: Limits, chosen: Mapping[str, float | None] | None) -> dict[str, Param]:
    """Return the parameters of the limits of ``lag_check``: what the site has chosen, else what is proposed.

    Raises
    ------
    InvalidArgument
        `chosen` has one that the DAG does not have.
    """
    found = {name: limit for name, (limit, _) in proposed.items()}
    for name, limit in (chosen or {}).items():
        if name not in found:
            raise InvalidArgument(f"alarm {name!r} is refused: one of {', '.join(found)}")
        found[name] = limit
    return {
        name: Param(
            limit,
            type=["null", "number" if name.endswith(("_seconds", "_share")) else "integer"],
            minimum=0,
            maximum=1 if name.endswith("_share") else 2**53,
            **FINITE,
            title=f"Alarm: {name.removesuffix('_seconds').replace('_', ' ')}",
            description=f"{proposed[name][1]} Above it lag_check fails. Empty: no alarm.",
        )
        for name, limit in found.items()
    }


def end_and_alarm(
    work: Sequence[Any], proposed: Limits, session: dict[str, Any], namespaces: XComArg | None = None
) -> None:
    """Make the two leaves of a DAG: the end of its work, and the alarm, of which none hides the other.

    Were the alarm behind the work alone, a skipped task would silence it; were it the only leaf, a run whose work
    failed would end as a success.
    """
    end = EmptyOperator(task_id="work_done", trigger_rule="none_failed")
    alarm = each(
        LagCheckOperator,
        namespaces,
        task_id="lag_check",
        trigger_rule="all_done",
        execution_timeout=timedelta(minutes=2),
        **{name.removesuffix("_seconds"): f"{{{{ params.{name} }}}}" for name in proposed},
        **session,
    )
    for last in work:
        last >> [end, alarm]


@contextmanager
def reading(conn_id: str) -> Iterator[psycopg.Connection[Any]]:
    """Open a session of a task that looks and writes nothing; errors become Airflow's."""
    # Here and not above: the hook's imports would double what a DAG file takes to parse.
    from parkkeeper.hooks import ParkkeeperHook

    ti = get_current_context()["ti"]
    with (
        translated(),
        ParkkeeperHook(conn_id).session(
            application_name=f"af:{ti.dag_id}:{ti.task_id}:{ti.run_id}:{ti.try_number}",
            statement_timeout=timedelta(minutes=5),
            read_only=True,
        ) as connection,
    ):
        yield connection
