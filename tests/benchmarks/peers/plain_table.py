"""No queue but a table: COPY, and a loop that claims a batch by UPDATE ... SKIP LOCKED and updates it once more."""

from __future__ import annotations

import json
from typing import Any

import psycopg

from .protocol import ENQUEUED_AT_ONCE, arguments

BATCH = 1_000

_TABLE = """
CREATE TABLE job (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_at   timestamptz NOT NULL DEFAULT now(),
    state    text        NOT NULL DEFAULT 'available',
    attempt  smallint    NOT NULL DEFAULT 0,
    error    text,
    args     jsonb       NOT NULL
);
CREATE INDEX ON job (run_at, id) WHERE state = 'available';
"""
_CLAIM = """
UPDATE job SET state = 'running', attempt = attempt + 1
 WHERE id IN (SELECT id FROM job WHERE state = 'available' ORDER BY run_at, id LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING id, args
"""
_END = "UPDATE job SET state = %s, error = %s WHERE id = ANY (%s)"


class Queue:
    """One session, which does nothing between the two statements: what a plain table can do at most."""

    settings = f"COPY; UPDATE ... SKIP LOCKED, batch {BATCH:,}"
    shares = (1.0, 1.0)

    async def open(self, dsn: str) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True)

    async def install(self) -> None:
        self._connection.execute(_TABLE)

    async def enqueue(self, jobs: int, *, failing: bool) -> None:
        for first in range(0, jobs, ENQUEUED_AT_ONCE):
            with self._connection.cursor() as cursor, cursor.copy("COPY job (args) FROM STDIN") as copy:
                for n in range(first, min(first + ENQUEUED_AT_ONCE, jobs)):
                    copy.write_row([json.dumps(arguments(n))])

    async def enqueue_one(self, n: int) -> None:
        self._connection.execute("INSERT INTO job (args) VALUES (%s)", [json.dumps(arguments(n))])

    async def drain(self, jobs: int, *, failing: bool) -> None:
        end = ("failed", "MeantToFail: ") if failing else ("completed", None)
        while claimed := self._connection.execute(_CLAIM, [BATCH]).fetchall():
            self._connection.execute(_END, [*end, [job_id for job_id, _ in claimed]])

    async def unfinished(self) -> int:
        row: Any = self._connection.execute(
            "SELECT count(*) FROM job WHERE state IN ('available', 'running')"
        ).fetchone()
        return int(row[0])
