"""Reclaim a sealed slot by TRUNCATE: what prune does the same way in every ring.

One transaction does one slot: locks, proofs, what is kept, TRUNCATE, in that order. A ring says what pins a slot of it
and what outlives one; see ``docs/explanation/ring.md``, and ``docs/explanation/lock-order.md`` for the locks.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import psycopg

from parkkeeper.database import Statements, statements, without_rows
from parkkeeper.namespace import Namespace
from parkkeeper.queue import ring
from parkkeeper.queue.errors import PruneRefused
from parkkeeper.queue.outcomes import PruneOutcome
from parkkeeper.queue.ring import Ring

ACTION = "prune_oldest"
#: What keeps a prune from any slot, so that there is no use in trying the next one.
_WHOLE_RING = ("prune", "ring_state", "old_snapshot")
#: Seconds between two looks at the snapshots that others hold.
_NEXT_LOOK = 0.005
_SHARED = statements("queue/ring")


class Stopwatch:
    """Adds up the milliseconds spent waiting for locks, and those under exclusive ones."""

    def __init__(self) -> None:
        self.lock_ms = 0.0
        self.exclusive_since: float | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block as waiting."""
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


class SlotPrune(ABC):
    """One call's terms, to be tried on one slot of a ring at a time.

    Parameters
    ----------
    lock_timeout
        How long each lock is waited for, above zero and at most 5 s.
    wait_for_snapshots
        Whether to stand down while another session holds a snapshot.
    """

    ring: ClassVar[str]
    sql: ClassVar[Statements]
    #: Statements that follow the TRUNCATE, under the exclusive locks.
    afterwards: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        namespace: Namespace,
        lock_timeout: timedelta,
        wait_for_snapshots: bool,
    ) -> None:
        self.connection = connection
        self.namespace = namespace
        self.lock_timeout = ring.checked_lock_timeout(lock_timeout)
        self._patience = lock_timeout.total_seconds()
        self._wait_for_snapshots = wait_for_snapshots

    @abstractmethod
    def pinned(
        self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None, *, exact: bool
    ) -> PruneOutcome | None:
        """Tell what still uses the slot, None if nothing does. Only the figure that is reported has to be exact."""

    @abstractmethod
    def keep(
        self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None, state: Ring
    ) -> PruneOutcome:
        """Move what outlives the slot, and return what the prune will have done."""

    @abstractmethod
    def foresee(self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None) -> PruneOutcome:
        """Return what :meth:`keep` would."""

    def candidates(self, cursor: psycopg.Cursor[Any]) -> list[Any]:
        """Return the units (``slot``, ``generation``) that may be reclaimed, the one whose turn it is in front."""
        return cursor.execute(self.sql.render("candidates", self.namespace)).fetchall()

    def held(self, cursor: psycopg.Cursor[Any], slot: int) -> Any:
        """Lock the unit's row and return its ``generation``, and whether it ``holds_rows`` to be reclaimed."""
        return self.row(cursor, "lock_slot", slot)

    def numbers(self, slot: int) -> dict[str, int]:
        """Return what the statements name the unit by."""
        return {"slot": slot}

    def prune(self, slot: int, generation: int | None, *, exact: bool) -> PruneOutcome | None:
        """Do the slot's transaction; None when another session emptied or opened the slot meanwhile."""
        watch = Stopwatch()
        wanted = "slot"
        try:
            with ring.maintenance(self.connection, self.namespace, ACTION, self.lock_timeout) as cursor:
                # Before any lock, so that a slot in use costs neither a wait nor a write.
                if pinned := self._looked(cursor, slot, generation, exact):
                    return pinned
                wanted = "ring_state"
                with watch.waiting():
                    state = ring.lock_ring(cursor, self.namespace, ACTION, self.ring)
                if state is None:
                    return PruneOutcome("blocked", slot, generation, "prune")
                wanted = "slot"
                with watch.waiting():
                    held = self.held(cursor, slot)
                    if slot == state.current_slot or not held.holds_rows:
                        return None
                    self.hold_writers(cursor, slot, watch)
                # Again, now that nothing can be added: something may have been while the locks were waited for.
                if pinned := self.pinned(cursor, slot, held.generation, exact=exact):
                    return pinned
                outcome = self.keep(cursor, slot, held.generation, state)
                with watch.waiting():
                    self.hold_all(cursor, slot, watch)
                self._reclaim(cursor, slot)
        except ring.LOCK_NOT_HAD:
            return watch.stamp(PruneOutcome("blocked", slot, generation, wanted))
        return watch.stamp(outcome)

    def rehearse(self, slot: int, generation: int | None, *, exact: bool) -> PruneOutcome:
        """Return what :meth:`prune` would, in a transaction that cannot write."""
        try:
            with ring.maintenance(self.connection, self.namespace, ACTION, self.lock_timeout) as cursor:
                cursor.execute(_SHARED.render("read_only", self.namespace))
                return self._looked(cursor, slot, generation, exact) or self.foresee(cursor, slot, generation)
        except ring.LOCK_NOT_HAD:
            return PruneOutcome("blocked", slot, generation, "slot")

    def _looked(
        self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None, exact: bool
    ) -> PruneOutcome | None:
        """Tell what is to be seen without a lock that is in the way of the prune."""
        if pinned := self.pinned(cursor, slot, generation, exact=exact):
            return pinned
        if self._wait_for_snapshots and (count := self._old_snapshots(cursor)):
            return PruneOutcome("skipped_active", slot, generation, "old_snapshot", count)
        return None

    def _old_snapshots(self, cursor: psycopg.Cursor[Any]) -> int:
        """Count the snapshots that are open now and stay so, and the transactions that are prepared.

        Every statement that runs has a snapshot, and in a busy database there is always one. Most are gone in a moment,
        so they are waited for as long as for a lock. What is begun meanwhile is not older than this prune.
        """
        end = time.monotonic() + self._patience
        old: set[Any] | None = None
        while True:
            cursor.execute(_SHARED.render("look_anew", self.namespace))
            seen = set(cursor.execute(_SHARED.render("open_snapshots", self.namespace)))
            old = seen if old is None else old & seen
            if not old or time.monotonic() > end:
                break
            time.sleep(_NEXT_LOOK)
        prepared = ring.one_row(cursor, _SHARED.render("prepared_transactions", self.namespace))
        return len(old) + int(prepared.count)

    def do(self, cursor: psycopg.Cursor[Any], name: str, slot: int, **values: Any) -> None:
        """Run a statement on `slot` that returns nothing."""
        cursor.execute(self.sql.render(name, self.namespace, **self.numbers(slot)), values or None)

    def row(self, cursor: psycopg.Cursor[Any], name: str, slot: int, **values: Any) -> Any:
        """Run a statement on `slot` that returns one row, and return that."""
        return ring.one_row(cursor, self.sql.render(name, self.namespace, **self.numbers(slot)), **values)

    def hold_writers(self, cursor: psycopg.Cursor[Any], slot: int, watch: Stopwatch) -> None:
        """Make writers of the slot wait, unless a reader would keep us from the TRUNCATE anyway."""
        with self.connection.transaction(force_rollback=True):
            self.do(cursor, "probe", slot)
        self.do(cursor, "hold_writers", slot)

    def hold_all(self, cursor: psycopg.Cursor[Any], slot: int, watch: Stopwatch) -> None:
        """Make readers of the slot wait, too."""
        self.do(cursor, "hold_all", slot)
        watch.exclusive_since = watch.exclusive_since or time.perf_counter()

    def _reclaim(self, cursor: psycopg.Cursor[Any], slot: int) -> None:
        filled = self.row(cursor, "filled", slot)._asdict()
        for name in [name for name, has_pages in filled.items() if has_pages]:
            self.do(cursor, name, slot)
        for name in (*self.afterwards, "reclaimed"):
            self.do(cursor, name, slot)


def oldest(prunes: Sequence[SlotPrune], *, dry_run: bool) -> PruneOutcome:
    """Try one unit after the other until one is done, those of the first prune in front.

    Returns
    -------
    PruneOutcome
        Of the unit that was done; else what is most in need of a person.
    """
    connection, namespace = prunes[0].connection, prunes[0].namespace
    with without_rows(connection, namespace, "queue", ACTION):
        try:
            with ring.maintenance(connection, namespace, ACTION, prunes[0].lock_timeout) as cursor:
                units = [(prune, unit) for prune in prunes for unit in prune.candidates(cursor)]
        except ring.LOCK_NOT_HAD:
            return PruneOutcome("blocked", reason="prune")  # Its TRUNCATE holds off our look.
        refused: PruneRefused | None = None
        passed: dict[str, PruneOutcome] = {}
        for prune, unit in units:
            attempt = prune.rehearse if dry_run else prune.prune
            try:
                outcome = attempt(unit.slot, unit.generation, exact="skipped_active" not in passed)
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
