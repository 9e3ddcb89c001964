"""Airflow operators: each validates its arguments, calls the core, and returns figures that become XComs."""

from parkkeeper.operators.base import ParkkeeperOperator
from parkkeeper.operators.erasure import EraseOperator
from parkkeeper.operators.lag import LagCheckOperator
from parkkeeper.operators.memory import (
    FormationBatchOperator,
    FreshnessOperator,
    ParkSweepOperator,
    RebuildOperator,
)
from parkkeeper.operators.migrate import MigrateOperator
from parkkeeper.operators.queue import (
    PruneWithCarryOperator,
    PurgeDeadLettersOperator,
    RescueOperator,
    RollupCountsOperator,
    RotateRingOperator,
)
from parkkeeper.operators.redrive import RetryFailedOperator, UnparkOperator
from parkkeeper.operators.task import TaskKilled
from parkkeeper.operators.verify import VerifyOperator

__all__ = [
    "EraseOperator",
    "FormationBatchOperator",
    "FreshnessOperator",
    "LagCheckOperator",
    "MigrateOperator",
    "ParkSweepOperator",
    "ParkkeeperOperator",
    "PruneWithCarryOperator",
    "PurgeDeadLettersOperator",
    "RebuildOperator",
    "RescueOperator",
    "RetryFailedOperator",
    "RollupCountsOperator",
    "RotateRingOperator",
    "TaskKilled",
    "UnparkOperator",
    "VerifyOperator",
]
