"""What the queue's actions return: frozen, with a named outcome and the figures that belong to it.

See ``docs/explanation/ring.md`` for what each outcome promises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RotateOutcome:
    """What one call of ``rotate`` did.

    Attributes
    ----------
    outcome
        ``rotated``: the next empty slot takes what is new now. ``skipped_busy``: no other slot is empty.
        ``skipped_idle``: the ring holds no row, or another ring than the queue's has nothing to seal a slot for;
        nothing was written. ``blocked``: the lock was not had in time.
    slot, generation
        Where new jobs, claims or leases go after this call; None when ``blocked``. For people: nothing computes
        with them.
    """

    outcome: Literal["rotated", "skipped_busy", "skipped_idle", "blocked"]
    slot: int | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class GrowOutcome:
    """What one call of ``grow`` did.

    Attributes
    ----------
    outcome
        ``grown``: slots were added, and there are as many as were asked for. ``noop``: there were as many. ``blocked``:
        some lock was not had, however often it was tried; those that were added before stay, and the next call goes on.
    slots
        How many slots the ring has now.
    """

    outcome: Literal["grown", "noop", "blocked"]
    slots: int


@dataclass(frozen=True, slots=True)
class RescueOutcome:
    """What one call of ``rescue`` did.

    Attributes
    ----------
    rescued
        Jobs whose lease had run out and that will be tried again, after the wait that a failure brings.
    failed
        Jobs whose lease had run out in their last attempt: failed now.
    dead_lettered
        The same, of queues that keep dead letters.
    """

    rescued: int
    failed: int
    dead_lettered: int = 0


@dataclass(frozen=True, slots=True)
class EvacuateOutcome:
    """What one call of ``evacuate`` did.

    Attributes
    ----------
    outcome
        ``evacuated``: jobs were moved out of the ring. ``noop``: there was nothing to move; nothing was written.
        ``blocked``: nothing was moved and a lock was not had in time.
    waiting
        Jobs that waited in a sealed slot and are available from outside of the ring now.
    running
        Jobs that ran in a sealed slot and go on outside of the ring now.
    slots
        The slots that jobs were moved out of, the oldest first.
    backlogs
        Sealed slots that were left as they are, since too many jobs wait in them: only claims make them empty.
    """

    outcome: Literal["evacuated", "noop", "blocked"]
    waiting: int = 0
    running: int = 0
    slots: tuple[int, ...] = ()
    backlogs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PruneOutcome:
    """What one call of ``prune_oldest`` did, or would do with ``dry_run``.

    Attributes
    ----------
    outcome
        ``pruned``: one slot was reclaimed. ``noop``: no sealed slot holds a row; nothing was written.
        ``blocked``: the locks were not had in time. ``skipped_active``: each sealed slot that holds rows is
        still in use.
    slot, generation
        The slot that was pruned, blocked or is pinned (the oldest of them), and the opening of the ring that
        it belonged to; None when there is none.
    reason
        What pins the slot when ``skipped_active``: ``ready_rows`` (jobs that wait in it), ``open_claims`` (jobs of it
        that run) or ``old_snapshot`` (another session's, with ``wait_for_snapshots``); what was not had when
        ``blocked``: ``prune`` (another prune runs), ``ring_state`` or ``slot``.
    count
        How many rows, claims or snapshots of `reason` there are when ``skipped_active``, else 0.
    carried_failed_rows
        Failed rows inside the retention floor that were moved, to floor segments or the live one; like the next two 0
        for another ring than the queue's, since no job leaves with it.
    pruned_failed
        Failed rows past the floor that were dropped, and are counted as such for ever.
    pruned_completed
        Other terminal rows that were dropped.
    lock_ms
        Milliseconds spent waiting for locks.
    truncate_ms
        Milliseconds under exclusive locks, in which readers of the slot wait.
    """

    outcome: Literal["pruned", "noop", "blocked", "skipped_active"]
    slot: int | None = None
    generation: int | None = None
    reason: str | None = None
    count: int = 0
    carried_failed_rows: int = 0
    pruned_failed: int = 0
    pruned_completed: int = 0
    lock_ms: float = 0.0
    truncate_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class RollUpOutcome:
    """What one call of ``roll_up`` did.

    Attributes
    ----------
    outcome
        ``rolled_up``: something was folded or swept. ``noop``: there was nothing to do; nothing was written.
        ``skipped_active``: what is deleted would only be in the way of readers for now, see `reason`.
        ``blocked``: nothing was done and some lock was not had.
    reason
        Why not all was done: ``old_snapshot`` (a transaction of this database has been open for more than a minute),
        ``slot`` (a prune has one) or ``roll_up`` (another roll-up, or a rebuild of the counters, is at work). None when
        all was.
    folded
        Differences of counts that are in the folded counts now.
    released_keys
        Unique keys that were let go of because the job that kept them beyond its end has been pruned.
    trusted
        Whether the counters are believed. If not, jobs are counted from their rows until
        ``rebuild_terminal_counters`` has been called.
    """

    outcome: Literal["rolled_up", "noop", "blocked", "skipped_active"]
    reason: str | None = None
    folded: int = 0
    released_keys: int = 0
    trusted: bool = True


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The jobs of one queue, in one snapshot.

    Attributes
    ----------
    available
        Waiting, in the ring or evacuated from it: a claim may have them now.
    running
        Claimed and not finished.
    terminal
        Completed, failed and cancelled jobs, those in the ring and those that prune has dropped since the
        beginning.
    pruned_failed
        Failed jobs that were dropped past their retention: no longer retryable. Never decreases.
    deferred
        Scheduled for later, or waiting to be tried again after a failure.
    failed
        Failed jobs in the ring: retryable now.
    dead_lettered
        Jobs that failed for good and are kept as dead letters; in no other figure.
    purged_dead_letters
        Dead letters that were purged. Never decreases.
    """

    available: int
    running: int
    terminal: int
    pruned_failed: int
    deferred: int
    failed: int
    dead_lettered: int = 0
    purged_dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class RetryFailedOutcome:
    """What came of putting failed jobs back.

    Attributes
    ----------
    retried
        The ids of the jobs that are available again.
    matched
        How many failed jobs met the filter when they were scanned, at most `limit`; it is the sum of the
        retried ones, the conflicts and the raced ones.
    pruned_failed_count
        Failed jobs of the queue that were dropped past their retention, ever; None by kind, since what was
        dropped is not counted by kind.
    conflicts
        The ids of jobs whose unique key another job holds now; they stay failed.
    raced
        How many were gone when their turn came: retried or dropped by another session meanwhile.
    """

    retried: list[int]
    matched: int
    pruned_failed_count: int | None
    conflicts: list[int]
    raced: int


@dataclass(frozen=True, slots=True)
class RetryDeadLettersOutcome:
    """What came of putting dead letters back.

    Attributes
    ----------
    retried
        The ids of the jobs that are available again.
    matched
        How many dead letters met the filter when they were scanned, at most `limit`; it is the sum of the retried ones,
        the conflicts and the raced ones.
    conflicts
        The ids of jobs whose unique key another job holds now; they stay dead letters.
    raced
        How many were gone when their turn came: put back or purged by another session meanwhile.
    """

    retried: list[int]
    matched: int
    conflicts: list[int]
    raced: int


@dataclass(frozen=True, slots=True)
class PurgeOutcome:
    """What one call of ``purge_dead_letters`` did: `purged` dead letters are gone for good."""

    purged: int


@dataclass(frozen=True, slots=True)
class WorkerOutcome:
    """What a worker did from its start to its end.

    Attributes
    ----------
    completed, retryable, failed, dead_lettered
        Jobs by the state in which it left them.
    stale
        Jobs that it worked on and that were no longer its own in the end: cancelled, or taken for abandoned.
    handed_back
        Jobs that it had claimed and not begun, or not finished, when it was told to stop. They can be claimed at once,
        and that spent no attempt.
    """

    completed: int = 0
    retryable: int = 0
    failed: int = 0
    dead_lettered: int = 0
    stale: int = 0
    handed_back: int = 0
