"""Sensors: they wait without a worker or a session, go on at their threshold, and are not skipped for a mistake."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_env import Ran, run_task
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn, load
from parkkeeper.sensors import BacklogSensor, ParkedSensor

OPEN = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'af:dag\\_%:wait:test:1'"


class Refuses:
    """An extractor that will not have any turn, though its provider answers."""

    name = "refuses"
    version = "1"

    def extract(self, turn: Turn) -> list[Memory]:
        if turn.log_offset < 0:
            return []
        raise ExtractionError("malformed", "no")


@pytest.fixture
def families() -> tuple[str, ...]:
    return ("memory",)


def wait(sensor: type[BacklogSensor | ParkedSensor], namespace: str, **arguments: Any) -> Ran:
    return run_task(lambda: sensor(task_id="wait", namespace=namespace, retries=0, **arguments))


def append(store: MemoryStore, scope: str) -> None:
    store.append(scope, [{"role": "user", "content": "hello"}])


def test_it_is_rescheduled_without_a_session_until_the_backlog_is_formed(
    store: MemoryStore, migrated: str, connection: psycopg.Connection
) -> None:
    append(store, "a")
    append(store, "b")
    waiting = wait(BacklogSensor, migrated, at_most=0)
    assert (waiting.state, waiting.xcoms) == ("up_for_reschedule", {})
    assert connection.execute(OPEN).fetchone() == (0,)

    store.form_batch(load("chunks"), scope="a")
    assert wait(BacklogSensor, migrated, at_most="{{ 0 }}").state == "up_for_reschedule"
    one = wait(BacklogSensor, migrated, at_most=0, scope="a")
    assert (one.state, one.xcoms) == ("success", {"outcome": "reached", "backlog": 0, "parked_total": 0})
    store.form_batch(load("chunks"))
    assert wait(BacklogSensor, migrated, at_most=0).state == "success"
    assert wait(BacklogSensor, migrated, at_least=1).state == "up_for_reschedule"


def test_it_goes_on_when_turns_are_parked_or_no_longer_are(store: MemoryStore, migrated: str) -> None:
    append(store, "a")
    append(store, "a")
    assert wait(ParkedSensor, migrated, at_least=1).state == "up_for_reschedule"
    assert store.form_batch(Refuses(), max_attempts=1).parked == 2
    parked = wait(ParkedSensor, migrated, at_least="2", scope="a")
    assert (parked.state, parked.xcoms) == (
        "success",
        {"outcome": "reached", "backlog": 0, "parked_total": 2},
    )
    assert wait(ParkedSensor, migrated, at_least=3).state == "up_for_reschedule"
    assert wait(ParkedSensor, migrated, at_most=1).state == "up_for_reschedule"
    assert wait(ParkedSensor, migrated, at_most=1, scope="b").state == "success"
    store.unpark(limit=1)
    assert wait(ParkedSensor, migrated, at_most=1).xcoms["backlog"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give one of at_most and at_least"),
        ({"at_most": 0, "at_least": 1}, "give one of at_most and at_least"),
        ({"at_most": -1}, "at_most -1 is refused"),
        ({"at_least": 0}, "at_least 0 is refused"),
        ({"at_most": 0, "scope": "a b\0"}, "scope"),
        ({"at_most": 0, "namespace": "pg_x"}, "InvalidNamespace"),
    ],
)
def test_a_mistake_fails_before_anything_is_asked_and_is_no_reason_to_skip(
    arguments: dict[str, Any], message: str
) -> None:
    given = {"namespace": "n", "conn_id": "not_defined", "soft_fail": True, **arguments}
    ran = run_task(lambda: BacklogSensor(task_id="wait", retries=3, **given))
    assert ran.state == "failed"
    assert isinstance(ran.error, AirflowFailException)
    assert message in str(ran.error)


def test_what_is_wrong_in_the_database_is_told_as_by_an_operator(
    connection: psycopg.Connection, migrated: str
) -> None:
    missing = wait(ParkedSensor, "elsewhere", at_least=1)
    assert isinstance(missing.error, AirflowFailException)
    assert "UnknownNamespace: namespace elsewhere has no memory tables" in str(missing.error)
    connection.execute(f"DROP TABLE {migrated}.watermark CASCADE")
    broken = wait(ParkedSensor, migrated, at_least=1)
    assert isinstance(broken.error, AirflowFailException)
    assert "UndefinedTable (sqlstate 42P01)" in str(broken.error)
