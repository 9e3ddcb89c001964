"""Look after the queue: take back jobs of dead workers, turn the ring, reclaim sealed slots, fold the counts.

The two that turn the ring push `outcome`, `slot`, `generation`, `carried_failed`, `pruned_failed`, `pruned_completed`
(what this task did) and `pruned_failed_total` (what the namespace has dropped since it was made); see
``docs/reference/xcom.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg

from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace
from parkkeeper.operators import arguments
from parkkeeper.operators.base import Figures, ParkkeeperOperator, Work
from parkkeeper.operators.totals import totals
from parkkeeper.queue import PruneRefused, QueueStorage
from parkkeeper.queue.outcomes import PruneOutcome
from parkkeeper.queue.ring import checked_ring
from parkkeeper.queue.settings import checked_destination

#: A ring has no more slots than this; a prune that has done so many leaves the rest to the next run.
MOST_SLOTS = 256
#: Each moves some thousands of jobs; what is left then is left to the next run.
MOST_EVACUATIONS = 50


def _ring_figures(connection: psycopg.Connection[Any], namespace: Namespace, outcome: str) -> Figures:
    """Return the fixed keys with nothing done and the namespace's real total."""
    return {
        "outcome": outcome,
        "slot": None,
        "generation": None,
        "carried_failed": 0,
        "pruned_failed": 0,
        "pruned_completed": 0,
        **totals(connection, namespace, "pruned_failed_total"),
    }


def _evacuate(storage: QueueStorage) -> int:
    """Evacuate until there is nothing left to move, within bounds; return how many jobs were moved."""
    moved = 0
    for _ in range(MOST_EVACUATIONS):
        done = storage.evacuate()
        moved += done.waiting + done.running
        if done.outcome != "evacuated":
            break
    return moved


class RescueOperator(ParkkeeperOperator):
    """Take back jobs whose lease has run out: each is tried again later, or failed if that was its last attempt.

    `outcome` is ``rescued`` if any job was taken back, else ``noop``. `rescued` counts those that will be tried
    again, `failed` those that are failed now, `dead_lettered` those that are dead letters now.
    """

    requires = "queue"
    outcomes = ("rescued", "noop")

    def prepare(self, namespace: Namespace) -> Work:
        """Return the rescue."""

        def work(connection: psycopg.Connection[Any]) -> Figures:
            done = QueueStorage(connection, namespace).rescue()
            figures = {"rescued": done.rescued, "failed": done.failed, "dead_lettered": done.dead_lettered}
            return {"outcome": "rescued" if any(figures.values()) else "noop", **figures}

        return work


class PurgeDeadLettersOperator(ParkkeeperOperator):
    """Delete dead letters that are older than their queue wants to keep them; others are left.

    `outcome` is ``purged`` if any was deleted, else ``noop``. `purged` counts them.
    """

    requires = "queue"
    outcomes = ("purged", "noop")

    def prepare(self, namespace: Namespace) -> Work:
        """Return the purge."""

        def work(connection: psycopg.Connection[Any]) -> Figures:
            purged = QueueStorage(connection, namespace).purge_dead_letters().purged
            return {"outcome": "purged" if purged else "noop", "purged": purged}

        return work


