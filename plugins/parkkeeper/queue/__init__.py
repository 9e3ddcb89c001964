"""The job queue: lanes, claims, a ring of slots that is reclaimed by TRUNCATE. Imports no Airflow."""

from parkkeeper.errors import InvalidArgument, InvalidName, ParkkeeperError, TransactionOpen, UnknownNamespace
from parkkeeper.invariants import Broken
from parkkeeper.queue.claim import ClaimedJob
from parkkeeper.queue.errors import (
    ConservationBroken,
    IsolationRefused,
    PruneRefused,
    UniqueConflict,
    UnknownJob,
    UnknownQueue,
)
from parkkeeper.queue.outcomes import (
    EvacuateOutcome,
    GrowOutcome,
    PruneOutcome,
    PurgeOutcome,
    QueueCounts,
    RescueOutcome,
    RetryDeadLettersOutcome,
    RetryFailedOutcome,
    RollUpOutcome,
    RotateOutcome,
    WorkerOutcome,
)
from parkkeeper.queue.storage import QueueStorage
from parkkeeper.queue.worker import Worker

__all__ = [
    "Broken",
    "ClaimedJob",
    "ConservationBroken",
    "EvacuateOutcome",
    "GrowOutcome",
    "InvalidArgument",
    "InvalidName",
    "IsolationRefused",
    "ParkkeeperError",
    "PruneOutcome",
    "PruneRefused",
    "PurgeOutcome",
    "QueueCounts",
    "QueueStorage",
    "RescueOutcome",
    "RetryDeadLettersOutcome",
    "RetryFailedOutcome",
    "RollUpOutcome",
    "RotateOutcome",
    "TransactionOpen",
    "UniqueConflict",
    "UnknownJob",
    "UnknownNamespace",
    "UnknownQueue",
    "Worker",
    "WorkerOutcome",
]
