"""Each DAG once, by Airflow's own `dag.test()`: what a run does, and what fails it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_env import dag_bag, metadata, xcoms
from parkkeeper import migrations
from parkkeeper.memory import MemoryStore
from parkkeeper.queue import QueueStorage

pytestmark = pytest.mark.usefixtures("airflow_connection")


ROTATIONS = ["rotate", "rotate_lease", "rotate_claim"]
PRUNES = ["prune", "prune_lease", "prune_claim"]
PURGE = ["purge_dead_letters"]
ENDS = ["work_done", "lag_check"]


def run(dag_id: str, **conf: Any) -> tuple[str, dict[str, str], dict[str, dict[str, Any]]]:
    """Run a DAG; return the state of the run, of each task, and the XComs of each task."""
    metadata()
    dag = dag_bag().dags[dag_id]
    dag.deadline = None  # dag.test() of Airflow 3.3 cannot run a DAG with a deadline (apache/airflow#73428)
    done = dag.test(run_conf=conf)
    states = {ti.task_id: str(ti.state) for ti in done.get_task_instances()}
    return str(done.state), states, {task: xcoms(dag_id, done.run_id, task) for task in states}


def test_migrate_makes_both_families(connection: psycopg.Connection, namespace: str) -> None:
    state, tasks, figures = run("parkkeeper_migrate", namespace=namespace, queue_slots=5)
    assert (state, tasks) == ("success", {"migrate_queue": "success", "migrate_memory": "success"})
    assert {task: figures[task]["outcome"] for task in tasks} == {
        "migrate_queue": "migrated",
        "migrate_memory": "migrated",
    }
    for family in migrations.FAMILIES:
        migrations.require(connection, namespace, family)
    slots = sql.SQL("SELECT slot_count FROM {}").format(sql.Identifier(namespace, "queue_ring_state"))
    assert connection.execute(slots).fetchone() == (5,)


def test_queue_maintenance_rescues_rotates_and_prunes(connection: psycopg.Connection, migrated: str) -> None:
    storage = QueueStorage(connection, migrated)
    storage.enqueue_many("letters", "print", [None] * 3)
    claims = storage.claim("letters", 3)
    storage.complete(claims[:1])
    storage.fail_many([(claim, "no paper") for claim in claims[1:]], terminal=True)
    storage.enqueue("letters", "print")
    storage.claim("letters", lease=timedelta(microseconds=1))

    state, tasks, figures = run(
        "parkkeeper_queue_maintenance", namespace=migrated, failed_retention_seconds=0
    )

    assert state == "success"
    assert tasks == dict.fromkeys(["rescue", *ROTATIONS, *PRUNES, *PURGE, "roll_up", *ENDS], "success")
    assert figures["purge_dead_letters"] == {"outcome": "noop", "purged": 0}
    # Without the rescue the job of the dead worker would pin the slot.
    assert figures["rescue"] == {"outcome": "rescued", "rescued": 1, "failed": 0, "dead_lettered": 0}
    assert figures["rotate"] == {
        "outcome": "rotated",
        "slot": 1,
        "generation": 1,
        "carried_failed": 0,
        "pruned_failed": 0,
        "pruned_completed": 0,
        "pruned_failed_total": 0,
        "evacuated": 0,
    }
    assert figures["prune"].pop("lock_ms") > 0
    assert figures["prune"] == {
        "outcome": "pruned",
        "slot": 0,
        "generation": 0,
        "carried_failed": 0,
        "pruned_failed": 2,
        "pruned_completed": 1,
        "pruned_failed_total": 2,
    }
    for ring, outcome in (("lease", "skipped_idle"), ("claim", "rotated")):
        assert figures[f"rotate_{ring}"]["outcome"] == outcome
    assert (figures["prune_claim"]["outcome"], figures["prune_claim"]["pruned_completed"]) == ("pruned", 0)
    batches = sql.SQL("SELECT sum(job_count) FROM {}").format(sql.Identifier(migrated, "lease_claim_batches"))
    assert connection.execute(batches).fetchone() in ((0,), (None,))
    assert figures["roll_up"]["counters"] == "trusted"
    assert storage.roll_up().outcome == "noop"


def test_a_dry_run_of_queue_maintenance_changes_nothing(
    connection: psycopg.Connection, migrated: str
) -> None:
    storage = QueueStorage(connection, migrated)
    storage.enqueue("letters", "print")
    storage.complete(storage.claim("letters"))
    storage.rotate()

    state, tasks, figures = run("parkkeeper_queue_maintenance", namespace=migrated, dry_run=True)

    assert state == "success"
    assert tasks == dict.fromkeys(["rescue", *ROTATIONS, *PURGE, "roll_up"], "skipped") | dict.fromkeys(
        [*PRUNES, *ENDS], "success"
    )
    assert (figures["prune"]["outcome"], figures["prune"]["pruned_completed"]) == ("pruned", 1)
    assert storage.rotate().generation == 2
    assert storage.prune_oldest().pruned_completed == 1


def test_a_prune_that_fails_fails_the_run(connection: psycopg.Connection, migrated: str) -> None:
    storage = QueueStorage(connection, migrated)
    storage.enqueue("letters", "print")
    storage.fail(storage.claim("letters")[0], "no paper", terminal=True)
    state, tasks, _ = run(
        "parkkeeper_queue_maintenance", namespace=migrated, failed_retention_seconds=0, max_pruned_failed=0
    )
    assert state == "failed"
    assert tasks == dict.fromkeys(["rescue", *ROTATIONS, *PRUNES, *PURGE], "success") | {
        "prune": "failed",
        "roll_up": "upstream_failed",
        "work_done": "upstream_failed",
        "lag_check": "success",
    }
    assert storage.queue_counts("letters").failed == 1


def test_a_rescue_that_fails_fails_the_run_and_the_ring_stands_still(namespace: str) -> None:
    state, tasks, figures = run("parkkeeper_queue_maintenance", namespace=namespace)
    assert state == "failed"
    follow = [*ROTATIONS, *PRUNES, *PURGE, "roll_up", "work_done"]
    assert tasks == {"rescue": "failed", "lag_check": "failed"} | dict.fromkeys(follow, "upstream_failed")
    assert figures["prune"] == {}


def test_an_alarm_fails_a_run_whose_work_is_done(connection: psycopg.Connection, migrated: str) -> None:
    storage = QueueStorage(connection, migrated)
    storage.enqueue("letters", "print")
    ready = sql.Identifier(migrated, "ready_entries")
    connection.execute(sql.SQL("UPDATE {} SET run_at = run_at - interval '1 hour'").format(ready))
    state, tasks, figures = run("parkkeeper_queue_maintenance", namespace=migrated, max_ready_age_seconds=60)
    assert (state, tasks["work_done"], tasks["lag_check"]) == ("failed", "success", "failed")
    assert figures["lag_check"]["outcome"] == "exceeded"
    assert figures["lag_check"]["oldest_ready_seconds"] >= 3600


def test_memory_formation_forms_and_says_how_far_it_is(connection: psycopg.Connection, migrated: str) -> None:
    store = MemoryStore(connection, migrated)
    for number in range(3):
        store.append("a", [{"role": "user", "content": f"hello {number}"}])

    state, tasks, figures = run("parkkeeper_memory_formation", namespace=migrated, limit=2)

    ran = dict.fromkeys(["plan", "form", "freshness", *ENDS], "success")
    assert (state, tasks) == ("success", ran)
    assert figures["form"] == {
        "outcome": "formed",
        "formed": 2,
        "failed": 0,
        "parked": 0,
        "deferred": 0,
        "parked_total": 0,
        "backlog": 1,
        "discarded": 0,
        "circuit": "closed",
    }
    assert figures["freshness"] == {
        "outcome": "behind",
        "scopes": 1,
        "scopes_behind": 1,
        "stored": 3,
        "formed": 2,
        "erased": 0,
        "parked_total": 0,
        "backlog": 1,
    }
    assert store.freshness("a").formed == 1


def test_park_sweep_reports_what_the_namespace_holds(connection: psycopg.Connection, migrated: str) -> None:
    MemoryStore(connection, migrated).append("a", [{"role": "user", "content": "hello"}])
    state, tasks, figures = run("parkkeeper_park_sweep", namespace=migrated)
    assert (state, tasks) == ("success", {"sweep": "success"})
    assert figures["sweep"] == {
        "outcome": "noop",
        "formed": 0,
        "failed": 0,
        "parked": 0,
        "deferred": 0,
        "parked_total": 0,
        "backlog": 1,
        "unparked": 0,
        "claims_returned": 0,
    }


def test_a_redrive_puts_back_what_failed_in_the_window(connection: psycopg.Connection, migrated: str) -> None:
    storage = QueueStorage(connection, migrated)
    storage.enqueue_many("letters", "print", [None] * 3)
    storage.fail_many([(claim, "no paper") for claim in storage.claim("letters", 3)], terminal=True)
    rows = sql.Identifier(migrated, "done_entries")
    at = sql.SQL("UPDATE {} SET finalized_at = %s WHERE job_id = (SELECT min(job_id) FROM {})").format(
        rows, rows
    )
    connection.execute(at, ["2026-03-02T12:00:00Z"])

    window = {"finalized_from": "2026-03-02T00:00:00Z", "finalized_before": "2026-03-03T00:00:00Z"}
    state, tasks, figures = run("parkkeeper_queue_redrive", namespace=migrated, queue="letters", **window)
    assert (state, tasks) == ("success", {"window": "success", "redrive": "success"})
    assert (figures["redrive"]["outcome"], figures["redrive"]["retried"]) == ("retried", 1)
    assert storage.queue_counts("letters").failed == 2


@pytest.mark.parametrize(
    "window",
    [
        {},
        {"finalized_from": "2026-03-02T00:00:00Z", "finalized_before": "2026-03-02T01:00:00+01:00"},
    ],
)
def test_a_redrive_by_hand_without_a_window_touches_nothing(namespace: str, window: dict[str, str]) -> None:
    state, tasks, _ = run("parkkeeper_queue_redrive", namespace=namespace, **window)
    assert (state, tasks) == ("failed", {"window": "failed", "redrive": "upstream_failed"})
