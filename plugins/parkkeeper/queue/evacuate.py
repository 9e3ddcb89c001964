"""Move the last jobs of sealed slots out of the ring, so that they do not keep the slots from being pruned.

See ``docs/explanation/ring.md`` for when that is done and what it changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import psycopg

from parkkeeper.database import refuse_open_transaction, statements, without_rows
from parkkeeper.namespace import Namespace
from parkkeeper.queue import ring
from parkkeeper.queue.arguments import whole_number
from parkkeeper.queue.outcomes import EvacuateOutcome

#: Jobs that one call moves unless told otherwise, and that one transaction moves: so long does their lane wait.
LIMIT, CHUNK = 5_000, 1_000
#: With no more empty slots than this, the ring is about to stand still.
FREE_SLOTS = 2
#: A slot in which more jobs wait holds a backlog. To move that would make an overload worse.
MOST_WAITING = 50_000
#: One job in so many that were enqueued to a slot: that few are stragglers.
FEW = 4

_ACTION = "evacuate"
_SQL = statements("queue/evacuate")


def evacuate(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    limit: int = LIMIT,
    *,
    lock_timeout: timedelta = ring.LOCK_TIMEOUT,
) -> EvacuateOutcome:
    """Move jobs that wait or run in sealed slots out of the ring, those of the oldest slot first.

    A slot is evacuated when a quarter or less of its jobs still wait; or, when two or fewer slots are empty, whatever
    share of them waits, unless it was sealed only by the last rotate. One in which more than 50,000 jobs wait never is.
    The same goes for jobs that run, but never before the ring has turned once more since the slot was sealed.

    Jobs that wait stay available, keep their place, their unique keys and their attempts, and come back when they are
    claimed. Jobs that run go on, and end as they would have. It works in transactions of 1,000 jobs and waits for no
    claim. With nothing to move, it writes nothing.

    Parameters
    ----------
    limit
        At most so many jobs, 1 or more.
    lock_timeout
        How long each lock is waited for, above zero and at most 5 s.

    Returns
    -------
    EvacuateOutcome

    Raises
    ------
    TransactionOpen
        The caller has a transaction open.
    InvalidArgument
        An argument is out of range; nothing was sent to the database.
    UnknownNamespace
        The namespace has no queue.
    """
    return _evacuate(connection, namespace, limit, lock_timeout, stragglers=True)


def make_room(
    connection: psycopg.Connection[Any], namespace: Namespace, *, lock_timeout: timedelta = ring.LOCK_TIMEOUT
) -> EvacuateOutcome:
    """Do a step of :func:`evacuate` if two or fewer slots are empty: what each rotate begins with.

    Stragglers alone are no reason to move jobs here. Otherwise as :func:`evacuate`.
    """
    refuse_open_transaction(connection, "rotate")
    return _evacuate(connection, namespace, LIMIT, lock_timeout, stragglers=False)


def _evacuate(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    limit: int,
    lock_timeout: timedelta,
    *,
    stragglers: bool,
) -> EvacuateOutcome:
    left = whole_number("limit", limit, range(1, 2**31))
    timeout = ring.checked_lock_timeout(lock_timeout)
    moved: dict[str, int] = {"waiting": 0, "running": 0}
    slots: list[int] = []
    backlogs: list[int] = []
    blocked = False
    try:
        with without_rows(connection, namespace, "queue", _ACTION):
            with ring.maintenance(connection, namespace, _ACTION, timeout) as cursor:
                chosen, backlogs = _Look(cursor, namespace, stragglers).choose()
            for slot, what in chosen:
                while left and (count := _move(connection, namespace, timeout, slot, what, min(CHUNK, left))):
                    moved[what] += count
                    left -= count
                    slots += [] if slot in slots else [slot]
    except ring.LOCK_NOT_HAD:
        blocked = True
    outcome: Literal["evacuated", "noop", "blocked"] = "blocked" if blocked else "noop"
    return EvacuateOutcome(
        "evacuated" if slots else outcome, slots=tuple(slots), backlogs=tuple(backlogs), **moved
    )


@dataclass(slots=True)
class _Look:
    """Looks for slots to evacuate, of which `stragglers` alone are a reason or not."""

    cursor: psycopg.Cursor[Any]
    namespace: Namespace
    stragglers: bool

    def choose(self) -> tuple[list[tuple[int, str]], list[int]]:
        """Return what to move out of which slot, the oldest first, and the slots in which too many jobs wait for it."""
        slots = self.cursor.execute(_SQL.render("slots", self.namespace)).fetchall()
        scarce = sum(not slot.current and not slot.holds_rows for slot in slots) <= FREE_SLOTS
        chosen: list[tuple[int, str]] = []
        backlogs: list[int] = []
        if not scarce and not self.stragglers:
            return chosen, backlogs
        newest = max((place for place, slot in enumerate(slots) if not slot.current), default=None)
        for place, slot in enumerate(slots):
            if slot.current or not slot.holds_rows:
                continue
            pins = _one(self.cursor, self.namespace, "pins", slot.slot, limit=MOST_WAITING + 1)
            if pins.waiting > MOST_WAITING:
                backlogs.append(slot.slot)
                continue
            turned = place != newest
            leaves = not pins.waiting or self._wanted(slot.slot, pins.waiting, urgent=scarce and turned)
            if pins.waiting and leaves:
                chosen.append((slot.slot, "waiting"))
            # What runs is no reason to move anything while jobs that wait pin the slot anyhow.
            if turned and leaves and pins.running and self._wanted(slot.slot, pins.running, urgent=scarce):
                chosen.append((slot.slot, "running"))
        return chosen, backlogs

    def _wanted(self, slot: int, jobs: int, *, urgent: bool) -> bool:
        """Tell whether so many jobs are to leave the slot: when it is urgent, or if they are few of its jobs."""
        if urgent or not self.stragglers:
            return urgent
        return bool(_one(self.cursor, self.namespace, "holds", slot, bodies=FEW * jobs).holds)


def _move(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    lock_timeout: str,
    slot: int,
    what: str,
    limit: int,
) -> int:
    with ring.maintenance(connection, namespace, _ACTION, lock_timeout) as cursor:
        return int(_one(cursor, namespace, what, slot, limit=limit).moved)


def _one(cursor: psycopg.Cursor[Any], namespace: Namespace, name: str, slot: int, **values: Any) -> Any:
    """Run a statement on `slot` that returns one row, and return that."""
    return ring.one_row(cursor, _SQL.render(name, namespace, slot=slot), **values)
