"""Let a queue keep failed jobs and print what that cost: ``python -m peers.keeping MODULE FAILED SECONDS JOBS``."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from typing import Any

import psycopg

from .__main__ import found, tell
from .protocol import Keeper

#: Of the whole server, of which this queue is the only user.
_POSITION = (
    "SELECT pg_current_wal_insert_lsn() - '0/0' AS wal, pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
)
#: Of this database; what a session did is told of when it has ended, at the latest.
_WRITTEN = """
SELECT coalesce(sum(n_tup_ins) FILTER (WHERE relname LIKE 'done\\_entries%'), 0)::bigint,
       coalesce(sum(n_tup_upd) FILTER (WHERE relid = 'pg_class'::regclass), 0)::bigint
  FROM pg_stat_all_tables
"""


async def measure(queue: Keeper, dsn: str, failed: int, seconds: int, jobs: int) -> None:
    """Let `failed` jobs fail and keep them: first with nothing else to do, then with so many jobs each second."""
    await queue.open(dsn)
    await queue.install()
    if failed:
        await queue.enqueue(failed, failing=True)
        await queue.drain(failed, failing=True)
    await queue.settle()
    tell(held="first", prunes=[prune._asdict() for prune in queue.prunes()])
    await keep(queue, dsn, "idle", seconds, 0)
    await keep(queue, dsn, "traffic", max(1, seconds // 2), jobs)


async def keep(queue: Keeper, dsn: str, held: str, seconds: int, jobs: int) -> None:
    """Let so many jobs come and go each second for a while, and print what was written meanwhile."""
    already = len(queue.prunes())
    # What is not a cost of keeping: autovacuum has the catalog of a new database to look at, and whoever is first to
    # read a row since it was written notes in its page that it is committed.
    with psycopg.connect(dsn, autocommit=True) as connection, suppress(psycopg.errors.InsufficientPrivilege):
        for work in ("ANALYZE", "VACUUM", "CHECKPOINT"):
            connection.execute(work)
    rows_before, classes_before = figures(dsn, _WRITTEN)
    wal_before, xid_before = figures(dsn, _POSITION)
    began = time.monotonic()
    rounds = 0
    async with queue.at_work():
        while time.monotonic() - began < seconds:
            await queue.second(jobs)
            rounds += 1
            await asyncio.sleep(max(0.0, began + rounds - time.monotonic()))
        wal_after, xid_after = figures(dsn, _POSITION)
        took = time.monotonic() - began
    rows_after, classes_after = figures(dsn, _WRITTEN)
    tell(
        held=held,
        seconds=took,
        rewritten=rows_after - rows_before - rounds * jobs * queue.rows_when_done,
        wal=wal_after - wal_before,
        pg_class=classes_after - classes_before,
        xids=xid_after - xid_before,
        prunes=[prune._asdict() for prune in queue.prunes()[already:]],
    )


def figures(dsn: str, statement: str) -> tuple[int, int]:
    """Read two figures, in a session of its own."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row: Any = connection.execute(statement).fetchone()
    return int(row[0]), int(row[1])


def main(module: str, failed: str, seconds: str, jobs: str) -> None:
    """Measure the queue of `module`."""
    if queue := found(module):
        asyncio.run(measure(queue, os.environ["BENCH_DSN"], int(failed), int(seconds), int(jobs)))


if __name__ == "__main__":
    main(*sys.argv[1:])
