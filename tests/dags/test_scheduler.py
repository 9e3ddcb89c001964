"""Every DAG under a real scheduler, as a site has them: by the clock, by hand, by a backfill, past an approval.

The tests go through the life of one namespace, in this order; all they know is read back over the REST API.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from psycopg import sql

from copies import new_name
from parkkeeper import database
from parkkeeper.demo.airflow import AirflowStandalone
from parkkeeper.demo.client import AirflowError, DagRun, until
from parkkeeper.memory import MemoryStore
from parkkeeper.queue import QueueStorage
from real_airflow import PATIENCE, prepared, site_file

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

# The clock starts these once, as soon as they are unpaused, and then not before next year: what they did is known.
CLOCK = ("parkkeeper_queue_maintenance", "parkkeeper_memory_formation", "parkkeeper_park_sweep")
BACKFILLED = ("parkkeeper_queue_redrive", "parkkeeper_memory_rebuild")
BY_HAND = ("parkkeeper_migrate", *BACKFILLED, "parkkeeper_erasure", "parkkeeper_queue_prune_approved")
CONTENT = "the words of a customer"
PERSON = "a person's name"
SILENT = {
    "work_done",
    "plan",
    "window",
    "find",
    "canaries",
    "chunks",
    "approve",
}  # tasks that have no figures to say

LATE_FILE = """
# An Airflow DAG whose run fails and so is never done in time.
from datetime import timedelta

from airflow.sdk import DAG

from parkkeeper.deadlines import alert
from parkkeeper.operators import FreshnessOperator

with DAG("late", schedule=None, deadline=alert(timedelta(seconds=1), "{namespace}")) as dag:
    FreshnessOperator(task_id="fails", namespace="nowhere", retries=0)
"""


@pytest.fixture(scope="module")
def space(server_dsn: str) -> Iterator[str]:
    """The namespace that the DAGs look after; the first of them makes it."""
    name = new_name()
    yield name
    with database.connect(server_dsn) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def airflow(server_dsn: str, space: str) -> Iterator[AirflowStandalone]:
    """Airflow, running; what has a schedule is still paused."""
    files = {dag_id: site_file(dag_id, namespace=space, schedule="@yearly") for dag_id in CLOCK}
    files |= {dag_id: site_file(dag_id, namespace=space) for dag_id in BY_HAND}
    files["parkkeeper_migrate_all"] = site_file("parkkeeper_migrate_all", family="queue", pattern=space)
    files["late"] = LATE_FILE.format(namespace=space)
    with prepared(server_dsn, files) as airflow:
        airflow.launch()
        airflow.wait_until_ready(timeout=PATIENCE)
        airflow.client.wait_for_dags(set(files), PATIENCE)
        for dag_id in files.keys() - set(CLOCK):
            airflow.client.unpause(dag_id)
        yield airflow


@pytest.fixture
def storage(server_dsn: str, space: str) -> Iterator[QueueStorage]:
    with database.connect(server_dsn) as connection:
        yield QueueStorage(connection, space)


@pytest.fixture
def store(server_dsn: str, space: str) -> Iterator[MemoryStore]:
    with database.connect(server_dsn) as connection:
        yield MemoryStore(connection, space)


def run(airflow: AirflowStandalone, dag_id: str, **conf: Any) -> dict[str, dict[str, Any]]:
    """Run a DAG to its end; return the figures of its tasks."""
    return told(airflow, airflow.client.trigger(dag_id, conf))


def told(airflow: AirflowStandalone, run: DagRun, skipped: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """Wait for a run; return the figures of each task, all successful, which said no warning and no customer's word."""
    client = airflow.client
    done = client.wait(run, PATIENCE)
    tasks = client.task_instances(done)
    worked = [task for task in tasks if task.task_id not in skipped]
    logs = {task.task_id: client.log(done, task) for task in worked}
    assert (done.state, {task.state for task in worked}) == ("success", {"success"}), logs
    assert {task.state for task in tasks if task not in worked} <= {"skipped"}
    assert {task.try_number for task in worked} == {1}
    said = {name for name, lines in logs.items() if any("outcome=" in line["event"] for line in lines)}
    assert said == logs.keys() - SILENT
    for lines in logs.values():
        assert [line for line in lines if line.get("level", "info") != "info" and not foreign(line)] == []
        assert CONTENT not in str(lines)
        assert PERSON not in str(lines)
    return {task.task_id: client.xcom(done, task) for task in worked if task.task_id in said}