class RingOperator(ParkkeeperOperator):
    """An action on a ring of the queue.

    Parameters
    ----------
    ring
        ``queue`` (jobs and their history), ``lease`` or ``claim`` (what workers have in hand).
    lock_timeout
        How long to wait for the ring's locks before the outcome is ``blocked``: a timedelta or seconds, 5 s
        at most, since everybody who reads the slot waits as long.
    """

    template_fields: Sequence[str] = (*ParkkeeperOperator.template_fields, "ring", "lock_timeout")
    requires = "queue"

    def __init__(
        self,
        *,
        ring: str = "queue",
        lock_timeout: timedelta | float | str = timedelta(milliseconds=50),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.ring = ring
        self.lock_timeout = lock_timeout


class RotateRingOperator(RingOperator):
    """Open the next empty slot of a ring and seal the current one; of the queue ring, first evacuate old slots.

    `outcome` is ``rotated``, ``skipped_busy`` (no other slot is empty), ``skipped_idle`` (there is nothing to
    seal a slot for) or ``blocked``. `slot` and `generation` are those that were opened, null if none was.
    `evacuated` counts the jobs that were moved out of the queue ring.
    """

    outcomes = ("rotated", "skipped_busy", "skipped_idle", "blocked")

    def prepare(self, namespace: Namespace) -> Work:
        """Validate the arguments and return the rotation."""
        ring = checked_ring(self.ring)
        lock_timeout = arguments.duration("lock_timeout", self.lock_timeout)

        def work(connection: psycopg.Connection[Any]) -> Figures:
            storage = QueueStorage(connection, namespace)
            evacuated = _evacuate(storage) if ring == "queue" else 0
            done = storage.rotate(ring=ring, lock_timeout=lock_timeout)
            figures = _ring_figures(connection, namespace, done.outcome) | {"evacuated": evacuated}
            if done.outcome == "rotated":
                figures |= {"slot": done.slot, "generation": done.generation}
            return figures

        return work


class PruneWithCarryOperator(RingOperator):
    """Reclaim sealed slots of a ring, oldest first, until none is left; carry failed jobs inside their retention.

    `outcome` is ``pruned`` if any slot was; else ``noop``, ``blocked`` or ``skipped_active`` (every sealed
    slot is still in use). The other figures are sums over the slots; `slot` and `generation` are those of the
    last one, null if none. With another `ring` than the queue's there are no failed jobs to speak of: the
    arguments about them are refused and the figures are 0.

    Parameters
    ----------
    failed_retention
        How long after its end a failed job stays retryable: a timedelta or whole seconds, 0 carries nothing.
        A queue's own setting wins. None: what the namespace says.
    max_pruned_failed
        Refuse a slot that would drop more failed jobs than this, and fail; None: no limit.
    approved_pruned_failed
        Instead: how many failed jobs the whole task may drop, over all slots, because somebody has seen the figure of
        a dry run and approved it. Once something is pruned, a slot that would go beyond it is left and ends the task.
    carry_to
        Where the failed jobs move; None: what the namespace says.
    dry_run
        Report what the next prune would do, and do nothing.
    wait_for_snapshots
        Prune nothing while a transaction of the database keeps a snapshot from before: the outcome is
        ``skipped_active``.
    """

    template_fields: Sequence[str] = (
        *RingOperator.template_fields,
        "failed_retention",
        "max_pruned_failed",
        "approved_pruned_failed",
        "carry_to",
        "is_dry_run",
        "wait_for_snapshots",
    )
    outcomes = ("pruned", "noop", "blocked", "skipped_active")

    def __init__(
        self,
        *,
        failed_retention: timedelta | int | str | None = None,
        max_pruned_failed: int | str | None = None,
        approved_pruned_failed: int | str | None = None,
        carry_to: str | None = None,
        dry_run: bool | str = False,
        wait_for_snapshots: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.failed_retention = failed_retention
        self.max_pruned_failed = max_pruned_failed
        self.approved_pruned_failed = approved_pruned_failed
        self.carry_to = carry_to
        # Not self.dry_run: that is a method of every operator.
        self.is_dry_run = dry_run
        self.wait_for_snapshots = wait_for_snapshots

    def prepare(self, namespace: Namespace) -> Work:
        """Validate the arguments and return the prune."""
        dry_run = arguments.flag("dry_run", self.is_dry_run)
        failed_retention = arguments.optional_duration("failed_retention", self.failed_retention)
        most = arguments.optional_whole("max_pruned_failed", self.max_pruned_failed, 0)
        approved = arguments.optional_whole("approved_pruned_failed", self.approved_pruned_failed, 0)
        if most is not None and approved is not None:
            raise InvalidArgument("give one of max_pruned_failed and approved_pruned_failed")
        carry_to = arguments.optional_text(self.carry_to)
        options: dict[str, Any] = {
            "ring": checked_ring(self.ring),
            "carry_to": None if carry_to is None else checked_destination("carry_to", carry_to),
            "lock_timeout": arguments.duration("lock_timeout", self.lock_timeout),
            "wait_for_snapshots": arguments.flag("wait_for_snapshots", self.wait_for_snapshots),
        }

        def work(connection: psycopg.Connection[Any]) -> Figures:
            storage = QueueStorage(connection, namespace)
            done: list[PruneOutcome] = []
            while len(done) < MOST_SLOTS:
                left = most if approved is None else approved - sum(one.pruned_failed for one in done)
                try:
                    last = storage.prune_oldest(
                        failed_retention, dry_run=dry_run, max_pruned_failed=left, **options
                    )
                except PruneRefused as refused:
                    if approved is None or not done:
                        raise
                    self.log.info("What is approved is used up; left as it is: %s", refused)
                    break
                if last.outcome == "pruned":
                    done.append(last)
                if last.outcome != "pruned" or dry_run:
                    break
            if last.outcome != "pruned" and last.reason:
                self.log.info(
                    "Slot %s is left: %s, %s (%d)", last.slot, last.outcome, last.reason, last.count
                )
            figures = _ring_figures(connection, namespace, "pruned" if done else last.outcome)
            figures["lock_ms"] = max((one.lock_ms for one in done), default=0)
            if done:
                figures |= {
                    "slot": done[-1].slot,
                    "generation": done[-1].generation,
                    "carried_failed": sum(one.carried_failed_rows for one in done),
                    "pruned_failed": sum(one.pruned_failed for one in done),
                    "pruned_completed": sum(one.pruned_completed for one in done),
                }
            return figures

        return work


class RollupCountsOperator(ParkkeeperOperator):
    """Fold the ledger of counts, so that counting stays cheap, and sweep unique keys of jobs that are gone.

    `outcome` is ``rolled_up``, ``noop``, ``skipped_active`` (a transaction that has been open for more than a minute
    keeps what would be deleted) or ``blocked``. `counters` is ``trusted``, or ``distrusted`` when they cannot be right
    or came from a dump: jobs are counted from their rows then, until the counters have been rebuilt.

    Parameters
    ----------
    lock_timeout
        How long to wait for a lock before the outcome is ``blocked``: a timedelta or seconds, 5 s at most.
    """

    template_fields: Sequence[str] = (*ParkkeeperOperator.template_fields, "lock_timeout")
    outcomes = ("rolled_up", "noop", "blocked", "skipped_active")
    requires = "queue"

    def __init__(
        self, *, lock_timeout: timedelta | float | str = timedelta(milliseconds=50), **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.lock_timeout = lock_timeout

    def prepare(self, namespace: Namespace) -> Work:
        """Validate the arguments and return the roll-up."""
        lock_timeout = arguments.duration("lock_timeout", self.lock_timeout)

        def work(connection: psycopg.Connection[Any]) -> Figures:
            done = QueueStorage(connection, namespace).roll_up(lock_timeout=lock_timeout)
            if not done.trusted:
                self.log.warning(
                    "The counters are not believed, and jobs are counted from their rows: "
                    "run `parkkeeper queue rebuild-counters --namespace %s`",
                    namespace,
                )
            return {
                "outcome": done.outcome,
                "reason": done.reason,
                "folded": done.folded,
                "released_keys": done.released_keys,
                "counters": "trusted" if done.trusted else "distrusted",
            }

        return work
