"""Reclaim a sealed slot or a floor segment, carrying the failed jobs that are promised to stay retryable.

What pins a unit of the queue ring, and what becomes of its rows between the locks. See
``docs/adr/0001-failed-retention-floor.md`` for the promise and ``docs/adr/0005-carry-once.md`` for where rows move.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import psycopg

from parkkeeper.database import statements
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace
from parkkeeper.queue import reclaim
from parkkeeper.queue import ring as rings
from parkkeeper.queue.carry import Terms, carry_and_fold, counted, take_census
from parkkeeper.queue.other_rings import ClaimSlotPrune, LeaseSlotPrune
from parkkeeper.queue.outcomes import PruneOutcome
from parkkeeper.queue.reclaim import SlotPrune
from parkkeeper.queue.settings import (
    checked_destination,
    namespace_settings,
    queue_retentions,
    retention_seconds,
)


def prune_oldest(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    failed_retention: timedelta | int | None = None,
    *,
    ring: str = "queue",
    carry_to: str | None = None,
    dry_run: bool = False,
    max_pruned_failed: int | None = None,
    lock_timeout: timedelta = rings.LOCK_TIMEOUT,
    wait_for_snapshots: bool = False,
) -> PruneOutcome:
    """Reclaim a floor segment that has passed, else the oldest sealed slot that can be.

    One that is pinned, blocked or refused is passed over.

    Parameters
    ----------
    ring
        ``"queue"``: jobs and their history. ``"lease"``, ``"claim"``: what workers have in hand; there is nothing in
        them to carry or to refuse.
    failed_retention
        How long a failed job stays retryable after it was finalised, as a timedelta or in whole seconds, at
        most 35 days; zero: not beyond its slot. A queue's own setting wins over it. None: what the namespace
        has stored.
    carry_to
        Where failed jobs inside the retention are carried: ``"floor"``, a segment that passes when their time is over;
        ``"live"``, the segment that takes new jobs. None: what the namespace has stored.
    dry_run
        Return what would happen, and neither write nor lock. Whether a lock would be had is not known then.
    max_pruned_failed
        Refuse a slot of which more failed jobs than this would be dropped. None: no limit.
    lock_timeout
        How long each lock is waited for, above zero and at most 5 s.
    wait_for_snapshots
        Stand down (``skipped_active``, ``old_snapshot``) while a session of this database holds a snapshot that was
        open when the prune began and does not close within `lock_timeout`, or a transaction is prepared. A
        transaction that keeps its snapshot would find what is carried neither where it was nor where it is.

    Returns
    -------
    PruneOutcome

    Raises
    ------
    PruneRefused
        `max_pruned_failed` was passed for a slot and no other could be pruned; nothing was changed.
    ConservationBroken
        Not every row of the slot was accounted for; nothing was changed.
    TransactionOpen
        The caller has a transaction open.
    InvalidArgument
        An argument is out of range, or speaks of failed jobs where there are none; nothing was sent to the
        database.
    UnknownNamespace
        The namespace has no queue.
    """
    if rings.checked_ring(ring) != "queue":
        for name, value in (
            ("failed_retention", failed_retention),
            ("carry_to", carry_to),
            ("max_pruned_failed", max_pruned_failed),
        ):
            if value is not None:
                raise InvalidArgument(
                    f"{name} {value!r} is refused: there are no failed jobs in the {ring} ring"
                )
        other = ClaimSlotPrune if ring == "claim" else LeaseSlotPrune
        return reclaim.oldest(
            [other(connection, namespace, lock_timeout, wait_for_snapshots)], dry_run=dry_run
        )
    terms = checked_terms(connection, namespace, failed_retention, carry_to, max_pruned_failed)
    units = (FloorSegmentPrune, QueueSlotPrune)
    return reclaim.oldest(
        [unit(connection, namespace, lock_timeout, wait_for_snapshots, terms) for unit in units],
        dry_run=dry_run,
    )


def checked_terms(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    failed_retention: timedelta | int | None = None,
    carry_to: str | None = None,
    max_pruned_failed: int | None = None,
) -> Terms:
    """Return what was told, or what the namespace has stored where nothing was; refuse what is out of range."""
    given = None if failed_retention is None else retention_seconds("failed_retention", failed_retention)
    if carry_to is not None:
        checked_destination("carry_to", carry_to)
    if max_pruned_failed is not None and (type(max_pruned_failed) is not int or max_pruned_failed < 0):
        raise InvalidArgument(
            f"max_pruned_failed {max_pruned_failed!r} is refused: a whole number, 0 or more, or None"
        )
    stored = namespace_settings(connection, namespace)
    return Terms(
        stored.failed_retention_seconds if given is None else given,
        queue_retentions(connection, namespace),
        stored.carry_to if carry_to is None else carry_to,
        max_pruned_failed,
    )


class _TerminalPrune(SlotPrune):
    """A unit that holds terminal rows: those inside the floor are carried, the others folded."""

    ring = "queue"

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        namespace: Namespace,
        lock_timeout: timedelta,
        wait_for_snapshots: bool,
        terms: Terms,
    ) -> None:
        super().__init__(connection, namespace, lock_timeout, wait_for_snapshots)
        self.terms = terms

    def keep(
        self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None, state: rings.Ring
    ) -> PruneOutcome:
        """Move what is kept, add the rest to the rollups, and check that nothing is missing."""
        return carry_and_fold(cursor, self.namespace, self.terms, slot, generation, state)

    def foresee(self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None) -> PruneOutcome:
        """Return what :meth:`keep` would."""
        return counted(take_census(cursor, self.namespace, self.terms, slot), slot, generation)


class QueueSlotPrune(_TerminalPrune):
    """A slot of the queue ring: pinned while a job in it waits or runs."""

    sql = statements("queue/prune")
    afterwards = ("forget_counts",)

    def pinned(
        self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None, *, exact: bool
    ) -> PruneOutcome | None:
        """Tell how many jobs wait or run."""
        # The locks on the claim ring are given back at once: it is not to be held up for as long as a carry takes.
        with self.connection.transaction(force_rollback=True):
            self.do(cursor, "hold_claims", slot)
            proof = self.row(cursor, "proofs", slot, limit=None if exact else 1)
        for reason in ("ready_rows", "open_claims"):
            if count := getattr(proof, reason):
                return PruneOutcome("skipped_active", slot, generation, reason, count)
        return None

    def keep(
        self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None, state: rings.Ring
    ) -> PruneOutcome:
        """Keep the counts of jobs outside of the ring as well, which a slot may have."""
        outcome = super().keep(cursor, slot, generation, state)
        self.do(cursor, "keep_outside", slot)
        return outcome


class FloorSegmentPrune(_TerminalPrune):
    """A floor segment, a slot below zero: reclaimed when its rows are past the floor.

    Rows that are inside it again, since a retention was raised, move on to another segment.
    """

    sql = statements("queue/floor")
    afterwards = ("forget_counts",)

    def numbers(self, slot: int) -> dict[str, int]:
        """Return what the statements name the segment by."""
        return {"slot": slot, "number": -slot}

    def candidates(self, cursor: psycopg.Cursor[Any], slot: int | None = None) -> list[Any]:
        """Return the segments that have passed, or the one that is asked for if it has."""
        values = {**self.terms.values, "slot": slot}
        return cursor.execute(self.sql.render("candidates", self.namespace), values).fetchall()

    def held(self, cursor: psycopg.Cursor[Any], slot: int) -> Any:
        """Look again: only the lock on the ring keeps other prunes from carrying rows into the segment."""
        [found] = self.candidates(cursor, slot) or [None]
        return _Held(None, found is not None)

    def pinned(
        self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None, *, exact: bool
    ) -> PruneOutcome | None:
        """Tell of nothing: rows of a segment neither wait nor run."""
        return None


class _Held(NamedTuple):
    generation: int | None
    holds_rows: bool
