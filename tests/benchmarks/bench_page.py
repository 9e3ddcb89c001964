"""How long the parts of the page take over a namespace of a million jobs and as many turns: ``make bench``."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import psycopg
from psycopg import sql
from rich.console import Console
from rich.table import Table

from parkkeeper import database, embedded, migrations
from parkkeeper.demo.airflow import connection_json
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


def parts() -> Iterator[tuple[str, Callable[[], object]]]:
    """Return what is measured: the parts of the page, and the drawing that comes after one of them."""
    from parkkeeper.ui import charts, history, page

    for view in page.PARTS:
        yield view, lambda view=view: page.show(page.Asked(namespace=SPACE, view=view, hours=2160))
    yield "charts of 90 days", lambda: charts.draw(history.read(SPACE, 2160))


def main(rows: int = ROWS) -> None:
    """Measure and print."""
    table = Table(
        "part", "median s", "longest s", title=f"The page over {rows:,} jobs ended, waiting, and turns"
    )
    with embedded.resolve_dsn() as dsn, database.connect(dsn) as connection:
        os.environ["AIRFLOW_CONN_PARKKEEPER_DEFAULT"] = connection_json(dsn)
        try:
            fill(connection, rows)
            for name, ask in parts():
                taken = []
                for _ in range(ROUNDS):
                    began = time.perf_counter()
                    ask()
                    taken.append(time.perf_counter() - began)
                table.add_row(name, f"{statistics.median(taken):.3f}", f"{max(taken):.3f}")
        finally:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(SPACE)))
    Console().print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