def foreign(line: dict[str, Any]) -> bool:
    """Tell whether a line is a warning that Python attributes to another package."""
    return "category" in line and "/parkkeeper/" not in line["filename"]


def started(airflow: AirflowStandalone, dag_id: str, how: str, number: int) -> list[DagRun]:
    """Wait for the runs of a DAG that the clock (``scheduled``) or a ``backfill`` starts; return them."""

    def look() -> list[DagRun]:
        return [run for run in airflow.client.runs(dag_id) if run.run_id.startswith(f"{how}__")]

    runs = until(look, lambda found: len(found) >= number, PATIENCE)
    assert len(runs) == number
    return runs


def by_the_clock(airflow: AirflowStandalone, *dag_ids: str) -> list[dict[str, dict[str, Any]]]:
    """Unpause DAGs; return the figures of the one run that each has then."""
    for dag_id in dag_ids:
        airflow.client.unpause(dag_id)
    return [told(airflow, started(airflow, dag_id, "scheduled", 1)[0]) for dag_id in dag_ids]


def test_airflow_knows_the_provider_and_the_plugin_once_and_has_nothing_to_complain_of(
    airflow: AirflowStandalone,
) -> None:
    assert airflow.client.import_errors() == []
    assert [plugin["name"] for plugin in airflow.client.plugins() if "parkkeeper" in plugin["name"]] == [
        "parkkeeper"
    ]
    providers = {provider["package_name"] for provider in airflow.client.providers()}
    assert "airflow-provider-parkkeeper" in providers


def test_a_namespace_is_made_by_hand_and_its_migrations_are_looked_after(
    airflow: AirflowStandalone, storage: QueueStorage, space: str
) -> None:
    made = run(airflow, "parkkeeper_migrate", queue_slots=4)
    assert {task: figures["outcome"] for task, figures in made.items()} == {
        "migrate_queue": "migrated",
        "migrate_memory": "migrated",
    }
    slots = sql.SQL("SELECT slot_count FROM {}").format(sql.Identifier(space, "queue_ring_state"))
    assert storage.connection.execute(slots).fetchone() == (4,)

    again = told(airflow, airflow.client.trigger("parkkeeper_migrate_all", {"canary": 1}), ("migrate",))
    assert again["migrate_canaries"]["outcome"] == "noop"


def test_the_clock_starts_what_has_a_schedule(
    airflow: AirflowStandalone, storage: QueueStorage, store: MemoryStore
) -> None:
    storage.enqueue_many("letters", "print", [{"words": CONTENT}] * 3)
    claims = storage.claim("letters", 3)
    storage.complete(claims[:1])
    storage.fail_many([(claim, CONTENT) for claim in claims[1:]], terminal=True)
    store.append("a", [{"role": "user", "content": CONTENT}])

    ring, formation = by_the_clock(airflow, "parkkeeper_queue_maintenance", "parkkeeper_memory_formation")
    (sweep,) = by_the_clock(airflow, "parkkeeper_park_sweep")

    assert (ring["rotate"]["outcome"], ring["rotate"]["slot"]) == ("rotated", 1)
    assert ring["prune"].pop("lock_ms") > 0
    assert ring["prune"] == {
        "outcome": "pruned",
        "slot": 0,
        "generation": 0,
        "carried_failed": 2,
        "pruned_failed": 0,
        "pruned_completed": 1,
        "pruned_failed_total": 0,
    }
    assert (formation["form"]["formed"], formation["form"]["backlog"]) == (1, 0)
    assert sweep["sweep"]["outcome"] == "noop"


