"""The page where people see it: in the frame of Airflow's UI, in a real browser."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper import migrations
from parkkeeper.demo.airflow import connection_json
from parkkeeper.demo.client import until
from ui.conftest import PASSWORDS

pytestmark = pytest.mark.system


@pytest.fixture
def address(server: Any, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Airflow's API server, listening."""
    import uvicorn

    monkeypatch.setenv("AIRFLOW_CONN_PARKKEEPER_DEFAULT", connection_json(dsn))
    listening = uvicorn.Server(uvicorn.Config(server, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=listening.run)
    thread.start()
    until(lambda: listening.started, bool, timedelta(minutes=1))
    port = listening.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    listening.should_exit = True
    thread.join()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_in_the_navigation_follows_the_theme_and_shows_what_is_chosen(
    address: str, connection: psycopg.Connection, namespace: str, scheme: str
) -> None:
    from playwright.sync_api import expect, sync_playwright

    migrations.migrate(connection, namespace, "queue", queue_slots=4)
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-background-networking"]
        )
        context = browser.new_context(color_scheme=scheme)
        user = {"username": "keeper", "password": PASSWORDS["keeper"]}
        token = context.request.post(f"{address}/auth/token", data=user).json()["access_token"]
        context.add_cookies([{"name": "_token", "value": token, "url": address}])
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)

        page.goto(address)
        page.get_by_role("link", name="Parkkeeper").click()
        frame = page.frame_locator("iframe[title=Parkkeeper]")
        expect(frame.get_by_role("heading", name="Parkkeeper")).to_be_visible()
        expect(frame.locator("html")).to_have_attribute("data-theme", scheme)
        ground = frame.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")

        frame.get_by_label("Namespace").select_option(namespace)
        expect(frame.get_by_text("No job was ever enqueued here.")).to_be_visible()
        expect(frame.locator(".ring li")).to_have_count(4)
        expect(page).to_have_url(f"{address}/plugin/parkkeeper/parkkeeper/?namespace={namespace}")
        browser.close()
    assert [text for text in said if "parkkeeper" in text.lower()] == []
