"""The figures of a namespace as the page shows them: numbers and names, never content nor the text of an error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any, TypeVar

import psycopg
from psycopg.rows import class_row, scalar_row
from pydantic import Field

from parkkeeper import migrations
from parkkeeper.database import statements
from parkkeeper.errors import InvalidNamespace, UnknownNamespace
from parkkeeper.namespace import Namespace
from parkkeeper.ui import words

#: How many scopes are listed; the sums are over all of them.
SCOPES = 200

Row = TypeVar("Row")


def _meaning(table: Iterable[tuple[str, str, str]], field: str) -> Any:
    """Describe a field to whoever reads the OpenAPI document as the page does to people."""
    return Field(description=next(meaning for name, _, meaning in table if name == field))


@dataclass(frozen=True, slots=True)
class Queue:
    """The jobs of one queue; what each field counts stands in :class:`parkkeeper.queue.outcomes.QueueCounts`."""

    queue: Annotated[str, Field(description="Its name.")]
    available: Annotated[int, _meaning(words.QUEUE, "available")]
    running: Annotated[int, _meaning(words.QUEUE, "running")]
    deferred: Annotated[int, _meaning(words.QUEUE, "deferred")]
    failed: Annotated[int, _meaning(words.QUEUE, "failed")]
    terminal: Annotated[int, _meaning(words.QUEUE, "terminal")]
    pruned_failed: Annotated[int, _meaning(words.QUEUE, "pruned_failed")]
    dead_lettered: Annotated[int, _meaning(words.QUEUE, "dead_lettered")]
    purged_dead_letters: Annotated[int, _meaning(words.QUEUE, "purged_dead_letters")]


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of the ring: ``open``, ``sealed`` or ``empty``, the jobs that stand in it and its size in bytes."""

    slot: Annotated[int, Field(description="Its number.")]
    generation: Annotated[
        int | None,
        Field(description="How often the ring had turned when it was opened; null when it never was."),
    ]
    state: Annotated[str, Field(description="open, sealed or empty.")]
    jobs: Annotated[int, Field(description="Jobs that stand in it, whatever their state.")]
    bytes: Annotated[int, Field(description="Its size on disk, in bytes.")]


@dataclass(frozen=True, slots=True)
class Memory:
    """Sums over all scopes, in turns but for `scopes` and `scopes_behind`, which are not caught up."""

    scopes: Annotated[int, _meaning(words.MEMORY, "scopes")]
    scopes_behind: Annotated[int, _meaning(words.MEMORY, "scopes_behind")]
    stored: Annotated[int, _meaning(words.MEMORY, "stored")]
    formed: Annotated[int, _meaning(words.MEMORY, "formed")]
    parked: Annotated[int, _meaning(words.MEMORY, "parked")]
    erased: Annotated[int, Field(description="Turns that were erased.")]
    backlog: Annotated[int, _meaning(words.MEMORY, "backlog")]


@dataclass(frozen=True, slots=True)
class Scope:
    """How far the memory of one scope reaches; see :class:`parkkeeper.memory.outcomes.Freshness`."""

    scope: Annotated[str, Field(description="Its name.")]
    stored: Annotated[int, _meaning(words.SCOPE, "stored")]
    formed: Annotated[int | None, _meaning(words.SCOPE, "formed")]
    formed_strict: Annotated[int | None, _meaning(words.SCOPE, "formed_strict")]
    parked: Annotated[int, _meaning(words.SCOPE, "parked")]
    backlog: Annotated[int, _meaning(words.SCOPE, "backlog")]


@dataclass(frozen=True, slots=True)
class Figures:
    """All of a namespace at `taken_at`; a family that it does not have is None."""

    namespace: Annotated[str, Field(description="Its name.")]
    taken_at: Annotated[datetime, Field(description="When they were read, by the database's clock.")]
    queues: Annotated[list[Queue] | None, Field(description="By name; null without queue tables.")]
    slots: Annotated[list[Slot] | None, Field(description="By number; null without queue tables.")]
    memory: Annotated[Memory | None, Field(description="Over all scopes; null without memory tables.")]
    scopes: Annotated[
        list[Scope] | None,
        Field(description="At most 200, the largest backlog in front; null without memory tables."),
    ]

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