def test_a_run_by_hand_does_what_it_is_told(
    airflow: AirflowStandalone, storage: QueueStorage, store: MemoryStore
) -> None:
    storage.enqueue("notes", "print")
    storage.complete(storage.claim("notes"))
    for _ in range(2):
        store.append("a", [{"role": "user", "content": CONTENT}])
    trigger = airflow.client.trigger
    maintenance = trigger("parkkeeper_queue_maintenance", {"failed_retention_seconds": 0})
    formation = told(airflow, trigger("parkkeeper_memory_formation", {"limit": 1}))
    sweep = run(airflow, "parkkeeper_park_sweep", dry_run=True)
    ring = told(airflow, maintenance)

    assert ring["rotate"] == {
        "outcome": "rotated",
        "slot": 2,
        "generation": 2,
        "carried_failed": 0,
        "pruned_failed": 0,
        "pruned_completed": 0,
        "pruned_failed_total": 0,
        "evacuated": 0,
    }
    assert (ring["prune"]["pruned_failed"], ring["prune"]["pruned_failed_total"]) == (2, 2)
    nothing = {"failed": 0, "parked": 0, "deferred": 0}
    assert formation["form"] == {
        "outcome": "formed",
        "formed": 1,
        "parked_total": 0,
        "backlog": 1,
        "discarded": 0,
        "circuit": "closed",
        **nothing,
    }
    assert formation["freshness"] == {
        "outcome": "behind",
        "scopes": 1,
        "scopes_behind": 1,
        "stored": 3,
        "formed": 2,
        "erased": 0,
        "parked_total": 0,
        "backlog": 1,
    }
    assert sweep["sweep"] == {
        "outcome": "noop",
        "formed": 0,
        "parked_total": 0,
        "backlog": 1,
        "unparked": 0,
        "claims_returned": 0,
        **nothing,
    }


def test_each_figure_has_an_xcom_and_goes_with_the_event_of_an_asset(
    airflow: AirflowStandalone, space: str
) -> None:
    client = airflow.client
    (scheduled,) = started(airflow, "parkkeeper_queue_maintenance", "scheduled", 1)
    (prune,) = [task for task in client.task_instances(scheduled) if task.task_id == "prune"]
    figures = client.xcom(scheduled, prune)
    told_apart = client.xcoms(scheduled, prune)
    assert {key: told_apart[key] for key in figures} == figures

    which = {"source_dag_id": scheduled.dag_id, "source_run_id": scheduled.run_id, "limit": 100}
    found = client.get(f"/api/v2/assets/events?{urlencode(which)}")["asset_events"]
    events = {(each["source_task_id"], each["uri"]): each["extra"] for each in found}
    assert events["prune", f"parkkeeper://{space}/queue/queue"] == {
        **figures,
        "action": "prune_with_carry",
        "namespace": space,
    }
    assert ("rotate_claim", f"parkkeeper://{space}/queue/claim") in events


