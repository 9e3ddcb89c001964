"""Fold the ledger of counts and sweep unique keys that no job holds any more, in steps that are in nobody's way.

See ``docs/explanation/ring.md`` for the ledger and for when it is not believed, ``docs/explanation/queue.md`` for keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg

from parkkeeper.database import statements, without_rows
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace
from parkkeeper.queue import ring
from parkkeeper.queue.outcomes import RollUpOutcome

#: Differences that one transaction folds.
STEP = 10_000
#: Unique keys that one transaction looks through, and one call: a longer pass is gone on with by the next call.
KEYS_STEP, KEYS = 1_000, 20_000

ACTION = "roll_up"
_SQL = statements("queue/roll_up")


class _Busy(Exception):
    """Another session does the same action."""


def roll_up(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    *,
    limit: int | None = None,
    lock_timeout: timedelta = ring.LOCK_TIMEOUT,
) -> RollUpOutcome:
    """Fold the differences of counts that have been appended so far, and look whether they can be right.

    Folding moves figures and changes no count, at no moment and wherever it is cut off. A slot that a prune has is left
    to the next call. A sum below zero, which no history of jobs can leave, makes the counters untrusted.

    When rows have been pruned, it then looks through the unique keys that are kept beyond the end of their job, and
    lets go of those whose job is gone.

    Parameters
    ----------
    limit
        At most so many differences. None: all that there are now.
    lock_timeout
        How long each lock is waited for, above zero and at most 5 s.

    Returns
    -------
    RollUpOutcome

    Raises
    ------
    TransactionOpen
        The caller has a transaction open.
    InvalidArgument
        An argument is out of range.
    UnknownNamespace
        The namespace has no queue.
    """
    timeout = ring.checked_lock_timeout(lock_timeout)
    if limit is not None and (type(limit) is not int or not 1 <= limit < 2**63):
        raise InvalidArgument(f"limit {limit!r} is refused: a whole number, 1 or more, or None for all")
    with without_rows(connection, namespace, "queue", ACTION):
        return _RollUp(connection, namespace, timeout).run(limit)


class _RollUp:
    """One call, in transactions of a bounded size."""

    def __init__(self, connection: psycopg.Connection[Any], namespace: Namespace, lock_timeout: str) -> None:
        self.connection = connection
        self.namespace = namespace
        self.lock_timeout = lock_timeout
        self.folded = self.keys = self.released_keys = 0
        self.reason: str | None = None

    def run(self, limit: int | None) -> RollUpOutcome:
        """Look, mark counters that cannot be right, fold, sweep."""
        try:
            with ring.maintenance(self.connection, self.namespace, ACTION, self.lock_timeout) as cursor:
                look = ring.one_row(cursor, _SQL.render("look", self.namespace))
                due = look.slots or look.keys_due
                old_snapshot = due and ring.one_row(cursor, _SQL.render("old_snapshot", self.namespace)).found
            if look.impossible and look.unmarked:
                with self._step() as cursor:
                    cursor.execute(_SQL.render("distrust", self.namespace))
        except ring.LOCK_NOT_HAD:
            return RollUpOutcome("blocked", "slot")
        except _Busy:
            return RollUpOutcome("blocked", ACTION)
        trusted = look.trusted and not look.impossible
        if old_snapshot:
            return RollUpOutcome("skipped_active", "old_snapshot", trusted=trusted)
        try:
            for slot, deltas in zip(look.slots, look.deltas, strict=True):
                self._fold(slot, deltas if limit is None else min(deltas, limit - self.folded))
            if look.keys_due:
                self._sweep()
        except _Busy:
            self.reason = ACTION
        if self.folded or self.keys:
            return RollUpOutcome("rolled_up", self.reason, self.folded, self.released_keys, trusted)
        return RollUpOutcome("blocked" if self.reason else "noop", self.reason, trusted=trusted)

    def _fold(self, slot: int, deltas: int) -> None:
        """Fold at most `deltas` of one slot, or as many as are had before a lock is not."""
        hold = _SQL.render("hold_slot" if slot >= 0 else "hold_segment", self.namespace, number=abs(slot))
        try:
            while deltas > 0:
                with self._step() as cursor:
                    cursor.execute(hold)
                    statement = _SQL.render("fold", self.namespace, slot=slot)
                    rows = ring.one_row(cursor, statement, limit=min(deltas, STEP)).rows
                    cursor.execute(_SQL.render("forget_zeros", self.namespace, slot=slot))
                if not rows:
                    return  # a prune has taken them
                self.folded += rows
                deltas -= rows
        except ring.LOCK_NOT_HAD:
            self.reason = "slot"

    def _sweep(self) -> None:
        """Look through unique keys until the pass is over, or many have been, or a lock is not had."""
        passed = KEYS_STEP
        try:
            while passed == KEYS_STEP and self.keys < KEYS:
                with self._step() as cursor:
                    cursor.execute(_SQL.render("hold_prunes", self.namespace))
                    cursor.execute(_SQL.render("probe_by_key", self.namespace))
                    statement = _SQL.render("sweep", self.namespace)
                    passed, released = ring.one_row(cursor, statement, limit=KEYS_STEP)
                self.keys += passed
                self.released_keys += released
        except ring.LOCK_NOT_HAD:
            self.reason = "slot"

    @contextmanager
    def _step(self) -> Iterator[psycopg.Cursor[Any]]:
        """Open a transaction in which no other session folds or rebuilds."""
        with ring.maintenance(self.connection, self.namespace, ACTION, self.lock_timeout) as cursor:
            if not ring.try_action(cursor, self.namespace, ACTION):
                raise _Busy
            yield cursor
