"""A run that is not done in time: logged, recorded in its namespace, told to a notifier; never what it was given."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from airflow_env import metadata
from parkkeeper import migrations
from parkkeeper.deadlines import missed
from parkkeeper.errors import ParkkeeperError
from told import Told

pytestmark = pytest.mark.usefixtures("airflow_connection")

SECRET = "the words of a customer"


def miss(**conf: Any) -> dict[str, Any]:
    """What Airflow tells of a run that was late."""
    metadata()
    run = {"dag_id": "some_dag", "dag_run_id": "some_run", "state": "running", "note": SECRET}
    return {
        "dag_run": run | {"conf": {"scope": SECRET, **conf}},
        "deadline": {"id": "1", "deadline_time": "2026-03-02T00:00:00Z"},
    }


def rows(connection: psycopg.Connection[Any], namespace: str) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        table = sql.Identifier(namespace, "maintenance_run")
        return cursor.execute(sql.SQL("SELECT * FROM {}").format(table)).fetchall()


@pytest.fixture
def recorder(connection: psycopg.Connection[Any], namespace: str) -> str:
    """The test's namespace, with a record of what maintenance did."""
    migrations.migrate(connection, namespace, "memory")
    return namespace


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What the notifier was told, which the site has configured."""
    monkeypatch.setenv("AIRFLOW__PARKKEEPER__DEADLINE_NOTIFIER", "told.Told")
    kwargs = {"text": "{{ dag_id }} is late: {{ run_id }} is {{ state }}"}
    monkeypatch.setenv("AIRFLOW__PARKKEEPER__DEADLINE_NOTIFIER_KWARGS", json.dumps(kwargs))
    monkeypatch.setattr(Told, "messages", [])
    return Told.messages


def test_a_miss_is_recorded_in_the_namespace_of_the_run(
    connection: psycopg.Connection[Any], recorder: str, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(missed(miss(), recorder))
    asyncio.run(missed(miss(namespace=recorder), "elsewhere"))
    first, second = rows(connection, recorder)
    assert (first["action"], first["outcome"]) == ("deadline", "missed")
    assert (first["dag_id"], first["dag_run_id"], first["task_id"]) == ("some_dag", "some_run", None)
    assert first["figures"] == {"state": "running", "deadline": "2026-03-02T00:00:00Z"}
    assert second["figures"] == first["figures"]
    assert "Deadline missed: dag_id=some_dag run_id=some_run state=running" in caplog.text
    assert SECRET not in caplog.text + str(first)


def test_the_notifier_of_the_site_is_told_of_the_miss_and_of_nothing_else(
    recorder: str, told: list[tuple[str, dict[str, Any]]]
) -> None:
    asyncio.run(missed(miss(), recorder))
    ((text, context),) = told
    assert text == "some_dag is late: some_run is running"
    assert context == {
        "dag_id": "some_dag",
        "run_id": "some_run",
        "state": "running",
        "deadline": "2026-03-02T00:00:00Z",
    }


def test_a_miss_that_cannot_be_recorded_is_told_all_the_same_and_is_an_error(
    connection: psycopg.Connection[Any],
    recorder: str,
    told: list[tuple[str, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_ALL_OF_THEM", json.dumps(["no_such_namespace", recorder]))
    with pytest.raises(ParkkeeperError, match=r"not recorded in no_such_namespace \(42P01\)$"):
        asyncio.run(missed(miss(), None, None, "all_of_them"))
    assert len(told) == 1
    assert len(rows(connection, recorder)) == 1


def test_a_name_that_no_namespace_can_have_keeps_no_other_from_its_record(
    connection: psycopg.Connection[Any], recorder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_ALL_OF_THEM", json.dumps(["No Name", recorder]))
    with pytest.raises(ParkkeeperError, match=r"not recorded in No Name \(InvalidNamespace\)$"):
        asyncio.run(missed(miss(), None, None, "all_of_them"))
    assert len(rows(connection, recorder)) == 1


@pytest.mark.parametrize("value", [None, '"orders"', "orders", "{}", "[1]", "[]"])
def test_a_variable_that_names_nothing_is_an_error(
    told: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is not None:
        monkeypatch.setenv("AIRFLOW_VAR_ALL_OF_THEM", value)
    with pytest.raises(ParkkeeperError, match="Variable all_of_them"):
        asyncio.run(missed(miss(), None, None, "all_of_them"))
    assert len(told) == 1


def test_neither_a_record_nor_a_notice_that_is_lost_hides_the_other(
    namespace: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW__PARKKEEPER__DEADLINE_NOTIFIER", "told.NoSuchNotifier")
    with pytest.raises(ParkkeeperError, match="not recorded"):
        asyncio.run(missed(miss(), namespace))
    assert "notifier was not told of the missed deadline: AttributeError" in caplog.text


def test_a_run_of_no_namespace_is_recorded_nowhere(told: list[tuple[str, dict[str, Any]]]) -> None:
    asyncio.run(missed(miss()))
    assert len(told) == 1