def test_a_backfill_takes_each_day_s_failed_jobs_and_turns(
    airflow: AirflowStandalone, storage: QueueStorage, store: MemoryStore, space: str
) -> None:
    storage.enqueue_many("mail", "send", [{"words": CONTENT}] * 3)
    claims = storage.claim("mail", 3)
    storage.fail_many([(claim, CONTENT) for claim in claims], terminal=True)
    # Of yesterday, of the day before, and of one that is not asked for.
    moved = sql.SQL(
        "UPDATE {} SET {} = date_trunc('day', now(), 'UTC') - %s * interval '12 hours' WHERE {} = %s"
    )
    for table, column, row, keys in (
        ("done_entries", "finalized_at", "job_id", [claim.job_id for claim in claims]),
        ("observation", "ingested_at", "log_offset", [0, 1, 2]),
    ):
        update = moved.format(sql.Identifier(space, table), sql.Identifier(column), sql.Identifier(row))
        for age, key in zip((1, 3, 5), keys, strict=True):
            storage.connection.execute(update, [age, key])
    today = storage.connection.execute("SELECT date_trunc('day', now(), 'UTC')").fetchall()[0][0]
    first, last = ((today - timedelta(days=ago)).isoformat() for ago in (2, 1))
    dates = {"from_date": first, "to_date": last, "max_active_runs": 1}
    for dag_id, conf in zip(BACKFILLED, ({"queue": "mail"}, {}), strict=True):
        airflow.client.post("/api/v2/backfills", {"dag_id": dag_id, "dag_run_conf": conf, **dates})
    redriven, rebuilt = (
        [told(airflow, one) for one in started(airflow, dag_id, "backfill", 2)] for dag_id in BACKFILLED
    )
    assert [figures["redrive"]["retried"] for figures in redriven] == [1, 1]
    assert [(figures["rebuild"]["scopes"], figures["rebuild"]["rebuilt"]) for figures in rebuilt] == [
        (1, 1),
        (1, 1),
    ]
    assert storage.queue_counts("mail").failed == 1


def test_a_window_by_hand_is_given_and_never_guessed(airflow: AirflowStandalone) -> None:
    client = airflow.client
    none = client.trigger("parkkeeper_queue_redrive")
    window = {"ingested_from": "2026-01-01T00:00:00Z", "ingested_before": "2126-01-01T00:00:00Z"}
    rebuilt = run(airflow, "parkkeeper_memory_rebuild", scope="a", **window)
    assert rebuilt["rebuild"]["outcome"] == "rebuilt"
    assert client.wait(none, PATIENCE).state == "failed"
    states = {task.task_id: task.state for task in client.task_instances(none)}
    assert states == {"window": "failed", "redrive": "upstream_failed"}
    window = {"finalized_from": "2026-01-01T00:00:00Z", "finalized_before": "2126-01-01T00:00:00Z"}
    dry = run(airflow, "parkkeeper_queue_redrive", dry_run=True, **window)
    assert (dry["redrive"]["outcome"], dry["redrive"]["matched"]) == ("matched", 1)


def state_of(airflow: AirflowStandalone, run: DagRun, task_id: str) -> str | None:
    return {task.task_id: task.state for task in airflow.client.task_instances(run)}[task_id]


def answer(airflow: AirflowStandalone, run: DagRun, option: str) -> dict[str, Any]:
    """Wait until a run asks for an approval, answer it, and return what it had shown."""
    path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}"

    def asked() -> list[dict[str, Any]]:
        return list(airflow.client.get(f"{path}/hitlDetails")["hitl_details"])

    (shown,) = until(asked, bool, PATIENCE)
    # Nobody is so quick that the task is still about to wait.
    until(lambda: state_of(airflow, run, "approve"), lambda state: state == "deferred", PATIENCE)
    chosen = {"chosen_options": [option], "params_input": {}}
    airflow.client.patch(f"{path}/taskInstances/approve/-1/hitlDetails", chosen)
    return shown


def test_what_cannot_be_undone_waits_for_a_person(
    airflow: AirflowStandalone, storage: QueueStorage, store: MemoryStore
) -> None:
    client = airflow.client
    storage.complete(storage.claim("mail", 10))  # what was put back would pin the slot
    assert storage.rotate().outcome == "rotated"
    store.append("b", [{"role": "user", "content": CONTENT}], subject=PERSON)
    request = store.request_erasure(subject=PERSON, reason="asked")
    conf = {"request_id": str(request.request_id)}

    prune = client.trigger("parkkeeper_queue_prune_approved", {"failed_retention_seconds": 0})
    refused = client.trigger("parkkeeper_erasure", conf)
    answer(airflow, refused, "Reject")
    assert "Drop 1 failed jobs" in answer(airflow, prune, "Approve")["subject"]
    assert client.wait(refused, PATIENCE).state == "failed"
    assert {task.task_id: task.state for task in client.task_instances(refused)}["erase"] != "success"
    assert store.turn_status("b", 0) == "pending"

    approved = client.trigger("parkkeeper_erasure", conf)
    shown = answer(airflow, approved, "Approve")
    assert "1 turns" in shown["body"]
    assert PERSON not in str(shown)
    assert told(airflow, approved)["erase"]["erased"] == 1
    assert store.turn_status("b", 0) == "erased"
    assert told(airflow, prune)["prune"]["pruned_failed"] == 1
    assert storage.queue_counts("mail").pruned_failed == 1


