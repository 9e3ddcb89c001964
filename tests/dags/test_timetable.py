"""The timetable: intervals for a backfill, nothing for the scheduler, and the way to the scheduler and back."""

from __future__ import annotations

from datetime import timedelta

import pendulum
import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import TimeRestriction

from parkkeeper.timetables import BackfillTimetable

MONDAY = pendulum.datetime(2026, 3, 2, tz="UTC")


def restriction(*, catchup: bool) -> TimeRestriction:
    return TimeRestriction(earliest=MONDAY, latest=MONDAY.add(days=2), catchup=catchup)


@pytest.fixture
def read_back() -> DAG:
    """A DAG with the timetable, as the scheduler has it."""
    with DAG("windows", schedule=BackfillTimetable("@daily", "UTC"), start_date=MONDAY, catchup=False) as dag:
        pass
    return DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))  # type: ignore[return-value]


def test_a_backfill_gets_whole_days(read_back: DAG) -> None:
    infos = list(read_back.iter_dagrun_infos_between(MONDAY, MONDAY.add(days=2)))
    assert [(info.data_interval.start, info.data_interval.end) for info in infos] == [
        (MONDAY.add(days=day), MONDAY.add(days=day + 1)) for day in range(3)
    ]


def test_the_scheduler_gets_nothing(read_back: DAG) -> None:
    timetable = read_back.timetable
    assert timetable.periodic  # else a backfill would be refused
    assert not timetable.can_be_scheduled
    assert (
        timetable.next_dagrun_info(last_automated_data_interval=None, restriction=restriction(catchup=False))
        is None
    )
    first = timetable.next_dagrun_info(
        last_automated_data_interval=None, restriction=restriction(catchup=True)
    )
    assert first is not None
    assert first.data_interval.end - first.data_interval.start == timedelta(days=1)


def test_it_says_what_it_is_and_keeps_its_expression(read_back: DAG) -> None:
    assert type(read_back.timetable) is BackfillTimetable
    assert read_back.timetable.summary == "by hand, or backfill of 0 0 * * *"
    assert read_back.timetable.serialize() == BackfillTimetable("@daily", "UTC").serialize()
