"""The page where people see it: in the frame of Airflow's UI, in a real browser; what they start really runs."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from copies import new_name
from parkkeeper import database, migrations
from parkkeeper.demo.airflow import AirflowStandalone
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import load
from parkkeeper.queue import QueueStorage
from ringside import age, end_jobs
from ui.conftest import CONTENT, Refuses
from ui.record import record

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
#: Where the pictures of a run are kept; those of docs/images are copies of them.
PICTURES = ROOT / "build" / "screenshots"
PATIENCE = timedelta(minutes=5)
SOON = 60_000  # milliseconds, for what a busy machine may take its time over

DAGS = ("parkkeeper_queue_redrive", "parkkeeper_park_sweep", "parkkeeper_memory_rebuild")
DAG_FILE = """
# An Airflow DAG.
from parkkeeper.dags import {dag_id}

dag = {dag_id}(namespace="{namespace}"{more})
"""


@pytest.fixture(scope="module")
def space(server_dsn: str) -> Iterator[str]:
    """A namespace with something in every part of the page."""
    name = new_name()
    with database.connect(server_dsn) as connection:
        try:
            populate(connection, name)
            yield name
        finally:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


def populate(connection: psycopg.Connection, name: str) -> None:
    for family in migrations.FAMILIES:
        migrations.migrate(connection, name, family, queue_slots=8)
    storage = QueueStorage(connection, name)
    late = end_jobs(storage, 12, queue="invoices", kind="send")
    age(storage, late[:4], timedelta(hours=60))
    lost = end_jobs(storage, 2, queue="invoices", kind="send")
    age(storage, lost, timedelta(hours=80))
    end_jobs(storage, 300, state="completed", queue="invoices", kind="send")
    storage.rotate()
    assert storage.prune_oldest().pruned_failed == len(lost)
    end_jobs(storage, 5, queue="thumbnails", kind="render")
    storage.enqueue_many("thumbnails", "render", [None] * 20)
    storage.claim("thumbnails", 3)
    storage.rotate()
    end_jobs(storage, 200, state="completed", queue="mail", kind="send")
    storage.enqueue_many("invoices", "send", [None] * 40)
    store = MemoryStore(connection, name)
    for scope, turns in (("alice", 3), ("bob", 2)):
        for _ in range(turns):
            store.append(scope, [{"role": "user", "content": CONTENT}])
            store.form_batch(Refuses(), scope=scope, limit=1, max_attempts=1)
        store.append(scope, [{"role": "user", "content": CONTENT}])
    for hour in range(24):
        ago = timedelta(hours=hour, minutes=7)
        record(
            connection,
            name,
            "prune_with_carry",
            "pruned",
            ago,
            carried_failed=5 + hour % 7,
            pruned_failed=2 if hour == 10 else 0,
            pruned_completed=400 - 9 * hour,
            lock_ms=4.0 + hour % 5,
        )
        record(
            connection,
            name,
            "formation_batch",
            "formed",
            ago,
            formed=90 + hour % 13,
            parked=hour % 9 // 8,
            backlog=40 + 3 * hour,
        )
        record(connection, name, "lag_check", "ok", ago, oldest_pending_seconds=60 + 20 * hour)
    record(connection, name, "deadline", "missed", timedelta(hours=9))


@pytest.fixture(scope="module")
def airflow(server_dsn: str, space: str) -> Iterator[AirflowStandalone]:
    """Airflow, running, with an admin and a viewer."""
    folder = Path(tempfile.mkdtemp(prefix="parkkeeper-test-"))
    try:
        folder.chmod(0o755)  # the metadata server may have to run as another user
        dags = folder / "dags"
        dags.mkdir()
        for dag_id in DAGS:
            more = ", schedule=None" if dag_id == "parkkeeper_park_sweep" else ""
            (dags / f"{dag_id}.py").write_text(DAG_FILE.format(dag_id=dag_id, namespace=space, more=more))
        running = AirflowStandalone(folder / "home", dsn=server_dsn, dags=dags, plugins=ROOT / "plugins")
        try:
            running.prepare()
            (running.home / "passwords.json").write_text(json.dumps({"admin": "admin", "watcher": "watcher"}))
            running.environment |= {
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,watcher:viewer",
                "AIRFLOW__PARKKEEPER__NAMESPACE": space,
            }
            running.launch()
            running.wait_until_ready(timeout=PATIENCE)
            running.client.wait_for_dags(set(DAGS), PATIENCE)
            for dag_id in DAGS:
                running.client.unpause(dag_id)
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=SOON)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-background-networking"]
        )
        yield browser
        browser.close()


class Viewer:
    """Somebody who is logged in and looks at Airflow's UI; what the browser complains of is kept in `said`."""

    def __init__(self, chromium: Any, airflow: AirflowStandalone, user: str, **context: Any) -> None:
        self.airflow = airflow
        self.context = chromium.new_context(**context)
        self.context.set_default_timeout(SOON)
        login = {"username": user, "password": user}
        token = self.context.request.post(f"{airflow.url}/auth/token", data=login).json()["access_token"]
        self.context.add_cookies([{"name": "_token", "value": token, "url": airflow.url}])
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))

    def open(self, address: str = "plugin/parkkeeper") -> Any:
        """Go to a page of Airflow's that has the frame, and return the frame's document."""
        self.page.goto(f"{self.airflow.url}/{address}")
        return self.frame

    @property
    def frame(self) -> Any:
        return self.page.frame_locator("iframe[title=Parkkeeper]")

    def violations(self) -> list[str]:
        """What axe finds in the frame that is serious."""
        from axe_playwright_python.sync_playwright import Axe

        inside = self.page.frames[-1]  # the page's own, where Airflow has none around it
        found = Axe().run(inside).response["violations"]
        return [
            f"{one['id']}: {node['html']}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]

    def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png")


@pytest.fixture
def viewer(chromium: Any, airflow: AirflowStandalone) -> Iterator[Any]:
    """Make viewers; in the end, none of their browsers complained of anything of ours."""
    made: list[Viewer] = []

    def make(user: str = "admin", **context: Any) -> Viewer:
        made.append(Viewer(chromium, airflow, user, **context))
        return made[-1]

    yield make
    for one in made:
        one.context.close()
        # A refused start is an answer of 403, which a browser says as an error of its own.
        assert [text for text in one.said if text.startswith("error") and "403" not in text] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_part_is_shown_in_the_frame_in_both_themes_and_is_accessible(viewer: Any, scheme: str) -> None:
    from playwright.sync_api import expect

    who = viewer(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    who.page.goto(who.airflow.url)
    who.page.get_by_role("link", name="Parkkeeper").click()
    frame = who.frame
    expect(frame.get_by_role("heading", name="What needs attention")).to_be_visible()
    expect(frame.locator("html")).to_have_attribute("data-theme", scheme)
    ground = frame.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    # What is said to have been dropped is what the counters say.
    expect(frame.locator(".attention li").first).to_contain_text("2 failed jobs dropped")
    expect(frame.locator(".card.pruned_failed dd")).to_have_text("2")
    assert who.violations() == []
    who.picture(f"overview-{scheme}")

    frame.get_by_role("link", name="Ring", exact=True).click()
    expect(frame.locator("svg.ring path")).to_have_count(8)
    frame.get_by_role("button", name="Show what it would do").click()
    expect(frame.locator("#planned p")).to_contain_text("Nothing can be reclaimed now")
    assert who.violations() == []
    who.picture(f"ring-{scheme}")

    frame.get_by_role("link", name="Over time").click()
    before = frame.locator("#charts").bounding_box()
    expect(frame.locator("#charts svg")).to_be_visible()
    assert frame.locator("#charts").bounding_box() == before  # nothing below jumped
    expect(frame.locator("#charts")).to_contain_text("Backlog age")
    assert who.violations() == []
    who.picture(f"history-{scheme}")

    frame.get_by_role("link", name="Triage").click()
    expect(frame.get_by_role("heading", name="Parked turns")).to_be_visible()
    assert who.violations() == []
    who.picture(f"triage-{scheme}")


def test_a_filter_is_in_the_address_and_times_are_the_viewers(viewer: Any, space: str) -> None:
    from playwright.sync_api import expect

    who = viewer(timezone_id="Asia/Kolkata", locale="en-GB")
    frame = who.open("plugin/parkkeeper")
    frame.get_by_role("link", name="Triage").click()
    frame.get_by_role("textbox", name="Queue").fill("thumbnails")
    frame.get_by_role("textbox", name="Queue").press("Enter")
    rows = frame.locator("section[aria-labelledby=failed] > .scroll tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("render")
    query = f"namespace={space}&view=triage&queue=thumbnails&kind="
    expect(who.page).to_have_url(f"{who.airflow.url}/plugin/parkkeeper/parkkeeper/?{query}")
    time = frame.locator("time").first
    utc, stamp = time.get_attribute("title"), time.get_attribute("datetime")
    assert utc.endswith("UTC")
    shown = time.evaluate(
        "time => new Date(time.dateTime).toLocaleString('en-GB',"
        " {dateStyle: 'medium', timeStyle: 'medium', timeZone: 'Asia/Kolkata'})"
    )
    assert (time.inner_text(), utc[:19]) == (shown, stamp[:19].replace("T", " "))


def test_it_can_be_used_on_a_small_screen_and_by_keyboard(viewer: Any, space: str) -> None:
    from playwright.sync_api import expect

    who = viewer(viewport={"width": 320, "height": 640})
    for view in ("overview", "ring", "history", "triage"):
        who.page.goto(f"{who.airflow.url}/parkkeeper/?namespace={space}&view={view}")
        longest = "option => { option.textContent = 'w'.repeat(48); }"  # the longest name of a namespace
        who.page.locator("#namespace option").first.evaluate(longest)
        wider = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not who.page.evaluate(wider), view
        assert who.violations() == [], view
    button = who.page.get_by_role("button", name="Unpark").first
    button.focus()
    button.press("Enter")
    expect(who.page.get_by_role("dialog")).to_be_visible()
    expect(who.page.locator("#confirm-rows")).to_contain_text("row")
    who.page.keyboard.press("Escape")
    expect(who.page.get_by_role("dialog")).not_to_be_visible()
    expect(button).to_be_focused()


def test_a_redrive_says_how_many_rows_starts_the_dag_and_leads_to_the_run(
    viewer: Any, server_dsn: str, space: str
) -> None:
    from playwright.sync_api import expect

    who = viewer(viewport={"width": 1280, "height": 900})
    frame = who.open(f"plugin/parkkeeper/parkkeeper/?namespace={space}&view=triage")
    row = frame.get_by_role("row").filter(has_text="thumbnails").first
    row.get_by_role("button", name="Redrive queue").click()
    expect(frame.locator("#confirm-rows")).to_contain_text("5 rows.")
    expect(frame.locator("#confirm-conf")).to_contain_text("thumbnails")
    assert who.violations() == []
    who.picture("redrive")
    frame.get_by_role("button", name="Start").click()
    frame.get_by_role("link", name="Open the run").click()
    who.page.wait_for_url("**/dags/parkkeeper_queue_redrive/runs/*")
    (run,) = who.airflow.client.runs("parkkeeper_queue_redrive")
    assert who.airflow.client.wait(run, PATIENCE).state == "success"
    with database.connect(server_dsn) as connection:
        assert QueueStorage(connection, space).queue_counts("thumbnails").failed == 0

    who.page.get_by_role("link", name="Parkkeeper").last.click()
    expect(who.frame.get_by_role("row").filter(has_text="retry_failed")).to_contain_text("retried 5")


def test_an_unpark_is_a_run_of_the_sweep(viewer: Any, server_dsn: str, space: str) -> None:
    from playwright.sync_api import expect

    who = viewer()
    frame = who.open(f"plugin/parkkeeper/parkkeeper/?namespace={space}&view=triage&scope=alice")
    frame.get_by_role("button", name="Unpark").click()
    expect(frame.locator("#confirm-rows")).to_contain_text("3 rows.")
    frame.get_by_role("button", name="Start").click()
    expect(frame.get_by_role("link", name="Open the run")).to_be_visible()
    (run,) = who.airflow.client.runs("parkkeeper_park_sweep")
    assert who.airflow.client.wait(run, PATIENCE).state == "success"
    with database.connect(server_dsn) as connection:
        store = MemoryStore(connection, space)
        assert (store.freshness("alice").parked, store.freshness("bob").parked) == (0, 2)


def test_a_rebuild_is_of_what_was_counted(viewer: Any, server_dsn: str, space: str) -> None:
    from playwright.sync_api import expect

    with database.connect(server_dsn) as connection:
        store = MemoryStore(connection, space)
        store.append("carol", [{"role": "user", "content": CONTENT}])
        store.form_batch(load("chunks"), scope="carol")
        who = viewer()
        frame = who.open(f"plugin/parkkeeper/parkkeeper/?namespace={space}")
        # Formed after the page was made, and before the rows were counted.
        expect(frame.get_by_role("row").filter(has_text="carol")).to_be_visible()
        store.append("carol", [{"role": "user", "content": CONTENT}])
        store.form_batch(load("chunks"), scope="carol")
        frame.get_by_role("row").filter(has_text="carol").get_by_role("button", name="Rebuild").click()
        expect(frame.locator("#confirm-rows")).to_contain_text("2 rows.")
        frame.get_by_role("button", name="Start").click()
        frame.get_by_role("link", name="Open the run").click()
        who.page.wait_for_url("**/dags/parkkeeper_memory_rebuild/runs/*")
        (run,) = who.airflow.client.runs("parkkeeper_memory_rebuild")
        assert who.airflow.client.wait(run, PATIENCE).state == "success"
        done = "SELECT (figures ->> 'rebuilt')::bigint FROM {}.maintenance_run WHERE dag_run_id = %s"
        found = connection.execute(sql.SQL(done).format(sql.Identifier(space)), [run.run_id]).fetchall()
        assert found == [(2,)]


def test_a_server_that_does_not_answer_is_said_wherever_it_was_asked(viewer: Any, space: str) -> None:
    from playwright.sync_api import expect

    who = viewer()
    gone = "The server cannot be reached."
    frame = who.open(f"plugin/parkkeeper/parkkeeper/?namespace={space}&view=triage&scope=bob")
    expect(frame.get_by_role("heading", name="Parked turns")).to_be_visible()
    inside = who.page.frames[-1]
    who.context.set_offline(True)
    inside.evaluate("refresh()")
    expect(frame.locator("#stale")).to_have_text(f"These figures are no longer refreshed: {gone} Try again.")
    frame.get_by_role("button", name="Unpark").click()
    expect(frame.locator("#confirm-rows")).to_contain_text(gone)
    frame.get_by_role("button", name="Close").click()
    who.context.set_offline(False)
    frame.get_by_role("button", name="Unpark").click()
    expect(frame.get_by_role("button", name="Start")).to_be_enabled()
    who.context.set_offline(True)
    frame.get_by_role("button", name="Start").click()
    expect(frame.locator("#confirm-said")).to_contain_text("It is not known whether a run was started")
    frame.get_by_role("button", name="Close").click()
    who.context.set_offline(False)
    inside.evaluate("document.activeElement.blur()")
    inside.evaluate("refresh()")
    expect(frame.locator("#stale")).to_have_text("")

    frame.get_by_role("link", name="Ring", exact=True).click()
    expect(frame.get_by_role("button", name="Show what it would do")).to_be_visible()
    who.context.set_offline(True)
    frame.get_by_role("button", name="Show what it would do").click()
    expect(frame.locator("#planned")).to_have_text(f"{gone} Try again.")
    who.context.set_offline(False)
    who.said.clear()  # that it was offline


def test_a_dag_that_is_paused_or_missing_is_said_before_anything_is_started(viewer: Any, space: str) -> None:
    from playwright.sync_api import expect

    who = viewer()
    client = who.airflow.client
    client.pause("parkkeeper_park_sweep")
    try:
        frame = who.open(f"plugin/parkkeeper/parkkeeper/?namespace={space}&view=triage&scope=bob")
        frame.get_by_role("button", name="Unpark").click()
        expect(frame.locator("#confirm-said")).to_contain_text("is paused")
        expect(frame.get_by_role("button", name="Start")).to_be_disabled()
    finally:
        client.unpause("parkkeeper_park_sweep")


def test_a_viewer_sees_everything_and_can_start_nothing(viewer: Any, space: str) -> None:
    from playwright.sync_api import expect

    who = viewer("watcher")
    frame = who.open(f"plugin/parkkeeper/parkkeeper/?namespace={space}&view=triage&scope=bob")
    before = who.airflow.client.runs("parkkeeper_park_sweep")
    frame.get_by_role("button", name="Unpark").click()
    expect(frame.locator("#confirm-rows")).to_contain_text("2 rows.")
    frame.get_by_role("button", name="Start").click()
    expect(frame.locator("#confirm-said")).to_have_text(
        "Your role may look and not start this DAG. Nothing was started."
    )
    assert who.airflow.client.runs("parkkeeper_park_sweep") == before
