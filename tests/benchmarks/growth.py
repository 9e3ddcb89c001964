"""What the memory's calls cost with a short log behind them and with a long one: ``make bench``."""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
from measure import bench_namespace
from psycopg import sql
from rich.console import Console
from rich.table import Table

from parkkeeper.memory import MemoryStore, SweepPolicy
from parkkeeper.memory.extractors import load

SCOPE = "bench"
SHORT = 10_000
ROUNDS = 15
SAID = [{"role": "user", "content": "Where is parcel 7?"}]

#: Every tenth turn is parked, the last tenth is due, the others are formed.
HISTORY = (
    "INSERT INTO {}.observation (scope, log_offset, occurred_at, next_attempt_at, formed_at, parked_at, park_count, "
    "formation_attempts, formation_failed_at, formation_error_class) "
    "SELECT %(scope)s, n, now(), now(), CASE WHEN n < %(due)s AND n %% 10 > 0 THEN now() END, "
    "CASE WHEN n < %(due)s AND n %% 10 = 0 THEN clock_timestamp() END, CASE WHEN n < %(due)s AND n %% 10 = 0 THEN 1 "
    "ELSE 0 END, CASE WHEN n < %(due)s THEN 1 ELSE 0 END, CASE WHEN n < %(due)s AND n %% 10 = 0 THEN now() END, "
    "CASE WHEN n < %(due)s AND n %% 10 = 0 THEN 'refusal'::{}.formation_error_class END "
    "FROM generate_series(0, %(turns)s - 1) AS n",
    "INSERT INTO {}.turn_message (observation_id, position, role, content) "
    "SELECT observation_id, 0, 'user', 'Where is parcel ' || log_offset FROM {}.observation",
    "INSERT INTO {}.watermark VALUES (%(scope)s, %(turns)s - 1)",
    "INSERT INTO {}.watermark_formed (scope, formed_offset, formed_strict_offset, formed, parked, oldest_parked_at) "
    "SELECT %(scope)s, %(due)s - 1, -1, count(formed_at), count(parked_at), min(parked_at) FROM {}.observation",
    "INSERT INTO {}.parked_class SELECT scope, 'refusal', parked FROM {}.watermark_formed",
)
#: Pages of the namespace's own tables and indexes that were looked at since the server began to count.
PAGES = """
SELECT sum(coalesce(heap_blks_hit, 0) + coalesce(heap_blks_read, 0) + coalesce(idx_blks_hit, 0)
           + coalesce(idx_blks_read, 0) + coalesce(toast_blks_hit, 0) + coalesce(toast_blks_read, 0))::bigint
  FROM pg_statio_user_tables WHERE schemaname = %s
"""

#: A statement that has a plan of interest; named statements begin with comments.
READS_ROWS = re.compile(rb"(\s|--.*\n)*(SELECT|WITH|UPDATE|DELETE|INSERT)\b")


class Recorder(psycopg.Cursor[Any]):
    """A cursor that remembers which statements it was given, and with which values."""

    seen: ClassVar[dict[bytes, Any]] = {}

    def execute(self, query: Any, params: Any = None, **options: Any) -> Recorder:
        """Remember the statement and run it."""
        if isinstance(query, bytes):
            self.seen.setdefault(query, params)
        return super().execute(query, params, **options)


@dataclass(frozen=True)
class Cost:
    """What one call cost: pages that were looked at and milliseconds, each the median of the rounds."""

    pages: float
    ms: float


