"""What a prune does with the terminal rows of one unit: carry, fold, and the check that none is missing.

A unit is a slot of the queue ring or a floor segment. See ``docs/adr/0001-failed-retention-floor.md`` for the promise,
and ``docs/adr/0005-carry-once.md`` for where rows are carried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from parkkeeper.database import statements
from parkkeeper.namespace import Namespace
from parkkeeper.queue import ring
from parkkeeper.queue.errors import ConservationBroken, PruneRefused
from parkkeeper.queue.outcomes import PruneOutcome

#: Floor segments of one level.
_LEVEL = 6

_SQL = statements("queue/carry")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a prune was told, or the namespace has stored.

    Attributes
    ----------
    retention
        In seconds, for queues without their own.
    own
        Those of the other queues, read once: one that is changed meanwhile must not make a prune contradict itself.
    carry_to
        ``floor`` or ``live``.
    max_pruned_failed
        Refuse a unit of which more failed jobs would be dropped; None: no limit.
    """

    retention: int
    own: Mapping[str, int]
    carry_to: str
    max_pruned_failed: int | None

    @property
    def values(self) -> dict[str, Any]:
        """What the statements are given."""
        return {
            "retention": self.retention,
            "own": list(self.own),
            "seconds": list(self.own.values()),
            "to_floor": self.carry_to == "floor",
        }


def carry_and_fold(
    cursor: psycopg.Cursor[Any],
    namespace: Namespace,
    terms: Terms,
    slot: int,
    generation: int | None,
    state: ring.Ring,
) -> PruneOutcome:
    """Carry what is inside the floor, add the rest to the rollups, and check that nothing is missing.

    Raises
    ------
    PruneRefused
        Too many failed rows would be dropped.
    ConservationBroken
        Not every row is accounted for.
    """
    census = take_census(cursor, namespace, terms, slot)
    foreseen = counted(census, slot, generation)
    carried = _carry(cursor, namespace, terms, slot, state) if foreseen.carried_failed_rows else 0
    folded = ring.one_row(
        cursor,
        _SQL.render("fold", namespace),
        queues=[row.queue for row in census],
        completed=[row.completed for row in census],
        failed=[row.failed for row in census],
    )
    rows = ring.one_row(cursor, _SQL.render("terminal_rows", namespace, slot=slot)).rows
    if rows != carried + folded.completed + folded.failed:
        raise ConservationBroken(
            f"namespace {namespace}: slot {slot} holds {rows} terminal rows, but {carried} were carried, "
            f"{folded.completed} folded as completed and {folded.failed} as failed: nothing was changed"
        )
    return foreseen


def take_census(cursor: psycopg.Cursor[Any], namespace: Namespace, terms: Terms, slot: int) -> list[Any]:
    """Count a unit's terminal rows by queue and by what becomes of them.

    Raises
    ------
    PruneRefused
        Too many failed rows would be dropped.
    """
    census = cursor.execute(_SQL.render("census", namespace, slot=slot), terms.values).fetchall()
    dropped = sum(row.failed for row in census)
    if terms.max_pruned_failed is not None and dropped > terms.max_pruned_failed:
        raise PruneRefused(
            f"namespace {namespace}: prune of slot {slot} would drop {dropped} failed jobs, more than "
            f"max_pruned_failed {terms.max_pruned_failed}: nothing was changed; retry them, or allow as many",
            dropped,
        )
    return census


def counted(census: list[Any], slot: int, generation: int | None) -> PruneOutcome:
    """Return the outcome of a prune that does what the census says."""
    return PruneOutcome(
        "pruned",
        slot,
        generation,
        carried_failed_rows=sum(row.carried for row in census),
        pruned_failed=sum(row.failed for row in census),
        pruned_completed=sum(row.completed for row in census),
    )


def require_whole(connection: psycopg.Connection[Any], namespace: Namespace) -> None:
    """Make sure that what the transaction reads of terminal rows lacks none that a prune has moved.

    Raises
    ------
    psycopg.errors.SerializationFailure
        The transaction keeps a snapshot, and a unit was truncated since that was taken.
    """
    connection.execute(_SQL.render("require_whole", namespace))


def _carry(
    cursor: psycopg.Cursor[Any], namespace: Namespace, terms: Terms, slot: int, state: ring.Ring
) -> int:
    values = {**terms.values, "current_slot": state.current_slot, "generation": state.generation}
    statement = _SQL.render("carry", namespace, slot=slot, sibling=_sibling(slot))
    try:
        moved = cursor.execute(statement, values).fetchone()
    except psycopg.errors.IntegrityError as error:
        # The server's message may show the row, and a row holds a customer's words.
        raise ConservationBroken(
            f"namespace {namespace}: carrying failed rows of slot {slot} broke constraint "
            f"{error.diag.constraint_name} ({error.sqlstate}): nothing was changed"
        ) from None
    assert moved is not None
    return int(moved.rows)


def _sibling(segment: int) -> int:
    """Return the next floor segment of the same level; after the last of the six comes the first."""
    place = -1 - segment
    return -1 - (place - place % _LEVEL + (place + 1) % _LEVEL)
