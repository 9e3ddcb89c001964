"""The memory namespace: a log of turns per scope, formed into memory, where a turn that will not form is parked.

Imports no Airflow. ``docs/explanation/memory.md`` and ADR 0002 say what is promised.
"""

from parkkeeper.invariants import Broken
from parkkeeper.memory.dropping import drop_namespace
from parkkeeper.memory.errors import (
    BacklogFull,
    FormationPaused,
    IdempotencyConflict,
    InvalidTurn,
    NamespaceInUse,
    RebuildActive,
    RebuildCancelled,
    TurnErased,
    UnknownRequest,
)
from parkkeeper.memory.outcomes import (
    Appended,
    Circuit,
    ErasureReceipt,
    ErasureRequest,
    FormationOutcome,
    Freshness,
    MemorySettings,
    Miscount,
    NamespaceReceipt,
    ParkedTurn,
    Rebuild,
    RebuildOutcome,
    Recall,
    RecalledMemory,
    ScopeRange,
    ScopeSettings,
    SweepOutcome,
)
from parkkeeper.memory.parking import SweepPolicy
from parkkeeper.memory.store import MemoryStore

__all__ = [
    "Appended",
    "BacklogFull",
    "Broken",
    "Circuit",
    "ErasureReceipt",
    "ErasureRequest",
    "FormationOutcome",
    "FormationPaused",
    "Freshness",
    "IdempotencyConflict",
    "InvalidTurn",
    "MemorySettings",
    "MemoryStore",
    "Miscount",
    "NamespaceInUse",
    "NamespaceReceipt",
    "ParkedTurn",
    "Rebuild",
    "RebuildActive",
    "RebuildCancelled",
    "RebuildOutcome",
    "Recall",
    "RecalledMemory",
    "ScopeRange",
    "ScopeSettings",
    "SweepOutcome",
    "SweepPolicy",
    "TurnErased",
    "UnknownRequest",
    "drop_namespace",
]
