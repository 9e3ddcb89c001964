"""MigrateOperator: makes what is missing, says what it did, and touches nothing when it refuses."""

from __future__ import annotations

import psycopg
import pytest
from airflow.sdk.exceptions import AirflowFailException
from psycopg import sql

from airflow_env import run_task
from parkkeeper import migrations
from parkkeeper.operators import MigrateOperator


def exists(connection: psycopg.Connection, namespace: str) -> bool:
    return connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", (namespace,)).fetchone() == (True,)


@pytest.mark.parametrize("family", migrations.FAMILIES)
def test_makes_the_tables_of_a_family_and_then_has_nothing_to_do(
    connection: psycopg.Connection, namespace: str, family: str
) -> None:
    shipped = migrations.packaged(family)

    first = run_task(lambda: MigrateOperator(task_id="migrate", namespace=namespace, family=family))
    again = run_task(lambda: MigrateOperator(task_id="migrate", namespace=namespace, family=family))

    figures = {"family": family, "version": shipped[-1].version}
    assert (first.state, first.xcoms) == (
        "success",
        {"outcome": "migrated", "applied": len(shipped), **figures},
    )
    assert (again.state, again.xcoms) == ("success", {"outcome": "noop", "applied": 0, **figures})
    migrations.require(connection, namespace, family)


def test_the_number_of_slots_may_come_from_a_template(connection: psycopg.Connection, namespace: str) -> None:
    ran = run_task(
        lambda: MigrateOperator(
            task_id="migrate", namespace=namespace, family="queue", queue_slots="{{ dag_run.conf.slots }}"
        ),
        conf={"slots": 7},
    )
    query = sql.SQL("SELECT slot_count FROM {}.queue_ring_state").format(sql.Identifier(namespace))
    assert ran.state == "success"
    assert connection.execute(query).fetchone() == (7,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"family": "mail"}, "family 'mail' is refused"),
        ({"queue_slots": "3"}, "queue_slots '3' is refused: a whole number from 4 to 256"),
        ({"queue_slots": "many"}, "queue_slots 'many' is refused"),
        ({"queue_slots": True}, "queue_slots True is refused"),
        ({"namespace": "pg_own"}, "namespace 'pg_own' is refused"),
        ({"skip_on_outcome": "pruned"}, "skip_on_outcome 'pruned' is refused: any of migrated, noop"),
    ],
)
def test_refuses_a_bad_argument_before_it_touches_anything(
    connection: psycopg.Connection, namespace: str, arguments: dict[str, object], message: str
) -> None:
    given = {"namespace": namespace, "family": "queue", **arguments}
    ran = run_task(lambda: MigrateOperator(task_id="migrate", retries=3, **given))

    assert ran.state == "failed"
    assert isinstance(ran.error, AirflowFailException)
    assert message in str(ran.error)
    assert ran.xcoms == {}
    assert not exists(connection, namespace)


def test_refuses_a_database_that_is_newer_and_changes_nothing(
    connection: psycopg.Connection, migrated: str
) -> None:
    ledger = sql.Identifier(migrated, "schema_migration")
    connection.execute(
        sql.SQL("INSERT INTO {} VALUES ('queue', 9999, 'later', 'x', now(), 'another', 1)").format(ledger)
    )
    ran = run_task(lambda: MigrateOperator(task_id="migrate", namespace=migrated, family="queue", retries=3))

    assert ran.state == "failed"
    assert isinstance(ran.error, AirflowFailException)
    assert "9999_later" in str(ran.error)
    assert "DatabaseNewer" in str(ran.error)
