"""What it takes to prune a slot of the queue ring, by how many rows it has and how many of them are carried."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from statistics import median
from typing import Any

import psycopg
from growth import NAMESPACE, namespace

from parkkeeper.queue import QueueStorage

#: Parts of the rows that failed, within their retention.
FAILED = (0.0, 0.5)
#: No prune is to be blocked by what the machine does besides.
PATIENT = timedelta(seconds=5)


def measure(dsn: str, sizes: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Prune slots of each size and mixture, and return the figures of each."""
    return [slot(dsn, size, round(size * part), rounds) for size in sizes for part in FAILED]


def slot(dsn: str, size: int, failed: int, rounds: int) -> dict[str, Any]:
    """Fill a slot and prune it, several times in one namespace: in each round more rows were carried before."""
    prunes: list[dict[str, float]] = []
    with namespace(dsn, "queue") as connection:
        storage = QueueStorage(connection, NAMESPACE)
        for _ in range(rounds):
            fill(storage, size, failed)
            storage.rotate()
            prunes.append(pruned(storage))
    return {
        "rows": size,
        "carried": failed,
        "carried before, at last": failed * (rounds - 1),
        **{name: median(prune[name] for prune in prunes) for name in prunes[0]},
        "under exclusive locks, at first, ms": prunes[0]["under exclusive locks, ms"],
        "under exclusive locks, at last, ms": prunes[-1]["under exclusive locks, ms"],
    }


def fill(storage: QueueStorage, size: int, failed: int) -> None:
    """Let so many jobs end in the current slot, of which some fail."""
    storage.enqueue_many("bench", "work", [{"n": n} for n in range(size)], max_attempts=1)
    while claims := storage.claim("bench", 10_000):
        now = min(failed, len(claims))
        storage.fail_many([(claim, "it was meant to fail") for claim in claims[:now]])
        storage.complete(claims[now:])
        failed -= now


def pruned(storage: QueueStorage) -> dict[str, float]:
    """Prune the slot that was sealed, and return what that took."""
    before, began = _written(storage.connection), time.perf_counter()
    outcome = storage.prune_oldest(lock_timeout=PATIENT)
    took = (time.perf_counter() - began) * 1000
    if outcome.outcome != "pruned":
        raise RuntimeError(f"the slot was not pruned: {outcome}")
    return {
        "ms": took,
        "under exclusive locks, ms": outcome.truncate_ms,
        "WAL, kB": (_written(storage.connection) - before) / 1000,
    }


def _written(connection: psycopg.Connection[Any]) -> int:
    row: Any = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
    return int(row[0])
