"""What happens when a run is not done in time: it is logged, recorded in its namespace, and a notifier is told.

Airflow keeps a callback as a dotted path, so it lives here and not in a DAG file. The triggerer calls it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from pkgutil import resolve_name
from typing import Any

import psycopg
from airflow.sdk import AsyncCallback, DeadlineAlert, DeadlineReference, Variable  # type: ignore[attr-defined]

from parkkeeper.errors import InvalidArgument, InvalidNamespace, ParkkeeperError
from parkkeeper.operators import arguments
from parkkeeper.provider import option

log = logging.getLogger(__name__)

#: What is told of a miss: names, a state and a time; never the configuration of the run, which is the user's.
Miss = dict[str, Any]


def alert(
    interval: timedelta,
    namespace: str | None = None,
    conn_id: str | None = None,
    namespaces_variable: str | None = None,
) -> DeadlineAlert:
    """Return a deadline that is missed when a run is not done `interval` after it was queued.

    Parameters
    ----------
    namespace
        Where a miss is recorded, unless the run has a parameter `namespace` of its own; None: nowhere else.
    conn_id
        The Airflow connection of the namespace; None: ``[parkkeeper] conn_id`` of the configuration.
    namespaces_variable
        Instead of a namespace: the Airflow Variable that lists those of the run.
    """
    kwargs = {"namespace": namespace, "conn_id": conn_id, "namespaces_variable": namespaces_variable}
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=interval,
        callback=AsyncCallback(missed, kwargs=kwargs),
    )


async def missed(
    context: dict[str, Any],
    namespace: str | None = None,
    conn_id: str | None = None,
    namespaces_variable: str | None = None,
) -> None:
    """Log which run missed which deadline, record it, and let the site's notifier tell of it.

    Parameters
    ----------
    context
        What Airflow tells of the miss: ``dag_run`` and ``deadline``.
    namespace, conn_id, namespaces_variable
        As :func:`alert` was given them.

    Raises
    ------
    ParkkeeperError
        The miss could not be recorded everywhere. It was logged, and the notifier told, all the same.
    """
    run, deadline = context["dag_run"], context["deadline"]
    miss = {
        "dag_id": run.get("dag_id"),
        "run_id": run.get("dag_run_id"),
        "state": run.get("state"),
        "deadline": deadline.get("deadline_time"),
    }
    log.warning("Deadline missed: %s", " ".join(f"{name}={value}" for name, value in miss.items()))
    chosen = (run.get("conf") or {}).get("namespace") or namespace
    # In a thread: it waits for a database, and the triggers of others share this loop.
    recorded = asyncio.to_thread(_record, miss, chosen, conn_id or option("conn_id"), namespaces_variable)
    not_recorded, not_told = await asyncio.gather(recorded, _notify(miss), return_exceptions=True)
    if not_recorded is None and not_told is not None:
        raise not_told
    if not_told is not None:
        log.error("The notifier was not told of the missed deadline: %s", type(not_told).__name__)
    if not_recorded is not None:
        raise not_recorded


def named_by(variable: str) -> list[str]:
    """Return the namespaces that an Airflow Variable names, one at least.

    Raises
    ------
    InvalidArgument
        There is no such Variable, or it is no list of names, or an empty one.
    """
    names = arguments.listed(f"Variable {variable}", Variable.get(variable, default=None))
    if not names:
        raise InvalidArgument(f"Variable {variable} names no namespace: set it to a JSON list of names")
    return names


def _record(miss: Miss, namespace: str | None, conn_id: str, variable: str | None) -> None:
    """Write the row of a miss into the namespaces of its run; without any there is nowhere to write it."""
    from parkkeeper import maintenance
    from parkkeeper.hooks import ParkkeeperHook
    from parkkeeper.namespace import Namespace

    names = [namespace] if namespace else named_by(variable) if variable else []
    if not names:
        return
    figures = {"state": miss["state"], "deadline": str(miss["deadline"])}
    run = maintenance.AirflowRun(miss["dag_id"], miss["run_id"])
    lost: list[str] = []
    with ParkkeeperHook(conn_id).session(
        application_name=f"af:{miss['dag_id']}:deadline:{miss['run_id']}",
        statement_timeout=timedelta(seconds=30),
    ) as connection:
        now = maintenance.database_time(connection)
        for name in names:
            try:
                maintenance.record_run(
                    connection,
                    Namespace.of(name),
                    "deadline",
                    "missed",
                    started_at=now,
                    figures=figures,
                    run=run,
                )
            except InvalidNamespace as error:
                lost.append(f"{name} ({type(error).__name__})")
            except psycopg.Error as error:
                lost.append(f"{name} ({error.sqlstate or type(error).__name__})")
    if lost:
        raise ParkkeeperError(f"a missed deadline of {miss['dag_id']} is not recorded in {', '.join(lost)}")


async def _notify(miss: Miss) -> None:
    """Tell of a miss by the notifier that the site has configured, if any; it gets nothing but the miss itself."""
    if path := option("deadline_notifier"):
        notifier = resolve_name(path)(**json.loads(option("deadline_notifier_kwargs") or "{}"))
        notifier.context = dict(miss)
        await notifier
