"""MigrateOperator: makes what is missing, says what it did, and touches nothing when it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
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

    figures = {"family": family, "namespaces": 1, "version": shipped[-1].version}
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


@pytest.fixture
def tenants(connection: psycopg.Connection, namespace: str) -> Iterator[list[str]]:
    names = [f"{namespace}_{letter}" for letter in "abc"]
    yield names
    for name in names:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


def memory(**arguments: object) -> MigrateOperator:
    return MigrateOperator(task_id="migrate", family="memory", **arguments)  # type: ignore[arg-type]


def test_a_list_a_pattern_and_a_query_name_many_namespaces(
    connection: psycopg.Connection, tenants: list[str]
) -> None:
    count, newest = len(migrations.packaged("memory")), migrations.packaged("memory")[-1].version
    some = run_task(lambda: memory(namespaces=tenants[:2], target=4))
    figures = {"family": "memory", "namespaces": 2}
    assert some.xcoms == {"outcome": "migrated", "applied": 8, "version": 4, **figures}
    pattern = tenants[0][:-1] + "?"
    dry = run_task(lambda: memory(pattern=pattern, dry_run=True))
    assert dry.xcoms == {"outcome": "migrated", "applied": 2 * (count - 4), "version": 4, **figures}
    query = "SELECT nspname FROM pg_namespace WHERE nspname LIKE '" + tenants[0][:-1] + "%'"  # noqa: S608
    done = run_task(lambda: memory(query=query, canary="1"))
    assert done.xcoms == {"outcome": "migrated", "applied": 2 * (count - 4), "version": newest, **figures}
    rest = run_task(
        lambda: memory(namespaces="{{ dag_run.conf.names | tojson }}", on_error="stop"),
        conf={"names": tenants},
    )
    assert rest.xcoms == {
        "outcome": "migrated",
        "applied": count,
        "version": newest,
        "family": "memory",
        "namespaces": 3,
    }
    for name in tenants:
        migrations.require(connection, name, "memory")


def test_a_namespace_that_fails_fails_the_task_by_name_when_all_others_are_done(
    connection: psycopg.Connection, tenants: list[str]
) -> None:
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(tenants[0])))
    connection.execute(sql.SQL("CREATE TABLE {} ()").format(sql.Identifier(tenants[0], "orders")))
    ran = run_task(lambda: memory(namespaces=tenants, retries=3))
    assert ran.state == "failed"
    assert isinstance(ran.error, AirflowFailException)
    assert f"1 of 3 namespaces failed, 0 were not tried: {tenants[0]}: LedgerMissing" in str(ran.error)
    for name in tenants[1:]:
        migrations.require(connection, name, "memory")


def test_a_failure_that_may_pass_is_retried(
    connection: psycopg.Connection, connect: Callable[..., psycopg.Connection], tenants: list[str]
) -> None:
    migrations.migrate(connection, tenants[0], "memory", target=4)
    other = connect()
    with other.transaction():
        other.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(tenants[0], "observation")))
        ran = run_task(lambda: memory(namespaces=tenants[:1], lock_timeout="0.001", retries=3))
    assert ran.state == "up_for_retry"
    assert isinstance(ran.error, AirflowException)
    assert "did not get its locks" in str(ran.error)


def test_exactly_one_way_to_name_namespaces_is_given(connection: psycopg.Connection, namespace: str) -> None:
    for given in ({}, {"namespace": namespace, "pattern": "a*"}, {"namespaces": "{}"}, {"namespaces": "x"}):
        ran = run_task(lambda given=given: memory(**given))
        assert ran.state == "failed"
        assert "InvalidArgument" in str(ran.error)
