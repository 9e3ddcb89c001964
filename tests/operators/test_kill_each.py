"""Every operator and sensor, ended while its first statement waits: no success, nothing done, no backend left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout
from psycopg import sql

from airflow_env import run_task
from parkkeeper import operators, sensors
from parkkeeper.demo.client import until
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn, load
from parkkeeper.operators import TaskKilled
from parkkeeper.queue import QueueStorage

NAMES = [
    *(name for name in operators.__all__ if name.endswith("Operator") and name != "ParkkeeperOperator"),
    *sensors.__all__,
]
#: What ends a task: the signal of Airflow's that tells it to, and the one of the alarm of its `execution_timeout`.
ENDS = {signal.SIGTERM: ("killed", TaskKilled), signal.SIGALRM: ("timed_out", AirflowTaskTimeout)}
#: Those whose work is no namespace's record: a migration is in the ledger, and a sensor does none.
UNRECORDED = {"MigrateOperator", *sensors.__all__}
#: Those that write nothing: they wait for a table that somebody has locked.
READING = {"FreshnessOperator", "LagCheckOperator", "VerifyOperator", *sensors.__all__}
#: What they cannot do without, or would find nothing to do without.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "BacklogSensor": {"at_least": 1},
    "ParkedSensor": {"at_least": 1},
    "MigrateOperator": {"family": "queue", "namespace": "newcomer", "lock_timeout": 60},
    "ParkSweepOperator": {"unpark_classes": ["malformed"], "parked_for": 0},
    "RebuildOperator": {"scope": "formed"},
    "RetryFailedOperator": {"job_queue": "parcels"},
}

_NAP = """
CREATE SEQUENCE {schema}.naps;
CREATE FUNCTION {schema}.nap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- A sequence does not roll back: who was woken, and sees to what is in hand, does not fall asleep again.
    IF nextval('{schema}.naps') = 1 THEN
        PERFORM pg_sleep(600);
    END IF;
    RETURN NULL;
END $$
"""
_WAITING = """
SELECT pid FROM pg_stat_activity
 WHERE application_name LIKE %s AND state = 'active' AND wait_event IN ('PgSleep', 'relation', 'transactionid')
"""


class Refuses:
    """An extractor that will not have any turn, though its provider answers."""

    name = "refuses"
    version = "1"

    def extract(self, turn: Turn) -> list[Memory]:
        if turn.log_offset < 0:
            return []
        raise ExtractionError("malformed", "no")


def give_each_something_to_do(storage: QueueStorage, store: MemoryStore) -> None:
    """Leave a job or a turn for each operator, and the arguments that name them."""
    storage.set_queue("letters", dead_letter=True, dead_letter_retention=0)
    for queue in ("letters", "parcels"):  # one dead letter, and one failed job in a slot that is sealed then
        storage.enqueue(queue, "print")
        storage.fail(storage.claim(queue)[0], "no paper", terminal=True)
    storage.rotate()
    storage.enqueue("parcels", "weigh")
    assert storage.claim("parcels", lease=timedelta(microseconds=1))
    for scope in ("formed", "parked", "pending"):
        store.append(scope, [{"role": "user", "content": "hello"}])
    store.form_batch(load("chunks"), scope="formed")
    assert store.form_batch(Refuses(), scope="parked", max_attempts=1).parked == 1
    request = store.request_erasure(scope="formed", reason="test")
    ARGUMENTS["EraseOperator"] = {"request_id": str(request.request_id)}


def tables(connection: psycopg.Connection[Any], namespace: str) -> list[str]:
    rows = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p') ORDER BY 1",
        (namespace,),
    )
    return [name for (name,) in rows]


def let_the_first_write_sleep(connection: psycopg.Connection[Any], namespace: str) -> None:
    connection.execute(_NAP.replace("{schema}", namespace).encode())
    for table in tables(connection, namespace):
        if table != "maintenance_run":
            connection.execute(
                sql.SQL(
                    "CREATE TRIGGER aa_nap BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {} "
                    "EXECUTE FUNCTION {}()"
                ).format(sql.Identifier(namespace, table), sql.Identifier(namespace, "nap"))
            )


def contents(connection: psycopg.Connection[Any], namespace: str) -> dict[str, str]:
    """Return a digest of each table's rows."""
    each = sql.SQL(" UNION ALL ").join(
        sql.SQL(
            "SELECT {}, md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), '')) FROM {} AS t"
        ).format(sql.Literal(table), sql.Identifier(namespace, table))
        for table in tables(connection, namespace)
        if table != "maintenance_run"
    )
    return dict(connection.execute(each).fetchall())


