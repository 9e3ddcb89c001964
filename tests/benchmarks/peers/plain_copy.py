"""COPY into a table like the one that Parkkeeper enqueues into: same columns, defaults and indexes, nothing else."""

from __future__ import annotations

import json
from typing import Any

import psycopg

from parkkeeper import migrations

from .protocol import ENQUEUED_AT_ONCE, arguments


class Queue:
    """Fills the table; there is nobody to claim from it."""

    settings = "COPY of the same columns into the same table"
    shares = (1.0, 0.0)

    async def open(self, dsn: str) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True)

    async def install(self) -> None:
        migrations.migrate(self._connection, "bench", "queue")
        self._connection.execute("CREATE TABLE plain_copy (LIKE bench.ready_entries_0 INCLUDING ALL)")

    async def enqueue(self, jobs: int, *, failing: bool) -> None:
        columns = "ready_generation, ready_slot, lane_id, max_attempts, kind, args"
        for first in range(0, jobs, ENQUEUED_AT_ONCE):
            with (
                self._connection.cursor() as cursor,
                cursor.copy(f"COPY plain_copy ({columns}) FROM STDIN") as copy,
            ):
                for n in range(first, min(first + ENQUEUED_AT_ONCE, jobs)):
                    copy.write_row((0, 0, 1, 1, "noop", json.dumps(arguments(n))))
