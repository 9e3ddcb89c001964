"""Looking at the ring and at single jobs, for people: one snapshot, nothing written, nothing of what a job carries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, namedtuple_row

from parkkeeper.database import Statements, retried, statements, transaction, without_rows
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace
from parkkeeper.queue import ring
from parkkeeper.queue.arguments import whole_number
from parkkeeper.queue.errors import UnknownJob

_SQL = statements("queue/status")
_HELD = {"claim": statements("queue/claim_ring"), "lease": statements("queue/lease_ring")}


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One job, without its args, its unique key and the text of its error, which are the application's.

    `attempt` counts claims. `attempted_at` is None for a job that was never claimed, `finalized_at` for one that has
    not ended.
    """

    job_id: int
    queue: str
    kind: str
    state: str
    priority: int
    attempt: int
    max_attempts: int
    created_at: datetime
    run_at: datetime
    attempted_at: datetime | None
    finalized_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Where one job stands; the first fields are those of :class:`ListedJob`.

    Attributes
    ----------
    slot
        The slot of the ring that it stands in, below zero for a floor segment; None outside of both. For people.
    run_lease
        With `job_id`, the identity of the claim that it runs in or was ended by; None without one.
    lease_until
        Until when it is its worker's, extensions included; None when it does not run.
    """

    job_id: int
    queue: str
    kind: str
    state: str
    priority: int
    attempt: int
    max_attempts: int
    created_at: datetime
    run_at: datetime
    attempted_at: datetime | None
    finalized_at: datetime | None
    slot: int | None
    run_lease: int | None
    lease_until: datetime | None


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot of the ring.

    Attributes
    ----------
    state
        ``current``: new jobs go there. ``sealed``: it holds what is left of earlier times. ``empty``.
    waiting, running
        Jobs that wait in it, and that were claimed from it and have not ended: what pins it once it is sealed.
    terminal, failed
        Terminal rows in it, and those of them that can be put back.
    bytes
        What it takes on disk.
    pinned_by
        The job that has pinned a sealed slot for longest: that waits since it was enqueued, or else runs since it was
        claimed. None when nothing pins it.
    """

    slot: int
    generation: int | None
    state: str
    opened_at: datetime | None
    sealed_at: datetime | None
    waiting: int
    running: int
    terminal: int
    failed: int
    bytes: int
    pinned_by: ListedJob | None


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """One floor segment that holds rows, or did since it was last reclaimed.

    Attributes
    ----------
    segment
        Its slot, below zero.
    failed
        Failed jobs in it, which can be put back.
    passes_at
        When the last of them was to pass the floor by the retention that its queue had when it was carried.
    """

    segment: int
    failed: int
    passes_at: datetime


@dataclass(frozen=True, slots=True)
class RingStatus:
    """The ring in one snapshot; slots in their order, and the floor segments in use, the first to pass in front.

    `trusted`: whether the counters are believed.
    """

    current_slot: int
    generation: int
    slot_count: int
    trusted: bool
    slots: list[SlotStatus]
    floor: list[SegmentStatus]


@dataclass(frozen=True, slots=True)
class HeldSlotStatus:
    """One slot of the claim ring or of the lease ring; `state` and `bytes` as in :class:`SlotStatus`.

    Attributes
    ----------
    held
        Claims that were made in it, or leases.
    needed
        Those of them that are open: claims that have not ended, which pin it once it is sealed; or leases of batches
        with such a claim, which a prune moves to the current slot.
    """

    slot: int
    generation: int | None
    state: str
    opened_at: datetime | None
    sealed_at: datetime | None
    held: int
    needed: int
    bytes: int


@dataclass(frozen=True, slots=True)
class HeldRingStatus:
    """The ring of what workers have in hand, ``claim`` or ``lease``, in one snapshot; slots in their order."""

    ring: str
    current_slot: int
    generation: int
    slot_count: int
    slots: list[HeldSlotStatus]


def ring_status(connection: psycopg.Connection[Any], namespace: Namespace) -> RingStatus:
    """Look at the ring: what stands in each slot, and what pins those that are sealed.

    It reads the positions of what waits, and the claims of one lap, but no row that has ended.

    Raises
    ------
    TransactionOpen
        The caller has a transaction open.
    UnknownNamespace
        The namespace has no queue.
    """

    def look() -> RingStatus:
        with _snapshot(connection, namespace, "ring_status") as cursor:
            state = ring.one_row(cursor, _SQL.render("ring", namespace))
            slots = cursor.execute(_SQL.render("slots", namespace)).fetchall()
            found = [_slot(cursor, namespace, slot) for slot in slots]
            floor = [SegmentStatus(*row) for row in cursor.execute(_SQL.render("segments", namespace))]
        return RingStatus(state.current_slot, state.generation, state.slot_count, state.trusted, found, floor)

    with without_rows(connection, namespace, "queue", "ring_status"):
        return retried(connection, look)


def _slot(cursor: psycopg.Cursor[Any], namespace: Namespace, slot: Any) -> SlotStatus:
    use = ring.one_row(cursor, _SQL.render("in_use", namespace, slot=slot.slot))
    pinned_by = None
    if slot.state == "sealed" and (use.waiting or use.running):
        state = "waiting" if use.waiting else "running"
        pinned_by = next(iter(jobs_in_slot(cursor, namespace, state, slot.slot, None, 1)), None)
    return SlotStatus(**slot._asdict(), **use._asdict(), pinned_by=pinned_by)


