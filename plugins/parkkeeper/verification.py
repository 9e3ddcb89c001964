"""Asking all that a namespace holds whether what is promised of it is true, whatever families it has."""

from __future__ import annotations

from typing import Any

import psycopg

from parkkeeper import migrations
from parkkeeper.errors import UnknownNamespace
from parkkeeper.invariants import Broken
from parkkeeper.memory import MemoryStore
from parkkeeper.namespace import Namespace
from parkkeeper.queue import QueueStorage

_STORES: dict[str, type[QueueStorage] | type[MemoryStore]] = {"queue": QueueStorage, "memory": MemoryStore}


def broken_invariants(connection: psycopg.Connection[Any], namespace: str | Namespace) -> list[Broken]:
    """Return which invariants of the families that `namespace` has do not hold, each family in a snapshot of its own.

    Raises
    ------
    UnknownNamespace
        It has no migrations at all.
    MigrationError
        A family is not exactly as this package knows it, so that its questions may not fit.
    """
    space = Namespace.of(namespace)
    families = [
        family for family in migrations.FAMILIES if migrations.status(connection, space, family).applied
    ]
    if not families:
        raise UnknownNamespace(
            f"namespace {space} has no tables: run `parkkeeper migrate --family queue --namespace {space}`"
        )
    found: list[Broken] = []
    for family in families:
        migrations.require(connection, space, family)
        found += _STORES[family](connection, space).broken_invariants()
    return found