BAD = {
    "parkkeeper_migrate": [{"namespace": "Public"}, {"queue_slots": 1}],
    "parkkeeper_migrate_all": [{"chunk": 0}],
    "parkkeeper_queue_maintenance": [{"failed_retention_seconds": -1}, {"dry_run": "perhaps"}],
    "parkkeeper_memory_formation": [{"limit": 0}, {"scope": ""}],
    "parkkeeper_park_sweep": [{"unpark_classes": ["whatever"]}],
    "parkkeeper_queue_redrive": [{"queue": "None"}, {"finalized_from": "yesterday"}],
    "parkkeeper_memory_rebuild": [{"turn_budget_seconds": 0}],
    "parkkeeper_erasure": [{}, {"request_id": PERSON}],
    "parkkeeper_queue_prune_approved": [{"lock_timeout_seconds": 60}],
}


def test_a_bad_parameter_starts_no_run(airflow: AirflowStandalone) -> None:
    for dag_id, bad in BAD.items():
        before = airflow.client.runs(dag_id)
        for conf in bad:
            with pytest.raises(AirflowError, match="refused with status 4"):
                airflow.client.trigger(dag_id, conf)
        assert airflow.client.runs(dag_id) == before


def test_a_run_that_is_not_done_in_time_is_logged_recorded_and_shown(
    airflow: AirflowStandalone, storage: QueueStorage, space: str
) -> None:
    late = airflow.client.wait(airflow.client.trigger("late"), PATIENCE)
    assert late.state == "failed"
    log = airflow.home / "parts" / "triggerer.log"
    line = f"Deadline missed: dag_id=late run_id={late.run_id}"
    assert line in until(log.read_text, lambda text: line in text, PATIENCE)
    query = sql.SQL("SELECT dag_run_id FROM {} WHERE action = 'deadline' AND outcome = 'missed'").format(
        sql.Identifier(space, "maintenance_run")
    )
    rows = until(lambda: storage.connection.execute(query).fetchall(), bool, PATIENCE)
    assert rows == [(late.run_id,)]
    shown = airflow.client.get("/ui/dags/late/dagRuns/~/deadlines")["deadlines"]
    assert [(one["dag_run_id"], one["missed"]) for one in shown] == [(late.run_id, True)]


def test_the_page_is_served_to_people_who_are_logged_in(airflow: AirflowStandalone, space: str) -> None:
    address = f"{airflow.url}/parkkeeper/figures?namespace={space}"
    assert httpx.get(address, trust_env=False).status_code == 401
    token = httpx.post(
        f"{airflow.url}/auth/token", json={"username": "admin", "password": "admin"}, trust_env=False
    ).json()["access_token"]
    answer = httpx.get(address, headers={"Authorization": f"Bearer {token}"}, trust_env=False)
    assert answer.status_code == 200
    queues = {each["queue"]: each for each in answer.json()["figures"]["queues"]}
    assert (queues["letters"]["terminal"], queues["letters"]["pruned_failed"]) == (3, 2)


def test_the_clock_starts_nothing_else(airflow: AirflowStandalone) -> None:
    for number, dag_ids in ((1, CLOCK), (0, BY_HAND)):
        for dag_id in dag_ids:
            started(airflow, dag_id, "scheduled", number)
