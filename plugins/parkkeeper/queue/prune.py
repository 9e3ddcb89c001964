"""Reclaim a sealed slot by TRUNCATE, carrying the failed jobs that are promised to stay retryable.

One transaction does one slot: locks, proofs, carry, fold, conservation, TRUNCATE, in that order. See
``docs/adr/0001-failed-retention-floor.md`` for the promise and ``docs/explanation/lock-order.md`` for the
locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import psycopg

from parkkeeper.database import known_namespace, statements
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace
from parkkeeper.queue import ring
from parkkeeper.queue.errors import ConservationBroken, PruneRefused
from parkkeeper.queue.outcomes import PruneOutcome
from parkkeeper.queue.settings import checked_destination, namespace_settings, retention_seconds

_ACTION = "prune_oldest"
#: What keeps a prune from any slot, so that there is no use in trying the next one.
_WHOLE_RING = ("prune", "ring_state")
_SQL = statements("queue/prune")


class _Stopwatch:
    """Adds up the milliseconds spent waiting for locks, and those under exclusive ones."""

    def __init__(self) -> None:
        self.lock_ms = 0.0
        self.exclusive_since: float | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.lock_ms += (time.perf_counter() - began) * 1000

    def stamp(self, outcome: PruneOutcome) -> PruneOutcome:
        """Return `outcome` with the times, the exclusive one up to now: the commit is part of it."""
        since, now = self.exclusive_since, time.perf_counter()
        truncate_ms = 0.0 if since is None else (now - since) * 1000
        return replace(outcome, lock_ms=round(self.lock_ms, 3), truncate_ms=round(truncate_ms, 3))


def prune_oldest(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    failed_retention: timedelta | int | None = None,
    *,
    carry_to: str | None = None,
    dry_run: bool = False,
    max_pruned_failed: int | None = None,
    lock_timeout: timedelta = ring.LOCK_TIMEOUT,
) -> PruneOutcome:
    """Reclaim the oldest sealed slot that can be; one that is pinned, blocked or refused is passed over.

    Parameters
    ----------
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
        An argument is out of range; nothing was sent to the database.
    UnknownNamespace
        The namespace has no queue.
    """
    timeout = ring.checked_lock_timeout(lock_timeout)
    given = None if failed_retention is None else retention_seconds("failed_retention", failed_retention)
    if carry_to is not None:
        checked_destination("carry_to", carry_to)
    if max_pruned_failed is not None and (type(max_pruned_failed) is not int or max_pruned_failed < 0):
        raise InvalidArgument(
            f"max_pruned_failed {max_pruned_failed!r} is refused: a whole number, 0 or more, or None"
        )
    with known_namespace(namespace, "queue"):
        try:
            with ring.maintenance(connection, namespace, _ACTION, timeout) as cursor:
                stored = namespace_settings(connection, namespace).failed_retention_seconds
                candidates = cursor.execute(_SQL.render("candidates", namespace)).fetchall()
        except ring.LOCK_NOT_HAD:
            return PruneOutcome("blocked", reason="prune")  # Its TRUNCATE holds off our look.
        retention = stored if given is None else given
        attempt = _Attempt(connection, namespace, retention, max_pruned_failed, timeout)
        return _first_done(candidates, attempt.rehearse if dry_run else attempt.prune)


def _first_done(candidates: list[Any], attempt: Callable[..., PruneOutcome | None]) -> PruneOutcome:
    """Try one slot after the other until one is done; else tell what is most in need of a person."""
    refused: PruneRefused | None = None
    passed: dict[str, PruneOutcome] = {}
    for candidate in candidates:
        try:
            outcome = attempt(candidate.slot, candidate.generation, exact="skipped_active" not in passed)
        except PruneRefused as error:
            refused = refused or error
            continue
        if outcome is None:
            continue
        if outcome.outcome == "pruned" or outcome.reason in _WHOLE_RING:
            return outcome
        passed.setdefault(outcome.outcome, outcome)
    if refused is not None:
        raise refused
    return passed.get("blocked") or passed.get("skipped_active") or PruneOutcome("noop")


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One call's terms, to be tried on one slot at a time; `retention` in seconds, for queues without their own."""

    connection: psycopg.Connection[Any]
    namespace: Namespace
    retention: int
    max_pruned_failed: int | None
    lock_timeout: str

    def prune(self, slot: int, generation: int | None, *, exact: bool) -> PruneOutcome | None:
        """Do the slot's transaction; None when another session emptied or opened the slot meanwhile."""
        watch = _Stopwatch()
        wanted = "ring_state"
        try:
            with ring.maintenance(self.connection, self.namespace, _ACTION, self.lock_timeout) as cursor:
                # Before any lock, so that a slot in use costs neither a wait nor a write.
                if pinned := self._pinned(cursor, slot, generation, exact=exact):
                    return pinned
                with watch.waiting():
                    state = ring.lock_ring(cursor, self.namespace, _ACTION)
                if state is None:
                    return PruneOutcome("blocked", slot, generation, "prune")
                wanted = "slot"
                with watch.waiting():
                    held = self._row(cursor, "lock_slot", slot)
                    if slot == state.current_slot or not held.holds_rows:
                        return None
                    self._lock_children(cursor, slot)
                # Again, now that nothing can be added: something may have been while the locks were waited for.
                if pinned := self._pinned(cursor, slot, held.generation, exact=exact):
                    return pinned
                outcome = self._carry_and_fold(cursor, slot, held.generation, state)
                self._do(cursor, "keep_outside", slot)
                with watch.waiting():
                    self._do(cursor, "hold_all", slot)
                watch.exclusive_since = time.perf_counter()
                self._reclaim(cursor, slot)
        except ring.LOCK_NOT_HAD:
            return watch.stamp(PruneOutcome("blocked", slot, generation, wanted))
        return watch.stamp(outcome)

    def rehearse(self, slot: int, generation: int | None, *, exact: bool) -> PruneOutcome:
        """Return what :meth:`prune` would, in a transaction that cannot write."""
        try:
            with ring.maintenance(self.connection, self.namespace, _ACTION, self.lock_timeout) as cursor:
                self._do(cursor, "read_only", slot)
                return self._pinned(cursor, slot, generation, exact=exact) or self._counted(
                    self._census(cursor, slot), slot, generation
                )
        except ring.LOCK_NOT_HAD:
            return PruneOutcome("blocked", slot, generation, "slot")

    def _do(self, cursor: psycopg.Cursor[Any], name: str, slot: int) -> None:
        """Run a statement on `slot` that returns nothing."""
        cursor.execute(_SQL.render(name, self.namespace, slot=slot))

    def _row(self, cursor: psycopg.Cursor[Any], name: str, slot: int, **values: Any) -> Any:
        """Run a statement on `slot` that returns one row, and return that."""
        return ring.one_row(cursor, _SQL.render(name, self.namespace, slot=slot), **values)

    def _pinned(
        self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None, *, exact: bool
    ) -> PruneOutcome | None:
        """Tell what still uses the slot, None if nothing does. Only the figure that is reported has to be exact."""
        proof = self._row(cursor, "proofs", slot, limit=None if exact else 1)
        for reason in ("ready_rows", "open_claims"):
            if count := getattr(proof, reason):
                return PruneOutcome("skipped_active", slot, generation, reason, count)
        return None

    def _lock_children(self, cursor: psycopg.Cursor[Any], slot: int) -> None:
        """Make writers of the slot wait, unless a reader would keep us from the TRUNCATE anyway."""
        with self.connection.transaction(force_rollback=True):
            self._do(cursor, "probe", slot)
        self._do(cursor, "hold_writers", slot)

    def _census(self, cursor: psycopg.Cursor[Any], slot: int) -> list[Any]:
        """Count the slot's terminal rows by queue and by what becomes of them; refuse to drop too many failed ones."""
        cursor.execute(_SQL.render("census", self.namespace, slot=slot), {"retention": self.retention})
        census = cursor.fetchall()
        dropped = sum(row.failed for row in census)
        if self.max_pruned_failed is not None and dropped > self.max_pruned_failed:
            raise PruneRefused(
                f"namespace {self.namespace}: prune of slot {slot} would drop {dropped} failed jobs, more than "
                f"max_pruned_failed {self.max_pruned_failed}: nothing was changed; retry them, or allow as many",
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

    def _carry_and_fold(
        self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None, state: ring.Ring
    ) -> PruneOutcome:
        """Move what is kept to the live segment, add the rest to the rollups, and check that nothing is missing."""
        census = self._census(cursor, slot)
        carried = self._carry(cursor, slot, state) if any(row.carried for row in census) else 0
        folded = self._row(
            cursor,
            "fold",
            slot,
            queues=[row.queue for row in census],
            completed=[row.completed for row in census],
            failed=[row.failed for row in census],
        )
        rows = self._row(cursor, "terminal_rows", slot).rows
        if rows != carried + folded.completed + folded.failed:
            raise ConservationBroken(
                f"namespace {self.namespace}: slot {slot} holds {rows} terminal rows, but {carried} were carried, "
                f"{folded.completed} folded as completed and {folded.failed} as failed: nothing was changed"
            )
        return self._counted(census, slot, generation)

    def _carry(self, cursor: psycopg.Cursor[Any], slot: int, state: ring.Ring) -> int:
        try:
            moved = self._row(
                cursor,
                "carry",
                slot,
                retention=self.retention,
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

    def _reclaim(self, cursor: psycopg.Cursor[Any], slot: int) -> None:
        filled = self._row(cursor, "filled", slot)._asdict()
        for name in [name for name, has_pages in filled.items() if has_pages]:
            self._do(cursor, name, slot)
        self._do(cursor, "forget_counts", slot)
        self._do(cursor, "reclaimed", slot)
