"""Bring a namespace's tables to what this package knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from parkkeeper import migrations
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace
from parkkeeper.operators import arguments
from parkkeeper.operators.base import Figures, ParkkeeperOperator, Work


class MigrateOperator(ParkkeeperOperator):
    """Apply the migrations of one family that a namespace lacks, each in a transaction of its own.

    The schema is made if it is missing. Two runs at once are safe.

    Figures: `outcome` (``migrated``, or ``noop`` when nothing was lacking), `family`, `applied` (how many),
    `version` (the newest there is now).

    Parameters
    ----------
    family
        ``queue`` or ``memory``.
    queue_slots
        How many slots the queue's ring is made with, 4 to 256; means nothing once it is made.
    """

    template_fields: Sequence[str] = (*ParkkeeperOperator.template_fields, "family", "queue_slots")
    outcomes = ("migrated", "noop")

    def __init__(self, *, family: str, queue_slots: int | str = 16, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.family = family
        self.queue_slots = queue_slots

    def prepare(self, namespace: Namespace) -> Work:
        """Validate the arguments and return the migration."""
        slots = migrations.QUEUE_SLOTS
        queue_slots = arguments.whole("queue_slots", self.queue_slots, slots.start, slots.stop - 1)
        if self.family not in migrations.FAMILIES:
            raise InvalidArgument(
                f"family {self.family!r} is refused: one of {', '.join(migrations.FAMILIES)}"
            )

        def work(connection: psycopg.Connection[Any]) -> Figures:
            applied = migrations.migrate(connection, namespace, self.family, queue_slots=queue_slots)
            newest = migrations.status(connection, namespace, self.family).applied[-1]
            return {
                "outcome": "migrated" if applied else "noop",
                "family": self.family,
                "applied": len(applied),
                "version": newest.version,
            }

        return work
