"""Counting the jobs of a queue, and counting them anew when the counters are in doubt.

See ``docs/explanation/ring.md`` for what is counted where.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from parkkeeper.database import advisory_key, retried, statements, without_rows
from parkkeeper.names import checked_name
from parkkeeper.namespace import Namespace
from parkkeeper.queue import ring, roll_up
from parkkeeper.queue.errors import UnknownQueue
from parkkeeper.queue.outcomes import QueueCounts

_SQL = statements("queue/counts")


def queue_counts(connection: psycopg.Connection[Any], namespace: Namespace, queue: str) -> QueueCounts:
    """Count the jobs of `queue`, exactly and in one snapshot: from the rows while the counters are not believed.

    Raises
    ------
    UnknownQueue
        The queue never had a job, nothing of it was pruned, and it has no settings.
    InvalidName
        `queue` is no name for a queue.
    UnknownNamespace
        The namespace has no queue family.
    """
    checked_name("queue", queue)
    with (
        without_rows(connection, namespace, "queue", "queue_counts"),
        connection.cursor(row_factory=namedtuple_row) as cursor,
    ):
        statement = _SQL.render("queue_counts", namespace)
        found = retried(connection, lambda: ring.one_row(cursor, statement, queue=queue))
    if not found.known:
        raise UnknownQueue(queue, namespace)
    return QueueCounts(
        available=found.available,
        running=found.running,
        terminal=found.terminal,
        pruned_failed=found.pruned_failed,
        deferred=found.deferred,
        failed=found.failed,
        dead_lettered=found.dead_lettered,
        purged_dead_letters=found.purged_dead_letters,
    )


def rebuild_terminal_counters(connection: psycopg.Connection[Any], namespace: Namespace) -> None:
    """Restore the counters of all states, live ones as well as terminal ones, from the rows; they are believed again.

    What prune has dropped is known from the rollups alone and stays as it is.

    Raises
    ------
    TransactionOpen
        The caller has a transaction open.
    UnknownNamespace
        The namespace has no queue family.
    """

    def rebuild() -> None:
        # Reads all that the ring holds; only rotate, prune and other rebuilds wait for it.
        timeout = ring.checked_lock_timeout(ring.MAX_LOCK_TIMEOUT)
        with ring.maintenance(connection, namespace, "rebuild_terminal_counters", timeout) as cursor:
            key = advisory_key(namespace.name, roll_up.ACTION)
            cursor.execute(_SQL.render("keep_roll_up_away", namespace), {"key": key})
            # Lanes, if there is need of them, before the ring: the order in which a claim takes both.
            cursor.execute(_SQL.render("settle_cursors", namespace))
            ring.lock_state(cursor, namespace)
            for name in ("probe_by_key", "forget_live_counts", "count_rows", "trust"):
                cursor.execute(_SQL.render(name, namespace))

    with without_rows(connection, namespace, "queue", "rebuild_terminal_counters"):
        retried(connection, rebuild)