def seed(connection: psycopg.Connection[Any], namespace: str, turns: int) -> MemoryStore:
    """Write a log of `turns` turns, as if it had been appended and formed, and check the kept numbers by counting."""
    for statement in HISTORY:
        schema = sql.Identifier(namespace)
        filled = sql.SQL(statement).format(*[schema] * statement.count("{}"))
        connection.execute(filled, {"scope": SCOPE, "turns": turns, "due": turns - turns // 10})
    connection.execute("VACUUM (ANALYZE)")
    store = MemoryStore(connection, namespace)
    assert not store.verify(), store.verify()
    return store


def calls(store: MemoryStore, turns: int) -> dict[str, Callable[[], object]]:
    """Return what is measured, by name."""
    chunks = load("chunks")
    middle = (SCOPE, turns // 2)
    return {
        "append": lambda: store.append(SCOPE, SAID),
        "claim and form 10": lambda: store.form_batch(chunks, limit=10),
        "freshness": lambda: store.freshness(SCOPE),
        "turn_status": lambda: store.turn_status(*middle),
        "parked, first page of 100": lambda: store.parked(SCOPE),
        "parked, a page of 100 in the middle": lambda: store.parked(SCOPE, after=middle),
        "unpark 10, of one scope": lambda: store.unpark(scope=SCOPE, limit=10),
        "sweep, dry run": lambda: store.sweep(SweepPolicy(unpark_classes=()), dry_run=True),
    }


def pages(connection: psycopg.Connection[Any], namespace: str) -> int:
    """Return the count of pages so far, this session's included."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    row = connection.execute(PAGES, [namespace]).fetchone()
    assert row is not None
    return int(row[0])


def measured(connection: psycopg.Connection[Any], namespace: str, call: Callable[[], object]) -> Cost:
    """Call some times and return the medians; the first call, which prepares, does not count."""
    call()
    looked, took = [], []
    for _ in range(ROUNDS):
        before, began = pages(connection, namespace), time.perf_counter()
        call()
        took.append((time.perf_counter() - began) * 1000)
        looked.append(pages(connection, namespace) - before)
    return Cost(statistics.median(looked), statistics.median(took))


def scans(plan: dict[str, Any]) -> Iterator[str]:
    """Yield how a plan reads each of its tables."""
    if "Relation Name" in plan and "Scan" in plan["Node Type"]:
        yield f"{plan['Node Type']} {plan.get('Index Name', plan['Relation Name'])}"
    elif plan["Node Type"] == "Bitmap Index Scan":
        yield f"{plan['Node Type']} {plan['Index Name']}"
    for child in plan.get("Plans", []):
        yield from scans(child)


def plans(connection: psycopg.Connection[Any]) -> str:
    """Return by which scans the statements that were seen read their tables."""
    used = set()
    for statement, values in Recorder.seen.items():
        if not READS_ROWS.match(statement):
            continue
        row = psycopg.Cursor(connection).execute(b"EXPLAIN (FORMAT JSON) " + statement, values).fetchone()
        assert row is not None
        used |= set(scans(row[0][0]["Plan"]))
    Recorder.seen.clear()
    return "\n".join(sorted(used))


def main(turns: int = 1_000_000) -> None:
    """Measure each call on a log of 10,000 turns and on one of `turns`, on one server."""
    costs: dict[int, dict[str, Cost]] = {}
    used: dict[str, str] = {}
    for size in (SHORT, turns):
        with bench_namespace("memory") as (connection, namespace):
            store = seed(connection, namespace, size)
            connection.cursor_factory = Recorder
            costs[size] = {}
            for name, call in calls(store, size).items():
                Recorder.seen.clear()
                costs[size][name] = measured(connection, namespace, call)
                used[name] = plans(connection)
    show(turns, costs, used)


def show(turns: int, costs: dict[int, dict[str, Cost]], used: dict[str, str]) -> None:
    """Print the table of both sizes and their ratio, and how the longer log was read."""
    table = Table(
        title=f"Memory, one scope of {SHORT:,} and of {turns:,} turns, a tenth of them parked, a tenth due"
    )
    table.title_justify = "left"
    table.add_column("call")
    for heading in (
        f"pages, {SHORT:,}",
        f"pages, {turns:,}",
        "ratio",
        f"ms, {SHORT:,}",
        f"ms, {turns:,}",
        "ratio",
    ):
        table.add_column(heading, justify="right")
    read = Table(
        "call", "scans", title=f"How they read, {turns:,} turns", title_justify="left", show_lines=True
    )
    for name, short in costs[SHORT].items():
        long = costs[turns][name]
        table.add_row(
            name,
            *(f"{short.pages:,.0f}", f"{long.pages:,.0f}", f"{long.pages / short.pages:.2f}"),
            *(f"{short.ms:.2f}", f"{long.ms:.2f}", f"{long.ms / short.ms:.2f}"),
        )
        read.add_row(name, used[name])
    console = Console(width=140)
    console.print(table)
    console.print(read)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
