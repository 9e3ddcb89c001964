"""The timetable of DAGs that are run by hand or by a backfill, never by the clock.

A DAG without a schedule cannot be backfilled, and each schedule of Airflow's own starts runs: this is between the two.
"""

from __future__ import annotations

from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable


class BackfillTimetable(CronDataIntervalTimetable):
    """Cut time into the data intervals of a cron expression, for ``airflow backfill create``; schedule nothing.

    Parameters
    ----------
    cron
        Where an interval ends and the next one begins, e.g. ``@daily`` or ``0 * * * *``.
    timezone
        In which the expression is read, e.g. ``UTC`` or ``Europe/Tallinn``.
    """

    can_be_scheduled = False

    @property
    def summary(self) -> str:
        """What the UI shows where others have their schedule."""
        return f"by hand, or backfill of {self._expression}"

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Return the next interval of a backfill, which asks for all of them in a row; None to the scheduler."""
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
