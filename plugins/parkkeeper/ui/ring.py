"""The ring and its floor, what pins each slot, and what the next prune would do."""

from __future__ import annotations

from datetime import datetime

from psycopg.rows import namedtuple_row

from parkkeeper.database import statements
from parkkeeper.errors import UnknownNamespace
from parkkeeper.queue.plan import plan_prune
from parkkeeper.queue.settings import namespace_settings
from parkkeeper.queue.status import jobs_in_slot
from parkkeeper.ui import models, words
from parkkeeper.ui.reading import Reader

#: Up to how many waiting jobs of a lane are counted in a slot.
MOST_WAITING = 10_000
#: Of how many pinned slots it is said which job pins them, those that were opened first in front.
MOST_EXPLAINED = 8
#: How many queues and kinds of a plan are listed.
MOST_PLANNED = 200


def read(reader: Reader) -> models.Ring:
    """Read the ring of a namespace.

    Raises
    ------
    UnknownNamespace
        The namespace has no queue.
    """
    require(reader, "queue")
    slots = reader.rows("ui/ring", "slots", models.Slot, by_key=True, limit=MOST_WAITING)
    now = reader.now()
    pinned = [slot for slot in slots if slot.state == "pinned"]
    for slot in sorted(pinned, key=lambda slot: slot.generation or 0)[:MOST_EXPLAINED]:
        slot.pinned_by = _pinned_by(reader, slot, now)
    retention = namespace_settings(reader.connection, reader.space).failed_retention_seconds
    return models.Ring(
        namespace=reader.space.name,
        taken_at=now,
        slots=slots,
        floor=reader.rows("ui/ring", "segments", models.Segment),
        first_expires_at=reader.value("ui/overview", "first_expiry", by_key=True, retention=retention),
    )


def plan(reader: Reader) -> models.Plan:
    """Return what the next prune would do; it reads the rows of the slot that it would reclaim.

    Raises
    ------
    UnknownNamespace
        The namespace has no queue.
    """
    require(reader, "queue")
    found = plan_prune(reader.connection, reader.space)
    done = found.outcome
    touched = [row for row in found.by_kind if row.kept_failed_rows < _all(row)]
    return models.Plan(
        namespace=reader.space.name,
        outcome=done.outcome,
        sentence=words.NOT_PRUNED.get(done.outcome),
        slot=done.slot if done.outcome == "pruned" else None,
        reason=done.reason,
        carried_failed_rows=done.carried_failed_rows,
        pruned_failed=done.pruned_failed,
        pruned_completed=done.pruned_completed,
        by_kind=[
            models.PlannedRow.model_validate(row, from_attributes=True) for row in touched[:MOST_PLANNED]
        ],
    )


def require(reader: Reader, family: str) -> None:
    """Refuse a namespace that lacks a family."""
    if family not in reader.families:
        raise UnknownNamespace(f"namespace {reader.space} has no {family} tables")


def _all(row: object) -> int:
    names = ("carried_failed_rows", "pruned_failed", "pruned_completed", "kept_failed_rows")
    return sum(int(getattr(row, name)) for name in names)


def _pinned_by(reader: Reader, slot: models.Slot, now: datetime) -> str | None:
    """Say which job has pinned a slot for longest."""
    which = "waiting" if slot.waiting else "running"
    with reader.connection.transaction(), reader.connection.cursor(row_factory=namedtuple_row) as cursor:
        cursor.execute(statements("figures").render("read_committed", reader.space))
        cursor.execute(statements("ui/ring").render("configure", reader.space))
        jobs = jobs_in_slot(cursor, reader.space, which, slot.slot, None, 1)
    for job in jobs:
        since = job.created_at if which == "waiting" else job.attempted_at
        length = f" for {words.span(now - since)}" if since else ""
        return f"job {job.job_id} of queue {job.queue}, kind {job.kind}, {which}{length}"
    return None
