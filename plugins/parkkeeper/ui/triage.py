"""What failed and can still be put back: failed jobs and parked turns, and how many of them an action would touch."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from parkkeeper.namespace import Namespace
from parkkeeper.queue.settings import namespace_settings
from parkkeeper.ui import models, reading
from parkkeeper.ui.reading import Reader
from parkkeeper.ui.ring import require

#: How many rows are looked at, grouped and listed.
MOST_LOOKED_AT = 10_000
MOST_GROUPS = 200
MOST_LISTED = 100


def failed_jobs(namespace: str, queue: str | None = None, kind: str | None = None) -> models.FailedJobs:
    """Read the failed jobs that are lost first.

    Raises
    ------
    Unreadable
        The database cannot be read, or the namespace has no queue.
    """
    with reading.session(namespace) as (connection, _):
        reader = Reader(connection, Namespace(namespace))
        require(reader, "queue")
        total = reader.value("ui/triage", "failed_total", queue=queue)
        looked_at = _failed(reader, queue)
        now = reader.now()
    jobs = [job for job in looked_at if kind is None or job.kind == kind]
    return models.FailedJobs(
        namespace=namespace,
        taken_at=now,
        # A job may have ended between the two.
        total=max(total, len(looked_at)),
        looked_at=len(looked_at),
        groups=_groups(jobs)[:MOST_GROUPS],
        jobs=jobs[:MOST_LISTED],
    )


def parked_turns(
    namespace: str, scope: str | None = None, error_class: str | None = None
) -> models.ParkedTurns:
    """Read how many turns are parked, where and why, and the first of them.

    Raises
    ------
    Unreadable
        The database cannot be read, or the namespace has no memory.
    """
    wanted: dict[str, Any] = {"scope": scope, "error_class": error_class}
    with reading.session(namespace) as (connection, _):
        reader = Reader(connection, Namespace(namespace))
        require(reader, "memory")
        return models.ParkedTurns(
            namespace=namespace,
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


def redrive(namespace: str, queue: str | None, kind: str | None) -> models.Rehearsal:
    """Count the failed jobs that a redrive would put back.

    Raises
    ------
    Unreadable
        The database cannot be read, or the namespace has no queue.
    """
    found = failed_jobs(namespace, queue, kind)
    more = found.total > found.looked_at
    rows = found.total if kind is None else sum(group.jobs for group in found.groups)
    return models.Rehearsal(
        namespace=namespace,
        action="redrive",
        rows=rows,
        at_least=kind is not None and more,
        sentence="Failed jobs that are put back as if they were new, with all their attempts.",
    )


def unpark(namespace: str, scope: str | None, error_class: str | None) -> models.Rehearsal:
    """Count the parked turns that would go back into the backlog.

    Raises
    ------
    Unreadable
        The database cannot be read, or the namespace has no memory.
    """
    with reading.session(namespace) as (connection, _):
        reader = Reader(connection, Namespace(namespace))
        require(reader, "memory")
        rows = reader.value("ui/triage", "parked_total", scope=scope, error_class=error_class)
    return models.Rehearsal(
        namespace=namespace,
        action="unpark",
        rows=rows,
        at_least=False,
        sentence="Parked turns that go back into the backlog, as if they had never been tried.",
    )


def rebuild(namespace: str, scope: str) -> models.Rehearsal:
    """Count the turns that a rebuild of a scope goes through.

    Raises
    ------
    Unreadable
        The database cannot be read, or the namespace has no memory.
    """
    with reading.session(namespace) as (connection, _):
        reader = Reader(connection, Namespace(namespace))
        require(reader, "memory")
        rows = reader.value("ui/triage", "rebuildable", scope=scope) or 0
    return models.Rehearsal(
        namespace=namespace,
        action="rebuild",
        rows=rows,
        at_least=False,
        sentence="Turns that are formed again; what they have in memory stays until it is replaced.",
    )


def _failed(reader: Reader, queue: str | None) -> list[models.FailedJob]:
    retention = namespace_settings(reader.connection, reader.space).failed_retention_seconds
    return reader.rows(
        "ui/triage",
        "failed_jobs",
        models.FailedJob,
        by_key=True,
        queue=queue,
        retention=retention,
        limit=MOST_LOOKED_AT,
    )


def _groups(jobs: Iterable[models.FailedJob]) -> list[models.FailedGroup]:
    """Group jobs by queue and kind, the group that is lost first in front."""

    def place(job: models.FailedJob) -> tuple[str, str]:
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
