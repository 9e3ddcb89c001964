"""The window of time that a run works on: its parameters when it is started by hand, a data interval in a backfill."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, get_current_context, task

from parkkeeper.errors import InvalidArgument
from parkkeeper.operators import arguments
from parkkeeper.operators.errors import translated
from parkkeeper.timetables import BackfillTimetable

MOMENT = r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)$"

#: What DAGs with a window are given: what a backfill cuts time into, and which runs may be.
BACKFILLED: dict[str, Any] = {"allowed_run_types": ["manual", "backfill"]}


def timetable(interval: str) -> BackfillTimetable:
    """Return the timetable that cuts time into intervals, e.g. ``@daily``, and starts nothing."""
    return BackfillTimetable(interval, "UTC")


def window_params(first: str, end: str, event: str) -> dict[str, Param]:
    """Return the two parameters of a window: `first` and `end`, of when `event` was."""
    return {
        name: Param(
            None,
            type=["null", "string"],
            format="date-time",  # draws the form; nothing checks it
            pattern=MOMENT,
            title=f"{event} {bound}",
            description=f"{rule} A time with a zone. Empty in a backfill, whose data interval says it.",
        )
        for name, bound, rule in (
            (first, "from", "Nothing before this."),
            (end, "before", "Nothing at this time or after it."),
        )
    }


def window_task(first: str, end: str) -> Any:
    """Return the task that says which window the run works on, or fails before anything is touched."""

    @task(task_id="window", multiple_outputs=True, execution_timeout=timedelta(minutes=1))
    def window() -> dict[str, str]:
        context = get_current_context()
        params = context["params"]
        given = (params[first], params[end])
        with translated():
            if context["dag_run"].run_type == "backfill":
                if any(given):
                    raise InvalidArgument(
                        f"{first} and {end} are refused in a backfill, whose window is its data interval"
                    )
                given = (context["data_interval_start"], context["data_interval_end"])
            since, before = arguments.window(first, given[0], end, given[1])
            if since is None or before is None:
                raise InvalidArgument(
                    f"{first} and {end} are both needed by a run that is started by hand; a backfill needs none"
                )
        return {first: since.isoformat(), end: before.isoformat()}

    return window()
