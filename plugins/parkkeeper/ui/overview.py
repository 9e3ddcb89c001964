"""All namespaces at a glance, and what needs attention first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg

from parkkeeper.maintenance import database_time
from parkkeeper.queue.settings import namespace_settings
from parkkeeper.ui import attention, models, reading
from parkkeeper.ui.reading import Reader

#: How many namespaces are read for one answer, and circuits listed of each.
MOST_NAMESPACES = 25
MOST_CIRCUITS = 50
#: Up to how many failed jobs are counted, and the scopes that are asked for their oldest turn.
MOST_COUNTED = 10_000
MOST_SCOPES = 200

#: Failed jobs that pass their floor so soon are about to be lost.
SOON = timedelta(days=1)


def read() -> models.Overview:
    """Read the namespaces that there are, as many as one answer takes.

    Raises
    ------
    Unreadable
        The database cannot be read.
    """
    with reading.session() as (connection, names):
        return of(connection, names)


def of(connection: psycopg.Connection[Any], names: list[str]) -> models.Overview:
    """Read these namespaces in an open session, as many as one answer takes."""
    taken_at = database_time(connection)
    found = [
        one or models.Summary(namespace=name, problem=problem, attention=attention.unreadable(name, problem))
        for name, one, problem in reading.each(connection, names[:MOST_NAMESPACES], summary)
    ]
    everything = [item for one in found for item in one.attention]
    return models.Overview(
        taken_at=taken_at,
        namespaces=found,
        more=max(len(names) - MOST_NAMESPACES, 0),
        attention=attention.ordered(everything),
    )


def summary(reader: Reader) -> models.Summary:
    """Read one namespace at a glance."""
    found = models.Summary(namespace=reader.space.name, problem=None)
    now = reader.now()
    day = None
    if "queue" in reader.families:
        found.queue = reader.row("ui/overview", "queue_totals", models.QueueTotals)
        retention = namespace_settings(reader.connection, reader.space).failed_retention_seconds
        if found.queue.failed:
            found.expiring = reader.value(
                "ui/overview", "expiring", by_key=True, within=SOON, retention=retention, limit=MOST_COUNTED
            )
            found.expiring_at_least = found.expiring >= MOST_COUNTED
        if found.expiring:
            found.first_expires_at = reader.value(
                "ui/overview", "first_expiry", by_key=True, retention=retention
            )
    if "memory" in reader.families:
        found.memory = reader.row("figures", "memory_totals", models.MemoryTotals)
        if found.memory.backlog:
            found.pending_since = reader.value("ui/overview", "pending_since", scopes=MOST_SCOPES)
        if found.memory.parked:
            found.oldest_parked_at = reader.value("ui/overview", "oldest_parked")
        found.circuits = reader.rows("ui/overview", "circuits", models.Circuit, limit=MOST_CIRCUITS)
    if reader.families:
        found.last_runs = reader.rows("ui/history", "last_runs", models.Run)
        day = reader.row("ui/history", "last_day", attention.LastDay)
    found.attention = attention.of(found, day, now)
    return found
