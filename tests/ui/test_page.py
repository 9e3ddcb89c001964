"""The page and its JSON: for people who are logged in, true, and clear when there is nothing to show."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from html import unescape
from typing import Any

import psycopg
import pytest
from psycopg import conninfo, sql

from parkkeeper import migrations
from parkkeeper.demo.airflow import connection_json
from parkkeeper.memory import MemoryStore
from parkkeeper.queue import QueueStorage
from parkkeeper.ui import words
from parkkeeper.ui.figures import read as read_figures
from ringside import Gate, end_jobs, held, query, until
from ui.conftest import CONTENT, ERROR, login


def get_figures(browser: Any, namespace: str) -> dict[str, Any]:
    answer = browser.get("/parkkeeper/figures", params={"namespace": namespace})
    assert answer.status_code == 200
    figures: dict[str, Any] = answer.json()["figures"]
    return figures


def notice(html: str) -> str:
    return re.sub(r"<[^>]+>", " ", html[html.index('<section class="notice"') :])


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/api", "/static/..%2fapp.py", "/static/app.py"])
def test_nothing_else_is_served(browser: Any, path: str) -> None:
    assert browser.get(f"/parkkeeper{path}").status_code == 404


def test_the_figures_are_the_cores_own(browser: Any, connection: psycopg.Connection, populated: str) -> None:
    figures = get_figures(browser, populated)

    storage = QueueStorage(connection, populated)
    assert [queue["queue"] for queue in figures["queues"]] == ["letters", "parcels"]
    for queue in figures["queues"]:
        counts = storage.queue_counts(queue["queue"])
        assert queue == {
            "queue": queue["queue"],
            "available": counts.available,
            "running": counts.running,
            "deferred": counts.deferred,
            "failed": counts.failed,
            "terminal": counts.terminal,
            "pruned_failed": counts.pruned_failed,
            "dead_lettered": counts.dead_lettered,
            "purged_dead_letters": counts.purged_dead_letters,
        }
    letters, parcels = figures["queues"]
    # Nothing that the core counts is missing on the page.
    assert set(letters) == {"queue", *asdict(counts)}
    assert (letters["available"], letters["running"], letters["deferred"], letters["failed"]) == (2, 2, 1, 1)
    assert (letters["terminal"], parcels["terminal"], parcels["pruned_failed"]) == (4, 1, 1)

    store = MemoryStore(connection, populated)
    assert [scope["scope"] for scope in figures["scopes"]] == ["café <b>", "b"]
    for scope in figures["scopes"]:
        fresh = store.freshness(scope["scope"])
        names = ("stored", "formed", "formed_strict", "parked", "backlog")
        assert {name: scope[name] for name in names} == {name: getattr(fresh, name) for name in names}
    assert figures["memory"] == {
        "scopes": 2,
        "scopes_behind": 1,
        "stored": 3,
        "formed": 1,
        "parked": 1,
        "erased": 0,
        "backlog": 1,
    }


def test_figures_that_wait_for_a_prune_miss_none_of_what_it_moved(
    connection: psycopg.Connection, connect: Callable[..., psycopg.Connection], migrated: str
) -> None:
    keeper, pruner = connect(), QueueStorage(connect(), migrated)
    keeper.execute("SET default_transaction_isolation = 'repeatable read'")
    storage = QueueStorage(connection, migrated)
    end_jobs(storage, 3, queue="letters")
    storage.rotate()
    before = read_figures(connection, migrated).queues
    waits = "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted"
    with ThreadPoolExecutor(1) as pool:
        with held(pruner.prune_oldest, Gate(pruner, "queue/prune", "reclaimed")) as pruned:
            found = pool.submit(read_figures, keeper, migrated)
            until(lambda: query(storage, waits, keeper.info.backend_pid) == [(1,)])
        assert pruned.result().carried_failed_rows > 0
        assert found.result().queues == before


def test_the_ring_is_shown_slot_by_slot(browser: Any, populated: str) -> None:
    slots = get_figures(browser, populated)["slots"]
    assert [(slot["slot"], slot["generation"], slot["state"]) for slot in slots] == [
        (0, 0, "empty"),
        (1, 1, "sealed"),
        (2, 2, "open"),
        (3, None, "empty"),
    ]
    # In slot 1 four jobs wait or run; the failed one of slot 0 stands on the floor. In slot 2 is what two dead
    # letters left behind.
    assert [slot["jobs"] for slot in slots] == [0, 4, 0, 0]
    assert [slot["bytes"] > 0 for slot in slots] == [False, True, True, False]


def test_the_page_shows_each_figure_with_what_it_means(browser: Any, populated: str) -> None:
    answer = browser.get("/parkkeeper/", params={"namespace": populated})
    assert answer.status_code == 200
    assert "text/html" in answer.headers["content-type"]
    for _, heading, meaning in (*words.QUEUE, *words.MEMORY, *words.SCOPE):
        assert heading in answer.text
        assert f'title="{meaning}"' in answer.text
    assert f"<option selected>{populated}</option>" in answer.text
    # As the form sends it while none is chosen.
    assert f"<option selected>{populated}</option>" in browser.get("/parkkeeper/?namespace=").text
    assert "café &lt;b&gt;" in answer.text
    figures = re.findall(r'<td class="number (\w+)(?: zero)?" title="[^"]*">([^<]+)</td>', answer.text)
    assert figures[:8] == [
        ("available", "2"),
        ("running", "2"),
        ("deferred", "1"),
        ("failed", "1"),
        ("terminal", "4"),
        ("pruned_failed", "0"),
        ("dead_lettered", "1"),
        ("purged_dead_letters", "1"),
    ]
    assert ("formed_strict", "–") in figures


VIEWS = ("/", "/figures", "/?view=ring", "/?view=history", "/?view=triage", "/?view=runs&dag_id=x")


@pytest.mark.parametrize("path", VIEWS)
def test_neither_content_nor_the_text_of_an_error_is_shown(browser: Any, populated: str, path: str) -> None:
    address = f"/parkkeeper{path}{'&' if '?' in path else '?'}namespace={populated}"
    answer = browser.get(address)
    assert answer.status_code == 200
    assert populated in answer.text
    assert CONTENT not in answer.text
    assert ERROR not in answer.text


def test_the_page_runs_nothing_but_its_own_script_and_stays_in_airflows_frame(browser: Any) -> None:
    answer = browser.get("/parkkeeper/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert not re.search(r"<style|style=|<script>| on\w+=|https?://", answer.text)


def test_a_page_that_is_refused_says_what_to_do(anonymous: Any) -> None:
    def ask(path: str, status: int) -> str:
        answer = anonymous.get(f"/parkkeeper/{path}", headers={"Accept": "text/html"})
        assert answer.status_code == status
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        return notice(answer.text)

    assert "log in" in ask("", 401)
    assert anonymous.get("/parkkeeper/", headers={"Accept": "application/json"}).json()["detail"]
    login(anonymous, "stranger")
    assert "Viewer" in ask("", 403)
    login(anonymous, "watcher")
    assert "hours is out of range" in ask("?view=history&hours=0", 422)


def test_a_database_without_a_namespace_says_how_to_make_one(browser: Any) -> None:
    answer = browser.get("/parkkeeper/")
    assert answer.status_code == 200
    assert "There is no namespace in this database yet." in notice(answer.text)
    assert "parkkeeper_migrate" in notice(answer.text)
    assert browser.get("/parkkeeper/figures").json() == {"namespaces": [], "figures": None}


@pytest.mark.parametrize("family", migrations.FAMILIES)
def test_a_family_that_is_missing_or_empty_is_said(
    browser: Any, connection: psycopg.Connection, namespace: str, family: str
) -> None:
    migrations.migrate(connection, namespace, family)
    answer = browser.get("/parkkeeper/", params={"namespace": namespace})
    missing, empty = {
        "queue": ("no memory tables", "No job was ever enqueued here."),
        "memory": ("no queue tables", "No turn was ever appended here."),
    }[family]
    assert answer.status_code == 200
    assert missing in answer.text
    assert empty in answer.text


def test_the_configured_namespace_is_shown_first(
    browser: Any, connection: psycopg.Connection, migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{migrated[:-1]}_"
    migrations.migrate(connection, other, "memory")
    try:
        for name in (migrated, other):
            monkeypatch.setenv("AIRFLOW__PARKKEEPER__NAMESPACE", name)
            answer = browser.get("/parkkeeper/figures").json()
            assert answer["figures"]["namespace"] == name
            assert sorted(answer["namespaces"]) == sorted([migrated, other])
    finally:
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(other)))


@pytest.mark.parametrize(
    "name", ["unknown", "public", "pg_catalog", "a'; --", "<script>alert(1)</script>", "a\x00b", "x" * 999]
)
def test_an_unknown_namespace_is_not_found_and_the_others_are_offered(
    browser: Any, migrated: str, name: str
) -> None:
    answer = browser.get("/parkkeeper/", params={"namespace": name})
    assert answer.status_code == 404
    assert "There is no namespace" in notice(answer.text)
    assert f"<option>{migrated}</option>" in answer.text
    assert "<script>alert" not in answer.text
    assert browser.get("/parkkeeper/figures", params={"namespace": name}).status_code == 404


def test_a_namespace_of_another_release_is_not_read(
    browser: Any, connection: psycopg.Connection, migrated: str
) -> None:
    ledger = sql.Identifier(migrated, "schema_migration")
    connection.execute(
        sql.SQL("INSERT INTO {} VALUES ('queue', 9999, 'later', 'x', now(), 'another', 1)").format(ledger)
    )
    answer = browser.get("/parkkeeper/", params={"namespace": migrated})
    assert answer.status_code == 409
    assert "9999_later" in notice(answer.text)


@pytest.mark.parametrize("path", ["/", "/figures"])
def test_a_database_that_is_not_there_is_said_without_a_traceback(
    browser: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    nowhere = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "me", "password": "hunter2"}
    monkeypatch.setenv("AIRFLOW_CONN_PARKKEEPER_DEFAULT", json.dumps(nowhere))
    answer = browser.get(f"/parkkeeper{path}")
    assert answer.status_code == 503
    assert "The database of connection parkkeeper_default cannot be reached." in answer.text
    assert "Traceback" not in answer.text
    assert "hunter2" not in answer.text + caplog.text


def test_a_connection_that_is_not_defined_is_said(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__PARKKEEPER__CONN_ID", "nowhere")
    answer = browser.get("/parkkeeper/")
    assert answer.status_code == 503
    assert "connection nowhere" in notice(answer.text)


def test_a_table_that_is_locked_ends_the_wait(
    browser: Any, connect: Callable[..., psycopg.Connection], migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkkeeper.ui.reading.LOCK_TIMEOUT", timedelta(milliseconds=20))
    other = connect()
    other.autocommit = False
    other.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(migrated, "queue_ring_state")))
    answer = browser.get("/parkkeeper/", params={"namespace": migrated})
    assert answer.status_code == 503
    assert "another session holds a lock" in notice(answer.text)


def test_a_login_that_may_read_nothing_is_offered_nothing(
    browser: Any, connection: psycopg.Connection, dsn: str, migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = sql.Identifier(f"{migrated}_reader")
    connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'p'").format(role))
    try:
        reader = conninfo.make_conninfo(dsn, user=f"{migrated}_reader", password="p")
        monkeypatch.setenv("AIRFLOW_CONN_PARKKEEPER_DEFAULT", connection_json(reader))
        assert browser.get("/parkkeeper/figures").json()["namespaces"] == []
        assert browser.get("/parkkeeper/", params={"namespace": migrated}).status_code == 404
    finally:
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


def test_what_the_page_starts_is_what_the_dags_take(
    browser: Any, connection: psycopg.Connection, populated: str
) -> None:
    from parkkeeper import dags

    offered = {}
    for part in ("view=overview", "view=triage", "view=triage&kind=print"):
        html = browser.get(f"/parkkeeper/?namespace={populated}&{part}").text
        for dag_id, conf in re.findall(r'data-dag="(\w+)"[^>]* data-conf="([^"]*)"', html):
            offered[dag_id, tuple(json.loads(unescape(conf)))] = json.loads(unescape(conf))
    assert {dag_id for dag_id, _ in offered} == {
        "parkkeeper_queue_redrive",
        "parkkeeper_park_sweep",
        "parkkeeper_memory_rebuild",
    }
    for (dag_id, _), conf in offered.items():
        params = getattr(dags, dag_id)().params
        assert set(conf) <= set(params), dag_id
        params.update(conf)
        assert params.validate()["namespace"] == populated
    assert {"queue", "kind"} <= {name for _, names in offered for name in names}
