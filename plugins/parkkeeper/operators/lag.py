"""Look how far behind a namespace is, and fail when a limit is passed: the alarm beside the work."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import psycopg
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from parkkeeper import maintenance, migrations
from parkkeeper.database import statements
from parkkeeper.namespace import Namespace
from parkkeeper.operators import arguments
from parkkeeper.operators.base import Figures, ParkkeeperOperator, Work
from parkkeeper.operators.totals import totals
from parkkeeper.queue import QueueStorage

_SQL = statements("lag")

#: The figure that each limit is about, and the family that has it.
LIMITS = {
    "max_ready_age": ("oldest_ready_seconds", "queue"),
    "max_unpruned_age": ("oldest_unpruned_seconds", "queue"),
    "max_pinned_age": ("oldest_pinned_seconds", "queue"),
    "max_blocked": ("blocked_in_a_row", "queue"),
    "max_expiring": ("expiring", "queue"),
    "max_pending_age": ("oldest_pending_seconds", "memory"),
    "max_parked_share": ("parked_share", "memory"),
}


def queue_lag(
    connection: psycopg.Connection[Any], namespace: Namespace, expiring_within: timedelta
) -> Figures:
    """Return how far behind the queue is."""
    storage = QueueStorage(connection, namespace)
    waiting, ring = storage.longest_waiting(), storage.ring_status()
    expiring = storage.expiring(expiring_within)
    blocked = totals(connection, namespace, "blocked", _SQL)["blocked"]
    now = maintenance.database_time(connection)
    sealed = sorted(
        (slot for slot in ring.slots if slot.state == "sealed" and slot.sealed_at is not None),
        key=lambda slot: slot.sealed_at or now,
    )
    unpruned = [slot for slot in sealed if not (slot.waiting or slot.running)]
    pinned = [slot for slot in sealed if slot.waiting or slot.running]
    pin = pinned[0].pinned_by if pinned else None
    return {
        "oldest_ready_seconds": 0 if waiting is None else _seconds(now, waiting.run_at),
        "oldest_ready_queue": None if waiting is None else waiting.queue,
        "oldest_unpruned_seconds": _seconds(now, unpruned[0].sealed_at) if unpruned else 0,
        "oldest_pinned_seconds": _seconds(now, pinned[0].sealed_at) if pinned else 0,
        "pinned_slots": len(pinned),
        "pinned_by": f"{pin.state} job {pin.job_id} of queue {pin.queue}" if pin else None,
        "blocked_in_a_row": blocked,
        "expiring": sum(one.jobs for one in expiring),
    }


def memory_lag(connection: psycopg.Connection[Any], namespace: Namespace) -> Figures:
    """Return how far behind the memory is."""
    now = totals(connection, namespace, "memory_totals")
    seconds = totals(connection, namespace, "oldest_pending", _SQL)["seconds"]
    return {
        "oldest_pending_seconds": round(seconds or 0),
        "parked_share": round(now["parked"] / max(1, now["stored"] - now["erased"]), 6),
        "parked_total": now["parked"],
        "backlog": now["backlog"],
    }


def _seconds(now: datetime, since: datetime | None) -> int:
    return max(0, round((now - (since or now)).total_seconds()))


#: What there is of a family that the namespace does not have.
NOTHING = {
    "queue": dict.fromkeys(
        (
            *(
                "oldest_ready_seconds",
                "oldest_ready_queue",
                "oldest_unpruned_seconds",
                "oldest_pinned_seconds",
            ),
            *("pinned_slots", "pinned_by", "blocked_in_a_row", "expiring"),
        )
    ),
    "memory": dict.fromkeys(("oldest_pending_seconds", "parked_share", "parked_total", "backlog")),
}


class LagCheckOperator(ParkkeeperOperator):
    """Fail when a limit is passed, after all figures are pushed; it changes nothing, and no retry cures it.

    The exception names each limit that was passed, with its figure. A limit that is None is not looked at; its figure
    is pushed all the same. `outcome` is ``within_limits`` or ``exceeded``. Figures of a family that the namespace does
    not have are null, and limits about them are refused.

    Parameters
    ----------
    max_ready_age
        How long the job that has waited longest may have been claimable: a timedelta or seconds.
    max_unpruned_age
        How long ago the oldest slot that could be pruned may have been sealed: a timedelta or seconds.
    max_pinned_age
        How long ago the oldest slot that a job pins may have been sealed: a timedelta or seconds.
    max_blocked
        How many prunes in a row may have been blocked, by the record that each leaves.
    max_expiring
        How many failed jobs may be about to pass their retention.
    expiring_within
        Within what time: a timedelta or seconds, 35 days at most.
    max_pending_age
        How long ago the oldest turn that is still to be formed may have been stored: a timedelta or seconds.
    max_parked_share
        Which share of the turns that there are may be parked, from 0 to 1.
    """

    template_fields: Sequence[str] = (*ParkkeeperOperator.template_fields, *LIMITS, "expiring_within")
    outcomes = ("within_limits", "exceeded")

    def __init__(
        self,
        *,
        max_ready_age: timedelta | float | str | None = None,
        max_unpruned_age: timedelta | float | str | None = None,
        max_pinned_age: timedelta | float | str | None = None,
        max_blocked: int | str | None = None,
        max_expiring: int | str | None = None,
        expiring_within: timedelta | float | str = timedelta(hours=24),
        max_pending_age: timedelta | float | str | None = None,
        max_parked_share: float | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_ready_age, self.max_unpruned_age = max_ready_age, max_unpruned_age
        self.max_pinned_age, self.max_blocked = max_pinned_age, max_blocked
        self.max_expiring, self.expiring_within = max_expiring, expiring_within
        self.max_pending_age, self.max_parked_share = max_pending_age, max_parked_share

    def limits(self) -> dict[str, int | float]:
        """Return the limits that were given, in the unit of their figure."""
        found: dict[str, int | float | None] = {}
        for name in LIMITS:
            value = getattr(self, name)
            if name.endswith("_age"):
                age = arguments.optional_duration(name, value)
                found[name] = None if age is None else age.total_seconds()
            elif name == "max_parked_share":
                found[name] = arguments.optional_share(name, value)
            else:
                found[name] = arguments.optional_whole(name, value, 0)
        return {name: limit for name, limit in found.items() if limit is not None}

    def prepare(self, namespace: Namespace) -> Work:
        """Validate the arguments and return the check."""
        limits = self.limits()
        within = arguments.duration("expiring_within", self.expiring_within)

        def work(connection: psycopg.Connection[Any]) -> Figures:
            families = [
                family
                for family in migrations.FAMILIES
                if migrations.status(connection, namespace, family).applied
            ]
            needed = {LIMITS[name][1] for name in limits} if families else set(migrations.FAMILIES)
            for family in migrations.FAMILIES:
                if family in families or family in needed:
                    migrations.require(connection, namespace, family)
            figures: Figures = {"outcome": "within_limits"}
            figures |= queue_lag(connection, namespace, within) if "queue" in families else NOTHING["queue"]
            figures |= memory_lag(connection, namespace) if "memory" in families else NOTHING["memory"]
            if self._exceeded(figures):
                figures["outcome"] = "exceeded"
            return figures

        return work

    def failure(self, figures: Figures) -> AirflowException | None:
        """Name each limit that was passed."""
        if exceeded := self._exceeded(figures):
            return AirflowFailException(f"namespace {self.namespace}: {'; '.join(exceeded)}")
        return None

    def _exceeded(self, figures: Figures) -> list[str]:
        hints = {"max_ready_age": "oldest_ready_queue", "max_pinned_age": "pinned_by"}
        said = []
        for name, limit in self.limits().items():
            figure = figures[LIMITS[name][0]]
            if isinstance(figure, int | float) and figure > limit:
                hint = f" ({figures[hints[name]]})" if name in hints else ""
                said.append(f"{LIMITS[name][0]} {figure:g}{hint} is above {name} {limit:g}")
        return said
