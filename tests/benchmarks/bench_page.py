"""How long the page takes in a browser over a namespace of a million jobs and as many turns: ``make bench``.

Needs Chromium. Airflow's API server runs in this process, with a metadata database of its own.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from rich.console import Console
from rich.table import Table

from parkkeeper import database, embedded, migrations
from parkkeeper.demo.airflow import connection_json, free_port
from parkkeeper.queue import QueueStorage

SPACE = "bench_page"
ROWS = 1_000_000
ROUNDS = 7

#: Of the jobs that ended one in ten is failed.
FAIL = "UPDATE {}.done_entries SET state = 'failed' WHERE lane_seq %% 10 = 0"
#: Of the turns of a thousand scopes one in ten is parked, and one in ten waits.
TURNS = (
    "INSERT INTO {}.observation (scope, log_offset, occurred_at, formed_at, parked_at, park_count, formation_attempts,"
    " formation_failed_at, formation_error_class)"
    " SELECT 's' || n %% 1000, n / 1000, now(), CASE WHEN n %% 10 NOT IN (0, 5) THEN now() END,"
    " CASE WHEN n %% 10 = 0 THEN now() END, (n %% 10 = 0)::integer, 1, now(), 'refusal'::{}.formation_error_class"
    " FROM generate_series(0, %(rows)s - 1) AS n",
    "INSERT INTO {}.watermark SELECT scope, max(log_offset) FROM {}.observation GROUP BY scope",
    "INSERT INTO {}.watermark_formed (scope, formed_offset, formed_strict_offset, formed, parked, oldest_parked_at)"
    " SELECT scope, -1, -1, count(formed_at), count(parked_at), min(parked_at) FROM {}.observation"
    " GROUP BY scope",
    "INSERT INTO {}.parked_class SELECT scope, 'refusal', parked FROM {}.watermark_formed WHERE parked > 0",
)
#: Ninety days of runs, one each half minute.
RUNS = (
    "INSERT INTO {}.maintenance_run (action, outcome, started_at, ended_at, figures)"
    " SELECT (ARRAY['prune_with_carry', 'rotate_ring', 'formation_batch', 'freshness'])[n %% 4 + 1], 'done',"
    " now() - n * interval '30 s', now() - n * interval '30 s',"
    " jsonb_build_object('carried_failed', n %% 7, 'pruned_failed', 0, 'formed', n %% 90, 'backlog', n %% 50,"
    " 'lock_ms', 1.5) FROM generate_series(0, 259199) AS n"
)


def fill(connection: psycopg.Connection, rows: int) -> None:
    """Fill the namespace: a million jobs that ended, a million that wait, a million turns, ninety days of runs."""

    def run(text: str) -> None:
        names = [sql.Identifier(SPACE)] * text.count("{}")
        connection.execute(sql.SQL(text).format(*names), {"rows": rows})

    for family in migrations.FAMILIES:
        migrations.migrate(connection, SPACE, family)
    storage = QueueStorage(connection, SPACE)
    for queue in ("a", "b", "c", "d"):
        storage.enqueue_many(queue, "work", [None] * (rows // 4))
        while claims := storage.claim(queue, 5000):
            storage.complete(claims)
    run(FAIL)
    storage.rebuild_terminal_counters()
    storage.rotate()
    for queue in ("a", "b", "c", "d"):
        storage.enqueue_many(queue, "work", [None] * (rows // 4))
    for text in (*TURNS, RUNS):
        run(text)


@contextmanager
def api_server(dsn: str, home: Path) -> Iterator[str]:
    """Run Airflow's API server, where everybody is an admin, and return its address."""
    port = free_port()
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(Path(__file__).resolve().parents[2] / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__API_AUTH__JWT_SECRET": "x" * 64,
        "AIRFLOW_CONN_PARKKEEPER_DEFAULT": connection_json(dsn),
    }
    warnings.simplefilter("ignore")
    import uvicorn
    from airflow.api_fastapi.app import create_app
    from airflow.utils.db import initdb

    initdb()
    server = uvicorn.Server(uvicorn.Config(create_app(apps="core"), port=port, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            thread.join(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def parts(url: str, tab: Any) -> Iterator[tuple[str, Callable[[], float]]]:
    """Return what is measured, in seconds: each part until its figures stand there, and the charts that come later."""
    from parkkeeper.ui.page import PARTS

    def load(query: str) -> float:
        tab.goto(f"{url}/parkkeeper/?namespace={SPACE}&{query}", wait_until="domcontentloaded")
        entry = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
        return float(tab.evaluate(entry)) / 1000

    def draw(query: str) -> float:
        began = time.perf_counter()
        load(query)
        tab.wait_for_selector("#charts svg")
        return time.perf_counter() - began

    for view, heading in PARTS.items():
        yield heading, partial(load, f"view={view}")
    yield "Over time, 90 days", partial(load, "view=history&hours=2160")
    yield "Over time, 90 days, with its charts", partial(draw, "view=history&hours=2160")


def measure(table: Table, url: str) -> None:
    """Ask for each part once, and then as often as is counted."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        context = chromium.new_context()
        context.set_default_timeout(60_000)
        token = context.request.get(f"{url}/auth/token").json()["access_token"]
        context.add_cookies([{"name": "_token", "value": token, "url": url}])
        for name, ask in parts(url, context.new_page()):
            ask()
            taken = [ask() for _ in range(ROUNDS)]
            table.add_row(name, f"{statistics.median(taken):.2f}", f"{max(taken):.2f}")
        chromium.close()


def main(rows: int = ROWS) -> None:
    """Measure and print."""
    title = f"The page in a browser over {rows:,} jobs ended, waiting, and turns"
    table = Table("part", "median s", "longest s", title=title)
    with embedded.resolve_dsn() as dsn, database.connect(dsn) as connection:
        try:
            fill(connection, rows)
            with tempfile.TemporaryDirectory() as home, api_server(dsn, Path(home)) as url:
                measure(table, url)
        finally:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(SPACE)))
    Console().print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