def sessions(connection: psycopg.Connection[Any], name: str) -> list[Any]:
    """Return the sessions of a task whose statement waits."""
    return connection.execute(_WAITING, (rf"af:dag\_%:{name[:15]}%",)).fetchall()


@contextmanager
def in_the_way(connect: Callable[..., psycopg.Connection[Any]], namespace: str, name: str) -> Iterator[None]:
    """Hold what an operator that no trigger stops will wait for."""
    with connect() as other, other.transaction(force_rollback=True):
        if name == "MigrateOperator":
            other.execute("CREATE SCHEMA newcomer")
        elif name in READING:
            other.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(namespace, "watermark")))
        else:
            other.execute("SELECT setval(%s, 1, false)", (f"{namespace}.naps",))
        yield


@pytest.fixture
def handler() -> Iterator[None]:
    """Put back how this process takes both signals: a task changes it, as it may in a worker's process of its own."""
    before = {number: signal.getsignal(number) for number in ENDS}
    yield
    for number, how in before.items():
        signal.signal(number, how)


@pytest.mark.usefixtures("handler")
def test_each_ends_as_a_failure_and_has_done_nothing(
    storage: QueueStorage,
    store: MemoryStore,
    migrated: str,
    connect: Callable[..., psycopg.Connection[Any]],
) -> None:
    connection = store.connection
    give_each_something_to_do(storage, store)
    let_the_first_write_sleep(connection, migrated)
    before = contents(connection, migrated)

    def tell_to_end(name: str, number: signal.Signals) -> bool:
        """Send this process, whose main thread runs the task, the signal that a worker's process is sent."""
        waited = bool(until(lambda: sessions(connection, name), bool, timedelta(minutes=2)))
        if waited:
            os.kill(os.getpid(), number)
        return waited

    patient = {"namespace": migrated, "retries": 0, "execution_timeout": timedelta(hours=1)}
    ended, expected, recorded = {}, {}, []
    with ThreadPoolExecutor(1) as thread:
        for name, number in ((name, number) for number in ENDS for name in NAMES):
            kind = getattr(operators, name, None) or getattr(sensors, name)
            given = patient | ARGUMENTS.get(name, {})
            with in_the_way(connect, migrated, name):
                told = thread.submit(tell_to_end, name, number)
                ran = run_task(lambda kind=kind, name=name, given=given: kind(task_id=name, **given))
                assert told.result(), (
                    f"{name} had nothing to wait for, and ended as {ran.state}: {ran.error!r}"
                )
                # While what it waited for is still there: it did not end because it went on.
                left = until(
                    lambda name=name: sessions(connection, name),
                    lambda found: not found,
                    timedelta(minutes=2),
                )
            reason, error = ENDS[number]
            ended[name, number] = (ran.state, type(ran.error), ran.xcoms, left)
            expected[name, number] = ("failed", error, {}, [])
            recorded += [(name, "failed", reason)] if name not in UNRECORDED else []
    assert ended == expected
    assert contents(connection, migrated) == before
    runs = sql.SQL("SELECT task_id, outcome, figures ->> 'reason' FROM {} ORDER BY maintenance_run_id")
    found = connection.execute(runs.format(sql.Identifier(migrated, "maintenance_run"))).fetchall()
    assert found == recorded
    assert connection.execute("SELECT to_regnamespace('newcomer')").fetchone() == (None,)
