"""What failed and can still be put back: failed jobs and parked turns, and how many of them an action would touch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from parkkeeper.memory import parking
from parkkeeper.memory.session import Session
from parkkeeper.queue.settings import namespace_settings
from parkkeeper.ui import models, words
from parkkeeper.ui.reading import Reader
from parkkeeper.ui.ring import require

#: How many rows are looked at, grouped and listed.
MOST_LOOKED_AT = 10_000
MOST_GROUPS = 200
MOST_LISTED = 100
#: What the page's unpark asks of the sweep: turns that were parked more often stay parked.
MOST_PARKS = 1000


@dataclass(frozen=True, slots=True)
class Failed:
    """One failed job as it is read: ten thousand of them are, and a hundred are shown."""

    job_id: int
    queue: str
    kind: str
    attempt: int
    finalized_at: datetime
    expires_at: datetime


def failed_jobs(reader: Reader, queue: str | None = None, kind: str | None = None) -> models.FailedJobs:
    """Read the failed jobs that are lost first.

    Raises
    ------
    UnknownNamespace
        The namespace has no queue.
    """
    total, looked_at = _failed(reader, queue)
    jobs = _of_kind(looked_at, kind)
    return models.FailedJobs(
        namespace=reader.space.name,
        taken_at=reader.now(),
        total=total,
        looked_at=len(looked_at),
        groups=_groups(jobs)[:MOST_GROUPS],
        jobs=[models.FailedJob.model_validate(job, from_attributes=True) for job in jobs[:MOST_LISTED]],
    )


def parked_turns(
    reader: Reader, scope: str | None = None, error_class: str | None = None
) -> models.ParkedTurns:
    """Read how many turns are parked, where and why, and the first of them.

    Raises
    ------
    UnknownNamespace
        The namespace has no memory.
    """
    wanted: dict[str, Any] = {"scope": scope, "error_class": error_class}
    require(reader, "memory")
    return models.ParkedTurns(
        namespace=reader.space.name,
        taken_at=reader.now(),
        total=reader.value("ui/triage", "parked_total", **wanted),
        groups=reader.rows("ui/triage", "parked_groups", models.ParkedGroup, limit=MOST_GROUPS, **wanted),
        turns=reader.rows(
            "ui/triage",
            "parked_turns",
            models.ParkedTurn,
            by_key=True,
            looked=MOST_LOOKED_AT,
            limit=MOST_LISTED,
            **wanted,
        ),
    )


def redrive(reader: Reader, queue: str | None, kind: str | None) -> models.Rehearsal:
    """Count the failed jobs that a redrive would put back.

    Raises
    ------
    UnknownNamespace
        The namespace has no queue.
    """
    total, looked_at = _failed(reader, queue)
    return models.Rehearsal(
        namespace=reader.space.name,
        action="redrive",
        taken_at=reader.now(),
        rows=total if kind is None else len(_of_kind(looked_at, kind)),
        at_least=kind is not None and total > len(looked_at),
        sentence="Failed jobs that are put back as if they were new, with all their attempts.",
    )


def unpark(reader: Reader, scope: str | None, error_class: str | None) -> models.Rehearsal:
    """Count the parked turns that the sweep would put back into the backlog.

    Raises
    ------
    UnknownNamespace
        The namespace has no memory.
    """
    require(reader, "memory")
    which = parking.Which(
        scope=scope,
        classes=None if error_class is None else [error_class],
        limit=parking.DEFAULT_POLICY.unpark_limit,
        max_park_count=MOST_PARKS,
        answering=True,
    )
    rows = parking.unpark(Session(reader.connection, reader.space), which, dry_run=True).total()
    parked = reader.value("ui/triage", "parked_total", scope=scope, error_class=error_class)
    sentence = "Parked turns that go back into the backlog, as if they had never been tried."
    if parked > rows:
        sentence += (
            f" {words.counted(parked - rows, 'turn')} more of the same stay parked: their provider does not answer, "
            f"or a run has enough with {which.limit:,}."
        )
    return models.Rehearsal(
        namespace=reader.space.name,
        action="unpark",
        taken_at=reader.now(),
        rows=rows,
        at_least=False,
        sentence=sentence,
    )


def rebuild(reader: Reader, scope: str) -> models.Rehearsal:
    """Count the turns that a rebuild of a scope goes through.

    Raises
    ------
    UnknownNamespace
        The namespace has no memory.
    """
    require(reader, "memory")
    return models.Rehearsal(
        namespace=reader.space.name,
        action="rebuild",
        taken_at=reader.now(),
        rows=reader.value("ui/triage", "rebuildable", scope=scope) or 0,
        at_least=False,
        sentence="Turns that are formed again; what they have in memory stays until it is replaced.",
    )


def _failed(reader: Reader, queue: str | None) -> tuple[int, list[Failed]]:
    """Return how many failed jobs there are, and those that are lost first."""
    require(reader, "queue")
    total = reader.value("ui/triage", "failed_total", queue=queue)
    looked_at = reader.rows(
        "ui/triage",
        "failed_jobs",
        Failed,
        by_key=True,
        queue=queue,
        retention=namespace_settings(reader.connection, reader.space).failed_retention_seconds,
        limit=MOST_LOOKED_AT,
    )
    # A job may have ended between the two.
    return max(total, len(looked_at)), looked_at


def _of_kind(jobs: list[Failed], kind: str | None) -> list[Failed]:
    return [job for job in jobs if kind is None or job.kind == kind]


def _groups(jobs: Iterable[Failed]) -> list[models.FailedGroup]:
    """Group jobs by queue and kind, the group that is lost first in front."""

    def place(job: Failed) -> tuple[str, str]:
        return job.queue, job.kind

    found = []
    for (queue, kind), members in groupby(sorted(jobs, key=place), place):
        group = list(members)
        found.append(
            models.FailedGroup(
                queue=queue,
                kind=kind,
                jobs=len(group),
                least_attempts=min(job.attempt for job in group),
                most_attempts=max(job.attempt for job in group),
                oldest_failed_at=min(job.finalized_at for job in group),
                first_expires_at=min(job.expires_at for job in group),
            )
        )
    return sorted(found, key=lambda group: group.first_expires_at)
