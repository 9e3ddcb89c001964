"""What calls cost with little behind them and with much: a history and a backlog of jobs, a log of turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from server import empty_database

from parkkeeper import database, migrations
from parkkeeper.memory import MemoryStore, SweepPolicy
from parkkeeper.memory.extractors import load
from parkkeeper.queue import QueueStorage

SCOPE = "bench"
NAMESPACE = "bench"
#: Jobs in one call.
BATCH = 100
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


def measure(dsn: str, sizes: Sequence[int]) -> dict[str, Any]:
    """Measure each call on a short and on a long past; return milliseconds and pages of each size, by call."""
    costs: dict[str, Any] = {}
    for size in sizes:
        for calls in (queue_calls, memory_calls):
            with calls(dsn, size) as (connection, named):
                for name, call in named.items():
                    costs.setdefault(name, {})[str(size)] = measured(connection, call)
    return costs


@contextmanager
def namespace(dsn: str, family: str) -> Iterator[psycopg.Connection[Any]]:
    """Yield a session with a database of its own, in which the family has its tables."""
    with empty_database(dsn) as address, database.connect(address) as connection:
        migrations.migrate(connection, NAMESPACE, family)
        yield connection


@contextmanager
def queue_calls(
    dsn: str, jobs: int
) -> Iterator[tuple[psycopg.Connection[Any], dict[str, Callable[[], object]]]]:
    """Yield what is measured where so many jobs were completed and as many wait."""
    with namespace(dsn, "queue") as connection:
        storage = QueueStorage(connection, NAMESPACE)
        for _ in range(2):
            storage.enqueue_many("bench", "work", [{"n": n} for n in range(jobs)], max_attempts=1)
        left = jobs
        while left:
            left -= storage.complete(storage.claim("bench", min(left, 10_000)))
        storage.rotate()
        storage.roll_up()
        connection.execute("VACUUM (ANALYZE)")
        claims: list[Any] = []
        args = [{"n": n} for n in range(BATCH)]
        yield (
            connection,
            {
                f"enqueue {BATCH}": lambda: storage.enqueue_many("bench", "work", args),
                f"claim {BATCH}": lambda: claims.append(storage.claim("bench", BATCH)),
                f"complete {BATCH}": lambda: storage.complete(claims.pop()),
                "claim 1 and fail it": lambda: storage.fail_many(
                    [(claim, "it was meant to fail") for claim in storage.claim("bench", 1)]
                ),
                "queue_counts": lambda: storage.queue_counts("bench"),
            },
        )


@contextmanager
def memory_calls(
    dsn: str, turns: int
) -> Iterator[tuple[psycopg.Connection[Any], dict[str, Callable[[], object]]]]:
    """Yield what is measured on a log of so many turns, as if it had been appended and formed."""
    with namespace(dsn, "memory") as connection:
        for statement in HISTORY:
            filled = sql.SQL(statement).format(*[sql.Identifier(NAMESPACE)] * statement.count("{}"))
            connection.execute(filled, {"scope": SCOPE, "turns": turns, "due": turns - turns // 10})
        connection.execute("VACUUM (ANALYZE)")
        store = MemoryStore(connection, NAMESPACE)
        # The numbers that the history states are those that counting gives.
        if differences := store.verify():
            raise RuntimeError(f"the seeded log is not a true one: {differences}")
        chunks = load("chunks")
        middle = (SCOPE, turns // 2)
        yield (
            connection,
            {
                "append": lambda: store.append(SCOPE, SAID),
                "claim and form 10": lambda: store.form_batch(chunks, limit=10),
                "freshness": lambda: store.freshness(SCOPE),
                "turn_status": lambda: store.turn_status(*middle),
                "parked, first page of 100": lambda: store.parked(SCOPE),
                "parked, a page of 100 in the middle": lambda: store.parked(SCOPE, after=middle),
                "unpark 10, of one scope": lambda: store.unpark(scope=SCOPE, limit=10),
                "sweep, dry run": lambda: store.sweep(SweepPolicy(unpark_classes=()), dry_run=True),
            },
        )


def measured(connection: psycopg.Connection[Any], call: Callable[[], object]) -> dict[str, float]:
    """Call some times and return the medians; the first call, which prepares, does not count."""
    call()
    looked, took = [], []
    for _ in range(ROUNDS):
        before, began = pages(connection), time.perf_counter()
        call()
        took.append((time.perf_counter() - began) * 1000)
        looked.append(pages(connection) - before)
    return {"ms": statistics.median(took), "pages": statistics.median(looked)}


def pages(connection: psycopg.Connection[Any]) -> int:
    """Return the count of pages so far, this session's included."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    row: Any = connection.execute(PAGES, [NAMESPACE]).fetchone()
    return int(row[0])
