"""What only the queue raises; the base and the refusals of arguments are in :mod:`parkkeeper.errors`."""

from __future__ import annotations

from parkkeeper.errors import ParkkeeperError
from parkkeeper.namespace import Namespace


class UniqueConflict(ParkkeeperError):
    """Another job holds the unique key; nothing was enqueued.

    Attributes
    ----------
    holder_job_id
        The id of the job that holds the key. The key itself is never in the message: it may be personal.
    """

    def __init__(self, message: str, holder_job_id: int) -> None:
        super().__init__(message)
        self.holder_job_id = holder_job_id


class IsolationRefused(ParkkeeperError):
    """A claim was tried in a transaction that keeps one snapshot; it needs READ COMMITTED."""


class UnknownQueue(ParkkeeperError):
    """No job was ever enqueued to this queue and it has no settings."""

    def __init__(self, queue: str, namespace: Namespace) -> None:
        super().__init__(
            f"queue {queue!r} is unknown in namespace {namespace}: enqueue a job or make its settings first"
        )


class UnknownJob(ParkkeeperError):
    """There is no job of this id, or no trace of it any more."""

    def __init__(self, job_id: int, namespace: Namespace) -> None:
        super().__init__(
            f"job {job_id} is unknown in namespace {namespace}: it was never enqueued, or has been pruned since"
        )


class PruneRefused(ParkkeeperError):
    """A prune would drop more failed rows than `max_pruned_failed` allows; nothing was changed.

    Attributes
    ----------
    pruned_failed
        How many failed rows it would have dropped.
    """

    def __init__(self, message: str, pruned_failed: int) -> None:
        super().__init__(message)
        self.pruned_failed = pruned_failed


class ConservationBroken(ParkkeeperError):
    """Not every row that was to be moved is accounted for; the transaction was rolled back whole."""
