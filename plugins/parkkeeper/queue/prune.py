"""Reclaim a sealed slot, carrying the failed jobs that are promised to stay retryable.

What the transaction does to a slot of the queue ring between the locks: proofs, carry, fold, conservation. See
``docs/adr/0001-failed-retention-floor.md`` for the promise.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg

from parkkeeper.database import statements
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace
from parkkeeper.queue import ring as rings
from parkkeeper.queue.errors import ConservationBroken, PruneRefused
from parkkeeper.queue.other_rings import ClaimSlotPrune, LeaseSlotPrune
from parkkeeper.queue.outcomes import PruneOutcome
from parkkeeper.queue.reclaim import SlotPrune
from parkkeeper.queue.settings import checked_destination, namespace_settings, retention_seconds


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
    """Reclaim the oldest sealed slot that can be; one that is pinned, blocked or refused is passed over.

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
        Where failed jobs inside the retention are carried: ``"live"``, the segment that takes new jobs. None:
        what the namespace has stored.
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
        return other(connection, namespace, lock_timeout, wait_for_snapshots).oldest(dry_run=dry_run)
    given = None if failed_retention is None else retention_seconds("failed_retention", failed_retention)
    if carry_to is not None:
        checked_destination("carry_to", carry_to)
    if max_pruned_failed is not None and (type(max_pruned_failed) is not int or max_pruned_failed < 0):
        raise InvalidArgument(
            f"max_pruned_failed {max_pruned_failed!r} is refused: a whole number, 0 or more, or None"
        )
    attempt = QueueSlotPrune(
        connection,
        namespace,
        lock_timeout,
        wait_for_snapshots,
        failed_retention=given,
        max_pruned_failed=max_pruned_failed,
    )
    return attempt.oldest(dry_run=dry_run)


class QueueSlotPrune(SlotPrune):
    """A slot of the queue ring: pinned while a job in it waits or runs; failed jobs inside their retention are carried.

    Parameters
    ----------
    failed_retention
        In seconds, for queues without their own; None: what the namespace has stored.
    """

    ring = "queue"
    sql = statements("queue/prune")
    afterwards = ("forget_counts",)

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        namespace: Namespace,
        lock_timeout: timedelta,
        wait_for_snapshots: bool,
        *,
        failed_retention: int | None,
        max_pruned_failed: int | None,
    ) -> None:
        super().__init__(connection, namespace, lock_timeout, wait_for_snapshots)
        self._given = failed_retention
        self._retention = 0
        self._max_pruned_failed = max_pruned_failed

    def learn(self, cursor: psycopg.Cursor[Any]) -> None:
        """Read how long failed jobs are kept."""
        stored = namespace_settings(self.connection, self.namespace).failed_retention_seconds
        self._retention = stored if self._given is None else self._given

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
        """Move what is kept to the live segment, add the rest to the rollups, and check that nothing is missing."""
        census = self._census(cursor, slot)
        carried = self._carry(cursor, slot, state) if any(row.carried for row in census) else 0
        folded = self.row(
            cursor,
            "fold",
            slot,
            queues=[row.queue for row in census],
            completed=[row.completed for row in census],
            failed=[row.failed for row in census],
        )
        rows = self.row(cursor, "terminal_rows", slot).rows
        if rows != carried + folded.completed + folded.failed:
            raise ConservationBroken(
                f"namespace {self.namespace}: slot {slot} holds {rows} terminal rows, but {carried} were carried, "
                f"{folded.completed} folded as completed and {folded.failed} as failed: nothing was changed"
            )
        self.do(cursor, "keep_outside", slot)
        return self._counted(census, slot, generation)

    def _carry(self, cursor: psycopg.Cursor[Any], slot: int, state: rings.Ring) -> int:
        try:
            moved = self.row(
                cursor,
                "carry",
                slot,
                retention=self._retention,
                current_slot=state.current_slot,
                generation=state.generation,
            )
        except psycopg.errors.IntegrityError as error:
            # The server's message may show the row, and a row holds a customer's words.
            raise ConservationBroken(
                f"namespace {self.namespace}: carrying failed rows of slot {slot} broke constraint "
                f"{error.diag.constraint_name} ({error.sqlstate}): nothing was changed"
            ) from None
        return int(moved.rows)

    def foresee(self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None) -> PruneOutcome:
        """Return what :meth:`keep` would."""
        return self._counted(self._census(cursor, slot), slot, generation)

    def _census(self, cursor: psycopg.Cursor[Any], slot: int) -> list[Any]:
        """Count the slot's terminal rows by queue and by what becomes of them; refuse to drop too many failed ones."""
        cursor.execute(self.sql.render("census", self.namespace, slot=slot), {"retention": self._retention})
        census = cursor.fetchall()
        dropped = sum(row.failed for row in census)
        if self._max_pruned_failed is not None and dropped > self._max_pruned_failed:
            raise PruneRefused(
                f"namespace {self.namespace}: prune of slot {slot} would drop {dropped} failed jobs, more than "
                f"max_pruned_failed {self._max_pruned_failed}: nothing was changed; retry them, or allow as many",
                dropped,
            )
        return census

    @staticmethod
    def _counted(census: list[Any], slot: int, generation: int | None) -> PruneOutcome:
        return PruneOutcome(
            "pruned",
            slot,
            generation,
            carried_failed_rows=sum(row.carried for row in census),
            pruned_failed=sum(row.failed for row in census),
            pruned_completed=sum(row.completed for row in census),
        )