def held_ring_status(connection: psycopg.Connection[Any], namespace: Namespace, which: str) -> HeldRingStatus:
    """Look at the claim ring or the lease ring, as :func:`ring_status` does at the queue's.

    Parameters
    ----------
    which
        ``"claim"`` or ``"lease"``.

    Raises
    ------
    InvalidArgument
        `which` is neither.
    TransactionOpen
        The caller has a transaction open.
    UnknownNamespace
        The namespace has no queue.
    """
    if which not in _HELD:
        raise InvalidArgument(f"ring {which!r} is refused: any of {', '.join(_HELD)}")
    sql = _HELD[which]

    def look() -> HeldRingStatus:
        with _snapshot(connection, namespace, "held_ring_status", hold=sql) as cursor:
            state = ring.one_row(cursor, sql.render("state", namespace))
            slots = cursor.execute(sql.render("slots", namespace)).fetchall()
            found = [
                HeldSlotStatus(
                    **slot._asdict(),
                    **ring.one_row(cursor, sql.render("in_use", namespace, slot=slot.slot))._asdict(),
                )
                for slot in slots
            ]
        return HeldRingStatus(which, state.current_slot, state.generation, state.slot_count, found)

    with without_rows(connection, namespace, "queue", "held_ring_status"):
        return retried(connection, look)


def jobs_in_slot(
    cursor: psycopg.Cursor[Any], namespace: Namespace, which: str, slot: int, queue: str | None, limit: int
) -> list[ListedJob]:
    """Return jobs that are ``waiting`` or ``running`` in a slot, those that have been so for longest in front."""
    statement = _SQL.render(which, namespace, slot=slot)
    rows = cursor.execute(statement, {"queue": queue, "limit": limit, "per_lane": limit}).fetchall()
    return [ListedJob(**row._asdict()) for row in rows]


def longest_waiting(connection: psycopg.Connection[Any], namespace: Namespace) -> ListedJob | None:
    """Return the job that has been claimable for longest, in a paused queue too; None: none is.

    Raises
    ------
    TransactionOpen
        The caller has a transaction open.
    UnknownNamespace
        The namespace has no queue.
    """

    def look() -> ListedJob | None:
        with _snapshot(connection, namespace, "longest_waiting") as cursor:
            slots = cursor.execute(_SQL.render("slots", namespace)).fetchall()
            rows = cursor.execute(_SQL.render("waiting_longest_outside", namespace)).fetchall()
            for slot in slots:
                if slot.state != "empty":
                    # The first of each lane has waited longest of it.
                    statement = _SQL.render("waiting", namespace, slot=slot.slot)
                    rows += cursor.execute(
                        statement, {"queue": None, "limit": None, "per_lane": 1}
                    ).fetchall()
        first = min(rows, key=lambda row: (row.run_at, row.job_id), default=None)
        return None if first is None else ListedJob(**first._asdict())

    with without_rows(connection, namespace, "queue", "longest_waiting"):
        return retried(connection, look)


def open_jobs(
    connection: psycopg.Connection[Any], namespace: Namespace, which: str, queue: str | None, limit: int
) -> list[ListedJob]:
    """Return jobs that are ``waiting`` or ``running``, in the ring or outside of it, the longest so in front."""

    def look() -> list[ListedJob]:
        with _snapshot(connection, namespace, "list_jobs") as cursor:
            slots = cursor.execute(_SQL.render("slots", namespace)).fetchall()
            found = [
                job
                for slot in slots
                if slot.state != "empty"
                for job in jobs_in_slot(cursor, namespace, which, slot.slot, queue, limit)
            ]
            outside = _SQL.render(f"{which}_outside", namespace)
            rows = cursor.execute(outside, {"queue": queue, "limit": limit}).fetchall()
            found += [ListedJob(**row._asdict()) for row in rows]
        return sorted(
            found, key=lambda job: (job.attempted_at if which == "running" else job.created_at, job.job_id)
        )[:limit]

    return retried(connection, look)


def job(connection: psycopg.Connection[Any], namespace: Namespace, job_id: int) -> JobStatus:
    """Look where a job stands, whatever became of it.

    Raises
    ------
    UnknownJob
        There never was such a job, or it has been pruned or purged since.
    TransactionOpen
        The caller has a transaction open.
    UnknownNamespace
        The namespace has no queue.
    """
    values = {"job_id": whole_number("job_id", job_id, range(1, 2**63))}

    def look() -> JobStatus | None:
        with _snapshot(connection, namespace, "job") as cursor:
            body = cursor.execute(_SQL.render("body", namespace), values).fetchone()
            with connection.cursor(row_factory=class_row(JobStatus)) as found:
                status = found.execute(_SQL.render("outside", namespace), values).fetchone()
                if status is None and body is not None:
                    statement = _SQL.render("with_body", namespace, slot=body.ready_slot)
                    status = found.execute(statement, body._asdict()).fetchone()
                return status or found.execute(_SQL.render("alone", namespace), values).fetchone()

    with without_rows(connection, namespace, "queue", "job"):
        status = retried(connection, look)
    if status is None:
        raise UnknownJob(job_id, namespace)
    return status


@contextmanager
def _snapshot(
    connection: psycopg.Connection[Any], namespace: Namespace, action: str, *, hold: Statements = _SQL
) -> Iterator[psycopg.Cursor[Any]]:
    """Open a transaction that sees one moment, no prune of what `hold` names, and cannot write."""
    with transaction(connection, action), connection.cursor(row_factory=namedtuple_row) as cursor:
        cursor.execute(_SQL.render("one_snapshot", namespace))
        cursor.execute(hold.render("hold_prunes", namespace))
        cursor.execute(_SQL.render("configure", namespace))
        yield cursor
