"""The figures of a namespace as the page shows them: numbers and names, never content nor the text of an error."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from psycopg.rows import class_row, scalar_row

from parkkeeper import migrations
from parkkeeper.database import statements
from parkkeeper.errors import InvalidNamespace, UnknownNamespace
from parkkeeper.namespace import Namespace

#: How many scopes are listed; the sums are over all of them.
SCOPES = 200

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Queue:
    """The jobs of one queue; what each field counts stands in :class:`parkkeeper.queue.outcomes.QueueCounts`."""

    queue: str
    available: int
    running: int
    deferred: int
    failed: int
    terminal: int
    pruned_failed: int
    dead_lettered: int
    purged_dead_letters: int


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of the ring: ``open``, ``sealed`` or ``empty``, the jobs that stand in it and its size in bytes."""

    slot: int
    generation: int | None
    state: str
    jobs: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Sums over all scopes, in turns but for `scopes` and `scopes_behind`, which are not caught up."""

    scopes: int
    scopes_behind: int
    stored: int
    formed: int
    parked: int
    erased: int
    backlog: int


@dataclass(frozen=True, slots=True)
class Scope:
    """How far the memory of one scope reaches; see :class:`parkkeeper.memory.outcomes.Freshness`."""

    scope: str
    stored: int
    formed: int | None
    formed_strict: int | None
    parked: int
    backlog: int


@dataclass(frozen=True, slots=True)
class Figures:
    """All of a namespace at `taken_at`; a family that it does not have is None."""

    namespace: str
    taken_at: datetime
    queues: list[Queue] | None
    slots: list[Slot] | None
    memory: Memory | None
    scopes: list[Scope] | None

    @property
    def queue_totals(self) -> dict[str, int]:
        """The sum of each figure over the queues."""
        counts = [field.name for field in fields(Queue) if field.name != "queue"]
        return {name: sum(getattr(queue, name) for queue in self.queues or []) for name in counts}


def namespaces(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the namespaces of this database that the login may read, by name."""
    statement = statements("figures").render("namespaces", Namespace("unused"))
    with connection.cursor(row_factory=scalar_row) as cursor:
        found = cursor.execute(statement).fetchall()
    return [name for name in found if _is_namespace(name)]


def read(connection: psycopg.Connection[Any], name: str) -> Figures:
    """Return the figures of namespace `name`.

    Raises
    ------
    UnknownNamespace
        There is no such namespace, or the login may not read it.
    DatabaseNewer, DatabaseOutdated, MigrationDrift
        The tables are not those that this package knows how to read.
    """
    if name not in namespaces(connection):
        raise UnknownNamespace(f"there is no namespace {name!r} in this database")
    space = Namespace(name)
    with connection.cursor(row_factory=scalar_row) as cursor:
        families = cursor.execute(statements("figures").render("families", space)).fetchall()
        taken_at = cursor.execute("SELECT clock_timestamp()").fetchall()[0]
    for family in families:
        migrations.require(connection, space, family)
    queue, memory = "queue" in families, "memory" in families
    return Figures(
        namespace=name,
        taken_at=taken_at,
        queues=_rows(connection, space, "queues", Queue) if queue else None,
        slots=_rows(connection, space, "slots", Slot, namespace=name) if queue else None,
        memory=_rows(connection, space, "memory_totals", Memory)[0] if memory else None,
        scopes=_rows(connection, space, "scopes", Scope, limit=SCOPES) if memory else None,
    )


def _is_namespace(name: str) -> bool:
    try:
        Namespace(name)
    except InvalidNamespace:
        return False
    return True


def _rows(
    connection: psycopg.Connection[Any], space: Namespace, name: str, kind: type[Row], **values: Any
) -> list[Row]:
    with connection.transaction(), connection.cursor(row_factory=class_row(kind)) as cursor:
        cursor.execute(statements("figures").render("read_committed", space))
        return cursor.execute(statements("figures").render(name, space), values or None).fetchall()
