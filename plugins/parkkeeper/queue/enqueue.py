"""Enqueueing, alone or as part of the caller's transaction. See ``docs/explanation/queue.md``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from datetime import datetime
from typing import Any

import psycopg

from parkkeeper.database import in_transaction, retried, statements
from parkkeeper.names import checked_name
from parkkeeper.namespace import Namespace
from parkkeeper.queue.arguments import (
    SMALLINT,
    json_objects,
    moment,
    unique_key_bytes,
    unique_state_names,
    whole_number,
)
from parkkeeper.queue.calls import call
from parkkeeper.queue.errors import UniqueConflict

#: How many jobs one statement adds; more are added by several, in one transaction.
CHUNK = 10_000

_SQL = statements("queue/enqueue")


def enqueue(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    queue: str,
    kind: str,
    args: Mapping[str, Any] | None,
    *,
    priority: int,
    run_at: datetime | None,
    max_attempts: int,
    unique_key: str | bytes | None,
    unique_states: Collection[str],
) -> int:
    """Add one job; see :meth:`QueueStorage.enqueue <parkkeeper.queue.storage.QueueStorage.enqueue>`."""
    key, states = unique_key_bytes(unique_key), unique_state_names(unique_states)
    values = _checked(queue, kind, priority, run_at, max_attempts) | {
        "args": json_objects("args", [args]),
        "unique_key": key,
        "unique_states": states if key is not None else None,
    }
    [(job_ids, holder)] = call(connection, namespace, _SQL, "enqueue", values)
    if job_ids is None:
        raise UniqueConflict(f"unique_key is held by job {holder}: nothing was enqueued", holder)
    job_id: int = job_ids[0]
    return job_id


def enqueue_many(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    queue: str,
    kind: str,
    args_list: Iterable[Mapping[str, Any] | None],
    *,
    priority: int,
    run_at: datetime | None,
    max_attempts: int,
) -> list[int]:
    """Add many jobs; see :meth:`QueueStorage.enqueue_many <parkkeeper.queue.storage.QueueStorage.enqueue_many>`."""
    values = _checked(queue, kind, priority, run_at, max_attempts) | {
        "unique_key": None,
        "unique_states": None,
    }
    jobs = list(args_list)
    # All of them are checked before the first is sent.
    chunks = [
        json_objects("args_list", jobs[start : start + CHUNK], start) for start in range(0, len(jobs), CHUNK)
    ]
    ours = len(chunks) > 1 and connection.autocommit and not in_transaction(connection)

    def add() -> list[int]:
        added: list[int] = []
        with connection.transaction() if ours else nullcontext():
            for args in chunks:
                [(job_ids, _)] = call(connection, namespace, _SQL, "enqueue", values | {"args": args})
                added += job_ids
        return added

    return retried(connection, add) if ours else add()


def _checked(
    queue: str, kind: str, priority: int, run_at: datetime | None, max_attempts: int
) -> dict[str, Any]:
    return {
        "queue": checked_name("queue", queue),
        "kind": checked_name("kind", kind),
        "priority": whole_number("priority", priority, SMALLINT),
        "run_at": moment("run_at", run_at),
        "max_attempts": whole_number("max_attempts", max_attempts, range(1, SMALLINT.stop)),
    }
