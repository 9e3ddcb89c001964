"""The JSON endpoints: for people who are logged in, true, bounded, and described."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fastapi.routing import APIRoute
from psycopg import conninfo, sql

from parkkeeper import migrations
from parkkeeper.demo.airflow import connection_json
from parkkeeper.memory import MemoryStore, parking
from parkkeeper.queue import QueueStorage
from parkkeeper.ui import create_app, history, overview, reading, triage
from parkkeeper.ui.reading import Unreadable
from ringside import age, end_jobs
from ui.conftest import CONTENT, ERROR, Refuses, login
from ui.record import record

PART = {"namespace": "x", "name": "page.css"}


def routes() -> Iterator[Any]:
    """Every route of the application, however it came there."""
    return iter(create_app().routes)


def paths() -> list[str]:
    return sorted(re.sub(r"\{(\w+)\}", lambda match: PART[match[1]], route.path) for route in routes())


def get(browser: Any, namespace: str, path: str, **params: Any) -> Any:
    answer = browser.get(f"/parkkeeper/api/namespaces/{namespace}/{path}", params=params)
    assert answer.status_code == 200, answer.text
    assert CONTENT not in answer.text
    assert ERROR not in answer.text
    return answer.json()


def test_every_route_can_only_be_read() -> None:
    for route in routes():
        assert isinstance(route, APIRoute), route
        assert route.methods == {"GET"}, route.path


def test_every_route_demands_a_login_and_the_right_to_airflows_ui(anonymous: Any) -> None:
    assert len(paths()) > 10
    for path in paths():
        assert anonymous.get(f"/parkkeeper{path}").status_code == 401, path
        made_up = {"Authorization": "Bearer made.up.token"}
        assert anonymous.get(f"/parkkeeper{path}", headers=made_up).status_code in (401, 403), path
    login(anonymous, "stranger")
    for path in paths():
        assert anonymous.get(f"/parkkeeper{path}").status_code == 403, path


def test_no_method_but_get_is_had(browser: Any) -> None:
    for path in paths():
        for method in ("post", "put", "patch", "delete"):
            assert getattr(browser, method)(f"/parkkeeper{path}").status_code == 405, (method, path)


def test_every_endpoint_is_described(browser: Any) -> None:
    document = browser.get("/parkkeeper/openapi.json").json()
    described = {path for path in document["paths"]}
    assert described == {
        route.path for route in routes() if route.path.startswith("/api/") or route.path == "/figures"
    }
    for path, item in document["paths"].items():
        assert item["get"]["description"], path
        assert {"200", "401", "403", "404", "409", "503"} <= set(item["get"]["responses"]), path
        assert item["get"]["responses"]["200"]["content"]["application/json"]["schema"].get("$ref"), path
        for parameter in item["get"].get("parameters", []):
            assert parameter.get("description") or parameter["schema"].get("description"), (path, parameter)
    for name, schema in document["components"]["schemas"].items():
        if name not in ("HTTPValidationError", "ValidationError"):  # FastAPI's own
            mute = [field for field, found in schema["properties"].items() if not found.get("description")]
            assert not mute, name


def test_the_overview_says_what_needs_attention_gravest_first(
    browser: Any, connection: psycopg.Connection, populated: str
) -> None:
    record(connection, populated, "prune_with_carry", "pruned", timedelta(hours=2), pruned_failed=1)
    record(connection, populated, "rotate_ring", "skipped_busy", timedelta(minutes=5), ring="queue")
    record(connection, populated, "rescue", "failed", timedelta(hours=25))
    record(connection, populated, "deadline", "missed", timedelta(hours=3))
    found = browser.get("/parkkeeper/api/overview").json()
    (one,) = found["namespaces"]
    assert found["more"] == 0
    assert one["namespace"] == populated
    assert one["queue"] == {
        "available": 2,
        "running": 2,
        "deferred": 1,
        "failed": 1,
        "dead_lettered": 1,
        "pruned_failed": 1,
        "trusted": True,
    }
    assert (one["memory"]["parked"], one["memory"]["backlog"]) == (1, 1)
    assert one["oldest_parked_at"] is not None
    assert one["pending_since"] is not None
    assert [(run["action"], run["outcome"]) for run in one["last_runs"]] == [
        ("deadline", "missed"),
        ("prune_with_carry", "pruned"),
        ("rescue", "failed"),
        ("rotate_ring", "skipped_busy"),
    ]
    assert [(item["severity"], item["figure"]) for item in found["attention"]] == [
        ("lost", "1 failed job dropped"),
        ("danger", "rotate_ring skipped_busy"),
        ("warning", "1 missed deadline"),
        ("warning", "1 parked turn"),
        ("warning", "1 failed job"),
        ("note", "1 dead letter"),
    ]
    assert {item["link"].split("view=")[1] for item in found["attention"]} == {
        "overview",
        "history",
        "triage",
    }

    # The exporter of the guide.
    guide = (Path(__file__).parents[2] / "docs/how-to/read-the-page.md").read_text()
    exporter: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", guide, re.DOTALL)[0], exporter)
    told = set(exporter["lines"](found))
    for name, value in (("readable", 1), ("queue_failed", 1), ("memory_parked", 1), ("expiring_jobs", 0)):
        assert f'parkkeeper_{name}{{namespace="{populated}"}} {value}' in told


def test_failed_jobs_that_are_about_to_be_lost_are_said_first(
    browser: Any, connection: psycopg.Connection, migrated: str
) -> None:
    storage = QueueStorage(connection, migrated)
    late = end_jobs(storage, 3)
    end_jobs(storage, 2)
    age(storage, late, timedelta(hours=60))
    (item, _) = browser.get("/parkkeeper/api/overview").json()["attention"]
    assert (item["severity"], item["figure"]) == ("lost", "3 failed jobs about to be lost")
    assert re.search(r"in 1[12] h", item["sentence"])


def test_an_open_circuit_and_turns_that_wait_for_long_are_said(
    browser: Any, connection: psycopg.Connection, migrated: str
) -> None:
    store = MemoryStore(connection, migrated)
    store.append("a", [{"role": "user", "content": CONTENT}])
    ns = sql.Identifier(migrated)
    connection.execute(
        sql.SQL("UPDATE {}.observation SET ingested_at = ingested_at - interval '3 h'").format(ns)
    )
    connection.execute(
        sql.SQL(
            "INSERT INTO {}.formation_circuit (extractor, extractor_version, opened_at, next_probe_at, error_class)"
            " VALUES ('llm', '1', now() - interval '10 min', now(), 'unavailable')"
        ).format(ns)
    )
    items = browser.get("/parkkeeper/api/overview").json()["attention"]
    assert [(item["severity"], item["figure"]) for item in items] == [
        ("danger", "circuit of llm open for 10 min"),
        ("warning", "oldest turn waits 3 h"),
    ]


def test_more_namespaces_than_are_read_are_counted(
    browser: Any, migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkkeeper.ui.overview.MOST_NAMESPACES", 0)
    found = browser.get("/parkkeeper/api/overview").json()
    assert (found["namespaces"], found["more"]) == ([], 1)


def test_a_namespace_of_another_release_does_not_hide_the_others(
    browser: Any, connection: psycopg.Connection, migrated: str
) -> None:
    other = f"{migrated[:-1]}_"
    migrations.migrate(connection, other, "memory", target=1)
    try:
        found = browser.get("/parkkeeper/api/overview").json()["namespaces"]
        assert {one["namespace"]: one["problem"] is None for one in found} == {migrated: True, other: False}
    finally:
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(other)))


def test_a_namespace_that_cannot_be_read_does_not_hide_the_others(
    browser: Any,
    connection: psycopg.Connection,
    connect: Callable[..., psycopg.Connection],
    dsn: str,
    migrated: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "LOCK_TIMEOUT", timedelta(milliseconds=20))

    def run(text: str, *names: str) -> None:
        connection.execute(sql.SQL(text).format(*map(sql.Identifier, names)))

    def problems() -> dict[str, str | None]:
        answer = browser.get("/parkkeeper/api/overview")
        assert answer.status_code == 200, answer.text
        named = {item["namespace"] for item in answer.json()["attention"] if item["severity"] == "danger"}
        found = {one["namespace"]: one["problem"] for one in answer.json()["namespaces"]}
        assert named == {name for name, problem in found.items() if problem}
        for view in (f"namespace={migrated}", "view=runs&dag_id=x"):
            assert browser.get(f"/parkkeeper/?{view}").status_code == 200
        return found

    run("CREATE SCHEMA other_product")
    run("CREATE TABLE other_product.schema_migration (version text)")
    run("CREATE SCHEMA later")
    run("CREATE TABLE later.schema_migration AS TABLE {}.schema_migration WITH NO DATA", migrated)
    run("INSERT INTO later.schema_migration VALUES ('newer', 1, 'first', 'x', now(), 'x', 1)")
    migrations.migrate(connection, "busy", "memory")
    holder = connect()
    holder.autocommit = False
    holder.execute("LOCK TABLE busy.watermark, busy.maintenance_run")
    found = problems()
    assert list(found) == ["busy", "later", migrated]
    assert found[migrated] is None
    assert "another session holds a lock" in str(found["busy"])
    assert "family newer" in str(found["later"])
    assert browser.get("/parkkeeper/?namespace=busy").status_code == 503
    assert browser.get("/parkkeeper/?namespace=later").status_code == 409
    holder.rollback()

    run("CREATE ROLE {} LOGIN PASSWORD 'p'", role := f"{migrated}_reader")
    try:
        for right in ("SELECT ON ALL TABLES", "EXECUTE ON ALL FUNCTIONS"):
            run(f"GRANT {right} IN SCHEMA {{}} TO {{}}", migrated, role)
        for schema in ("busy", migrated):
            run("GRANT USAGE ON SCHEMA {} TO {}", schema, role)
        run("GRANT SELECT ON busy.schema_migration TO {}", role)
        reader = conninfo.make_conninfo(dsn, user=role, password="p")
        monkeypatch.setenv("AIRFLOW_CONN_PARKKEEPER_DEFAULT", connection_json(reader))
        found = problems()
        assert found.pop(migrated) is None
        assert "may not read its tables" in str(found.pop("busy"))
        assert not found
    finally:
        run("DROP OWNED BY {}", role)
        run("DROP ROLE {}", role)

    monkeypatch.setattr(reading, "ALL_WITHIN", timedelta(0))
    monkeypatch.setenv("AIRFLOW_CONN_PARKKEEPER_DEFAULT", connection_json(dsn))
    found = problems()
    assert all("was not read" in str(problem) for problem in found.values())


def test_what_is_counted_to_a_limit_says_so_and_the_first_loss_is_that_of_all(
    browser: Any, connection: psycopg.Connection, migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = QueueStorage(connection, migrated)
    young = end_jobs(storage, 3, queue="a", kind="x")
    old = end_jobs(storage, 2, queue="b", kind="x")
    age(storage, young, timedelta(hours=60))
    age(storage, old, timedelta(hours=71))
    monkeypatch.setattr(overview, "MOST_COUNTED", 2)
    found = browser.get("/parkkeeper/api/overview").json()
    (one,) = found["namespaces"]
    assert one["first_expires_at"] == get(browser, migrated, "ring")["first_expires_at"]
    assert (one["expiring"], one["expiring_at_least"]) == (2, True)
    assert found["attention"][0]["figure"] == "2 failed jobs or more about to be lost"
    monkeypatch.setattr(triage, "MOST_GROUPS", 1)
    assert get(browser, migrated, "rehearsals/redrive", kind="x")["rows"] == 5


def test_an_unpark_is_rehearsed_as_the_sweep_would_do_it(
    browser: Any, connection: psycopg.Connection, migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(connection, migrated)
    for _ in range(3):
        store.append("a", [{"role": "user", "content": CONTENT}])
        store.form_batch(Refuses(), scope="a", limit=1, max_attempts=1)
    policy = parking.SweepPolicy(scope="a", unpark_classes=("malformed",), unpark_limit=2)
    monkeypatch.setattr(parking, "DEFAULT_POLICY", policy)
    wanted = {"scope": "a", "error_class": "malformed"}
    found = get(browser, migrated, "rehearsals/unpark", **wanted)
    assert "1 turn more of the same stay parked" in found["sentence"]
    assert found["rows"] == store.sweep(policy).unparked == 2


def test_times_are_shown_in_utc_whatever_zone_the_database_tells_them_in(
    browser: Any, connection: psycopg.Connection, migrated: str
) -> None:
    connection.execute(
        sql.SQL("ALTER DATABASE {} SET timezone = 'Asia/Kolkata'").format(
            sql.Identifier(connection.info.dbname)
        )
    )
    html = browser.get("/parkkeeper/").text
    told = re.findall(r'<time datetime="([^"]+)">([^<]+)</time>', html)
    assert told
    for stamp, text in told:
        assert f"{datetime.fromisoformat(stamp).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" == text


def test_the_ring_says_what_pins_a_slot_and_when_the_oldest_failed_job_goes(
    browser: Any, connection: psycopg.Connection, populated: str
) -> None:
    found = get(browser, populated, "ring")
    assert [(slot["slot"], slot["state"]) for slot in found["slots"]] == [
        (0, "empty"),
        (1, "pinned"),
        (2, "current"),
        (3, "empty"),
    ]
    pinned = found["slots"][1]
    assert (pinned["waiting"], pinned["running"]) == (2, 2)
    assert re.fullmatch(r"job \d+ of queue letters, kind print, waiting for \d+ s", pinned["pinned_by"])
    (segment,) = found["floor"]
    assert segment["failed"] == 1
    assert segment["passes_at"] == found["first_expires_at"] > found["taken_at"]


def test_the_plan_is_what_the_next_prune_does(
    browser: Any, connection: psycopg.Connection, migrated: str
) -> None:
    storage = QueueStorage(connection, migrated)
    end_jobs(storage, 2, state="completed")
    end_jobs(storage, 3)
    storage.rotate()
    plan = get(browser, migrated, "ring/plan")
    assert plan["by_kind"] == [
        {
            "queue": "q",
            "kind": "work",
            "carried_failed_rows": 3,
            "pruned_failed": 0,
            "pruned_completed": 2,
            "kept_failed_rows": 0,
        }
    ]
    done = storage.prune_oldest()
    names = ("outcome", "slot", "carried_failed_rows", "pruned_failed", "pruned_completed")
    assert {name: plan[name] for name in names} == {name: getattr(done, name) for name in names}
    again = get(browser, migrated, "ring/plan")
    assert (again["outcome"], again["sentence"]) == ("noop", "There is nothing to reclaim now.")


def test_history_adds_up_what_is_on_record_step_by_step(
    browser: Any, connection: psycopg.Connection, migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = timedelta(minutes=1)
    record(
        connection,
        migrated,
        "prune_with_carry",
        "pruned",
        50 * minutes,
        carried_failed=2,
        pruned_failed=1,
        pruned_completed=9,
        lock_ms=3.5,
    )
    record(connection, migrated, "formation_batch", "formed", 10.2 * minutes, formed=3, parked=1, backlog=8)
    record(connection, migrated, "formation_batch", "formed", 10.1 * minutes, formed=4, parked=0, backlog=4)
    record(connection, migrated, "deadline", "missed", 10.1 * minutes)
    record(connection, migrated, "rescue", "failed", 70 * minutes)
    found = get(browser, migrated, "history", hours=1)
    assert found["step_seconds"] == 60
    first, second = found["steps"]
    assert (first["carried_failed"], first["pruned_failed"], first["pruned_completed"], first["lock_ms"]) == (
        2,
        1,
        9,
        3.5,
    )
    assert (second["formed"], second["parked"], second["backlog"], second["deadline_misses"]) == (7, 1, 8, 1)
    assert found["truncated"] is False
    assert get(browser, migrated, "history", hours=2)["steps"][0]["failed_runs"] == 1

    monkeypatch.setattr(history, "MOST_RUNS", 3)
    found = get(browser, migrated, "history", hours=1)
    assert (found["truncated"], sum(step["runs"] for step in found["steps"])) == (True, 3)


def test_failed_jobs_come_by_queue_and_kind_and_what_is_lost_first_in_front(
    browser: Any, connection: psycopg.Connection, migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = QueueStorage(connection, migrated)
    end_jobs(storage, 2, queue="a", kind="x")
    old = end_jobs(storage, 1, queue="b", kind="y")
    end_jobs(storage, 1, queue="b", kind="z")
    age(storage, old, timedelta(hours=5))
    found = get(browser, migrated, "failed-jobs")
    assert [(group["queue"], group["kind"], group["jobs"]) for group in found["groups"]] == [
        ("b", "y", 1),
        ("a", "x", 2),
        ("b", "z", 1),
    ]
    assert (found["total"], found["looked_at"]) == (4, 4)
    assert found["jobs"][0]["job_id"] == old[0]
    assert [job["kind"] for job in get(browser, migrated, "failed-jobs", kind="x")["jobs"]] == ["x", "x"]
    assert get(browser, migrated, "failed-jobs", queue="b")["total"] == 2
    assert get(browser, migrated, "failed-jobs", queue="none")["groups"] == []

    rehearsed = get(browser, migrated, "rehearsals/redrive", queue="b")
    assert (rehearsed["rows"], rehearsed["at_least"]) == (2, False)
    assert len(storage.retry_failed_by_queue("b").retried) == 2

    monkeypatch.setattr(triage, "MOST_LOOKED_AT", 1)
    found = get(browser, migrated, "failed-jobs")
    assert (found["total"], found["looked_at"]) == (2, 1)
    rehearsed = get(browser, migrated, "rehearsals/redrive", kind="x")
    assert (rehearsed["rows"], rehearsed["at_least"]) == (1, True)


def test_parked_turns_come_by_class_and_scope_with_ids_and_times(
    browser: Any, connection: psycopg.Connection, migrated: str
) -> None:
    store = MemoryStore(connection, migrated)
    for scope, turns in (("a", 1), ("b", 2)):
        for _ in range(turns):
            store.append(scope, [{"role": "user", "content": CONTENT}])
            store.form_batch(Refuses(), scope=scope, limit=1, max_attempts=1)
    found = get(browser, migrated, "parked-turns")
    assert [(group["scope"], group["error_class"], group["parked"]) for group in found["groups"]] == [
        ("b", "malformed", 2),
        ("a", "malformed", 1),
    ]
    assert [(turn["scope"], turn["log_offset"]) for turn in found["turns"]] == [("a", 0), ("b", 0), ("b", 1)]
    assert [turn["observation_id"] for turn in found["turns"]] == [
        turn.observation_id for turn in store.parked()
    ]
    assert get(browser, migrated, "parked-turns", scope="b")["total"] == 2
    assert get(browser, migrated, "parked-turns", error_class="refusal")["turns"] == []
    wanted = {"scope": "b", "error_class": "malformed"}
    assert get(browser, migrated, "rehearsals/unpark", **wanted)["rows"] == store.unpark(**wanted)
    assert get(browser, migrated, "rehearsals/rebuild", scope="a")["rows"] == 1
    assert get(browser, migrated, "rehearsals/rebuild", scope="none")["rows"] == 0


@pytest.mark.parametrize("path", ["ring", "ring/plan", "failed-jobs", "rehearsals/redrive"])
def test_a_family_that_is_missing_is_not_found(
    browser: Any, connection: psycopg.Connection, namespace: str, path: str
) -> None:
    migrations.migrate(connection, namespace, "memory")
    answer = browser.get(f"/parkkeeper/api/namespaces/{namespace}/{path}")
    assert answer.status_code == 404
    assert "parkkeeper_migrate" in answer.json()["detail"]


@pytest.mark.parametrize(
    "query", ["history?hours=0", "history?hours=2161", "history?hours=x", "failed-jobs?queue=a%00b"]
)
def test_a_parameter_out_of_range_is_refused(browser: Any, migrated: str, query: str) -> None:
    answer = browser.get(f"/parkkeeper/api/namespaces/{migrated}/{query}")
    assert answer.status_code == 422


def test_what_reads_cannot_write(browser: Any, migrated: str) -> None:
    with pytest.raises(Unreadable, match="25006"), reading.session(migrated) as (reader, _):
        reader.execute(sql.SQL("DELETE FROM {}.settings").format(sql.Identifier(migrated)))
