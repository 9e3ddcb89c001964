"""The queue's front door: one class, a method an action, each done in a module of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import psycopg

from parkkeeper.invariants import Broken
from parkkeeper.namespace import Namespace
from parkkeeper.queue import (
    claim,
    close,
    counts,
    enqueue,
    evacuate,
    expiring,
    grow,
    leases,
    plan,
    prune,
    roll_up,
    settings,
    status,
    verify,
)
from parkkeeper.queue import ring as rings
from parkkeeper.queue.arguments import UNIQUE_STATES
from parkkeeper.queue.claim import ClaimedJob
from parkkeeper.queue.outcomes import (
    EvacuateOutcome,
    GrowOutcome,
    PruneOutcome,
    QueueCounts,
    RescueOutcome,
    RollUpOutcome,
    RotateOutcome,
)
from parkkeeper.queue.redrive import Redrive
from parkkeeper.queue.settings import NamespaceSettings, QueueSettings
from parkkeeper.queue.status import HeldRingStatus, JobStatus, ListedJob, RingStatus

#: How long a claimed job is its worker's unless the claim says otherwise.
LEASE = timedelta(minutes=5)


class QueueStorage(Redrive):
    """The queue of one namespace, on one connection.

    Each method is one transaction of its own. Those that application code calls beside its own work,
    :meth:`enqueue` and :meth:`enqueue_many`, join a transaction that the caller has open, and commit and roll back with
    it. ``docs/explanation/queue.md`` tells the life of a job.

    Every method raises :class:`~parkkeeper.errors.UnknownNamespace` when the namespace has no queue, and
    :class:`~parkkeeper.errors.InvalidArgument` (for a name ``InvalidName``) when an argument is outside its rule,
    before anything is sent to the database. :meth:`claim`, and what ends or extends claims, raise
    :class:`~parkkeeper.queue.errors.IsolationRefused` when the caller's transaction is REPEATABLE READ or SERIALIZABLE.

    Parameters
    ----------
    connection
        A psycopg 3 connection, in autocommit mode but for :meth:`enqueue` and :meth:`enqueue_many`.
    namespace
        The schema that holds the queue family's tables.

    Raises
    ------
    InvalidNamespace
        `namespace` is no name for a namespace. Nothing is sent to the database here.
    """

    def __init__(self, connection: psycopg.Connection[Any], namespace: str | Namespace) -> None:
        self.connection = connection
        self.namespace = Namespace.of(namespace)

    def enqueue(
        self,
        queue: str,
        kind: str,
        args: Mapping[str, Any] | None = None,
        *,
        priority: int = 2,
        run_at: datetime | None = None,
        max_attempts: int = 25,
        unique_key: str | bytes | None = None,
        unique_states: Collection[str] = UNIQUE_STATES,
    ) -> int:
        """Add one job, in one round trip; a queue is made by its first job.

        Parameters
        ----------
        queue, kind
            1 to 200 characters, no control characters, no blank ends. `kind` chooses the worker's handler.
        args
            What the handler needs, a JSON object; None: an empty one.
        priority
            A whole number from -32768 to 32767; lower ones are claimed first. Each priority in use is a lane of its own
            that a claim looks at, so a handful does better than a thousand.
        run_at
            When the job may be claimed, with a time zone; None or the past: at once, by the database's clock.
        max_attempts
            How often the job may be claimed before a failure is its last one, 1 to 32767.
        unique_key
            At most one job of the namespace holds a key. A str and its UTF-8 bytes, 1 to 1,000, are one key.
        unique_states
            The states in which the job holds its key, ``scheduled`` and ``available`` among them. It lets go of it for
            good when it first enters another one.

        Returns
        -------
        int
            The job's id, above 0.

        Raises
        ------
        UniqueConflict
            Another job holds the key; it is named, and nothing was enqueued. The caller's transaction stays usable. A
            producer whose key is taken by a transaction that is still open waits for that one.
        InvalidName, InvalidArgument
            Before anything is sent to the database.
        """
        return enqueue.enqueue(
            self.connection,
            self.namespace,
            queue,
            kind,
            args,
            priority=priority,
            run_at=run_at,
            max_attempts=max_attempts,
            unique_key=unique_key,
            unique_states=unique_states,
        )

    def enqueue_many(
        self,
        queue: str,
        kind: str,
        args_list: Iterable[Mapping[str, Any] | None],
        *,
        priority: int = 2,
        run_at: datetime | None = None,
        max_attempts: int = 25,
    ) -> list[int]:
        """Add a job for each element of `args_list`, all or none: a round trip for each 10,000.

        The parameters are those of :meth:`enqueue`.

        Returns
        -------
        list of int
            The jobs' ids, ascending, in the order of `args_list`.

        Raises
        ------
        InvalidName, InvalidArgument
            Before anything is sent to the database; the message names the element.
        """
        return enqueue.enqueue_many(
            self.connection,
            self.namespace,
            queue,
            kind,
            args_list,
            priority=priority,
            run_at=run_at,
            max_attempts=max_attempts,
        )

    def claim(self, queue: str, limit: int = 1, *, lease: timedelta = LEASE) -> list[ClaimedJob]:
        """Take up to `limit` jobs that are available now: by priority, then by age.

        A job whose transaction committed late is found whatever was claimed in between
        (``docs/adr/0003-claim-by-cursor-and-late-list.md``). What the claim's own transaction has enqueued can be
        claimed once that has committed. A claim that is rolled back leaves its jobs as they were.

        Parameters
        ----------
        limit
            1 to 100,000.
        lease
            How long the jobs are this worker's; above zero.

        Returns
        -------
        list of ClaimedJob
            Empty when nothing is available, the queue is paused, or no job was ever enqueued to it.
        """
        return claim.claim(self.connection, self.namespace, queue, limit, lease=lease)

    def complete(self, claims: Iterable[ClaimedJob]) -> int:
        """Finish jobs as completed, in one round trip.

        Returns
        -------
        int
            How many were finalised. A claim that is stale is not: its job was finished before, cancelled, or taken for
            abandoned. A lease that ran out without that is no hindrance.
        """
        return close.complete(self.connection, self.namespace, claims)

    def fail(self, claim: ClaimedJob, error: str, *, terminal: bool = False) -> str | None:
        """Record that an attempt failed.

        Parameters
        ----------
        error
            Why. It is stored with the job and shown nowhere else: control characters and what looks like a secret are
            taken out, and it is cut to 2,000 characters.
        terminal
            Whether no further attempt is to be made, though some may be left.

        Returns
        -------
        str or None
            ``"retryable"``: the job can be claimed again after 1 s, doubled with each attempt up to 1 h, +-10 %.
            ``"failed"``: it was the last attempt. ``"dead_lettered"``: it was, and the queue keeps dead letters. None:
            the claim is stale and nothing was recorded.
        """
        return self.fail_many([(claim, error)], terminal=terminal)[0]

    def fail_many(
        self, failures: Iterable[tuple[ClaimedJob, str]], *, terminal: bool = False
    ) -> list[str | None]:
        """Do for many claims, each with its error, what :meth:`fail` does for one, in one round trip.

        Returns
        -------
        list of str or None
            In the order of `failures`. When a claim is given twice, the first one counts and the others are None.
        """
        return close.fail_many(self.connection, self.namespace, failures, terminal=terminal)

    def snooze(self, claims: Iterable[ClaimedJob], until: datetime) -> int:
        """Hand jobs back until a time, in one round trip; that spends no attempt.

        Parameters
        ----------
        until
            When the jobs may be claimed again, with a time zone; the past: at once, by the database's clock.

        Returns
        -------
        int
            How many were put off. A claim that is stale is not, as with :meth:`complete`.
        """
        return close.snooze(self.connection, self.namespace, claims, until)

    def cancel(self, job_id: int) -> bool:
        """Cancel a job that is scheduled, available, running or retryable.

        Returns
        -------
        bool
            True when the job is cancelled now because of this call; the worker that may run it finds its claim stale.
            False when there is no such job or it has ended.
        """
        return close.cancel(self.connection, self.namespace, job_id)

    def extend(self, claims: Iterable[ClaimedJob], lease: timedelta) -> int:
        """Keep claims for longer, in one round trip: the heartbeat of a worker whose jobs take their time.

        Parameters
        ----------
        lease
            How long the jobs are to be this worker's from now on, above zero. A lease is never shortened. `lease_until`
            of the claims given stays as it is.

        Returns
        -------
        int
            How many of the claims are still this worker's; one that is given twice counts once. A lease that had run
            out is taken up again if nobody has rescued the job.
        """
        return leases.extend(self.connection, self.namespace, claims, lease)

    def rescue(self) -> RescueOutcome:
        """Take back jobs whose lease has run out; see :func:`parkkeeper.queue.leases.rescue`."""
        return leases.rescue(self.connection, self.namespace)

    def rotate(self, *, ring: str = "queue", lock_timeout: timedelta = rings.LOCK_TIMEOUT) -> RotateOutcome:
        """Open the next empty slot of a ring and seal the current one; see :func:`parkkeeper.queue.ring.rotate`.

        When two or fewer slots of the queue ring are empty, it first does a step of :meth:`evacuate`.
        """
        if ring == "queue":
            evacuate.make_room(self.connection, self.namespace, lock_timeout=lock_timeout)
        return rings.rotate(self.connection, self.namespace, ring=ring, lock_timeout=lock_timeout)

    def evacuate(self, limit: int = evacuate.LIMIT) -> EvacuateOutcome:
        """Move jobs that keep sealed slots from being pruned; see :func:`parkkeeper.queue.evacuate.evacuate`."""
        return evacuate.evacuate(self.connection, self.namespace, limit)

    def prune_oldest(
        self,
        failed_retention: timedelta | int | None = None,
        *,
        ring: str = "queue",
        carry_to: str | None = None,
        dry_run: bool = False,
        max_pruned_failed: int | None = None,
        lock_timeout: timedelta = rings.LOCK_TIMEOUT,
        wait_for_snapshots: bool = False,
    ) -> PruneOutcome:
        """Reclaim the oldest slot of a ring that can be, and carry what is to stay retryable.

        See :func:`parkkeeper.queue.prune.prune_oldest`.
        """
        return prune.prune_oldest(
            self.connection,
            self.namespace,
            failed_retention,
            ring=ring,
            carry_to=carry_to,
            dry_run=dry_run,
            max_pruned_failed=max_pruned_failed,
            lock_timeout=lock_timeout,
            wait_for_snapshots=wait_for_snapshots,
        )

    def plan_prune(
        self,
        failed_retention: timedelta | int | None = None,
        *,
        max_pruned_failed: int | None = None,
        lock_timeout: timedelta = rings.LOCK_TIMEOUT,
        wait_for_snapshots: bool = False,
    ) -> plan.PrunePlan:
        """Foretell a prune, by queue and kind; see :func:`parkkeeper.queue.plan.plan_prune`."""
        return plan.plan_prune(
            self.connection,
            self.namespace,
            failed_retention,
            max_pruned_failed=max_pruned_failed,
            lock_timeout=lock_timeout,
            wait_for_snapshots=wait_for_snapshots,
        )

    def grow(self, queue_slots: int, *, lock_timeout: timedelta = rings.LOCK_TIMEOUT) -> GrowOutcome:
        """Add slots to the queue's ring until it has so many; see :func:`parkkeeper.queue.grow.grow`."""
        return grow.grow(self.connection, self.namespace, queue_slots, lock_timeout=lock_timeout)

    def roll_up(
        self, *, limit: int | None = None, lock_timeout: timedelta = rings.LOCK_TIMEOUT
    ) -> RollUpOutcome:
        """Fold the ledger of counts, so that counting stays cheap; see :func:`parkkeeper.queue.roll_up.roll_up`."""
        return roll_up.roll_up(self.connection, self.namespace, limit=limit, lock_timeout=lock_timeout)

    def expiring(self, within: timedelta, *, queue: str | None = None) -> list[expiring.Expiring]:
        """List failed jobs that will pass the floor; see :func:`parkkeeper.queue.expiring.expiring`."""
        return expiring.expiring(self.connection, self.namespace, within, queue=queue)

    def queue_counts(self, queue: str) -> QueueCounts:
        """Count the jobs of a queue, exactly; see :func:`parkkeeper.queue.counts.queue_counts`."""
        return counts.queue_counts(self.connection, self.namespace, queue)

    def rebuild_terminal_counters(self) -> None:
        """Count all states anew; see :func:`parkkeeper.queue.counts.rebuild_terminal_counters`."""
        counts.rebuild_terminal_counters(self.connection, self.namespace)

    def broken_invariants(self) -> list[Broken]:
        """Ask the rows what is promised of them; see :func:`parkkeeper.queue.verify.broken_invariants`."""
        return verify.broken_invariants(self.connection, self.namespace)

    def set_queue(
        self,
        queue: str,
        *,
        failed_retention: timedelta | int | Literal["default"] | None = None,
        dead_letter: bool | None = None,
        dead_letter_retention: timedelta | int | Literal["default"] | None = None,
        enqueue_shards: int | None = None,
    ) -> QueueSettings:
        """Decide for a queue what differs from its namespace; see :func:`parkkeeper.queue.settings.set_queue`."""
        return settings.set_queue(
            self.connection,
            self.namespace,
            queue,
            failed_retention=failed_retention,
            dead_letter=dead_letter,
            dead_letter_retention=dead_letter_retention,
            enqueue_shards=enqueue_shards,
        )

    def set_namespace(
        self, *, failed_retention: timedelta | int | None = None, carry_to: str | None = None
    ) -> NamespaceSettings:
        """Decide for all queues without a setting; see :func:`parkkeeper.queue.settings.set_namespace`."""
        return settings.set_namespace(
            self.connection, self.namespace, failed_retention=failed_retention, carry_to=carry_to
        )

    def ring_status(self) -> RingStatus:
        """Look at the ring and at what pins it; see :func:`parkkeeper.queue.status.ring_status`."""
        return status.ring_status(self.connection, self.namespace)

    def longest_waiting(self) -> ListedJob | None:
        """Return the job that waits for longest; see :func:`parkkeeper.queue.status.longest_waiting`."""
        return status.longest_waiting(self.connection, self.namespace)

    def held_ring_status(self, ring: str) -> HeldRingStatus:
        """Look at the claim or the lease ring; see :func:`parkkeeper.queue.status.held_ring_status`."""
        return status.held_ring_status(self.connection, self.namespace, ring)

    def job(self, job_id: int) -> JobStatus:
        """Look where a job stands; see :func:`parkkeeper.queue.status.job`."""
        return status.job(self.connection, self.namespace, job_id)

    def pause(self, queue: str) -> QueueSettings:
        """Let no job of a queue be claimed; see :func:`parkkeeper.queue.settings.pause`."""
        return settings.pause(self.connection, self.namespace, queue)

    def resume(self, queue: str) -> QueueSettings:
        """Let jobs of a queue be claimed again; see :func:`parkkeeper.queue.settings.resume`."""
        return settings.resume(self.connection, self.namespace, queue)
