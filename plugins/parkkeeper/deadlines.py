"""What happens when a run is not done in time: a line in the triggerer's log that names the run.

Airflow keeps a callback as a dotted path, so it lives here and not in a DAG file. The missed deadline itself
is shown by Airflow's UI; a site that wants to be paged gives its DAGs a deadline with a notifier of its own.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import AsyncCallback, DeadlineAlert, DeadlineReference  # type: ignore[attr-defined]

log = logging.getLogger(__name__)


def alert(interval: timedelta) -> DeadlineAlert:
    """Return a deadline that is missed when a run is not done `interval` after it was queued."""
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=interval, callback=AsyncCallback(missed)
    )


async def missed(context: dict[str, Any]) -> None:
    """Log which run missed which deadline; never its configuration, which is the user's.

    Parameters
    ----------
    context
        What Airflow tells of the miss: ``dag_run`` and ``deadline``.
    """
    run, deadline = context["dag_run"], context["deadline"]
    log.warning(
        "Deadline missed: dag_id=%s run_id=%s state=%s deadline=%s",
        run.get("dag_id"),
        run.get("dag_run_id"),
        run.get("state"),
        deadline.get("deadline_time"),
    )
