"""The figures as JSON, for scripts and exporters; each answer is described in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from parkkeeper.ui import history, models, overview, reading, ring, triage

PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {"model": models.Problem, "description": "Nobody is logged in."},
    403: {"model": models.Problem, "description": "The user may not see Airflow's UI."},
    404: {"model": models.Problem, "description": "There is no such namespace, or it lacks the family."},
    409: {"model": models.Problem, "description": "The namespace is of another release than this package."},
    503: {"model": models.Problem, "description": "The database was not reached, or not in time."},
}

router = APIRouter(prefix="/api", tags=["Figures"], responses=PROBLEMS)


def _name(description: str) -> Any:
    """A filter: all when it is left out. Postgres cannot store a NUL."""
    return Query(min_length=1, max_length=1000, pattern=r"^[^\x00]*$", description=description)


QueueName = Annotated[str | None, _name("Only jobs of this queue; without it of all.")]
KindName = Annotated[str | None, _name("Only jobs of this kind; without it of all.")]
ScopeName = Annotated[str | None, _name("Only turns of this scope; without it of all.")]
ErrorClass = Annotated[
    str | None, _name("Only turns that were given up on for this class; without it for any.")
]
Filter = Annotated[str | None, Query(max_length=1000, pattern=r"^[^\x00]*$")]
NamespaceName = Annotated[
    str, Path(min_length=1, max_length=63, description="The namespace.", examples=["parkkeeper"])
]
Hours = Annotated[
    int, Query(ge=1, le=2160, description="How long the range is that ends now, in hours, up to 90 days.")
]


@router.get("/overview")
def read_overview() -> models.Overview:
    """All namespaces at a glance, and what needs attention first."""
    return overview.read()


@router.get("/namespaces/{namespace}/ring")
def read_ring(namespace: NamespaceName) -> models.Ring:
    """The ring slot by slot, with what pins it, and the floor."""
    with reading.reader(namespace) as reader:
        return ring.read(reader)


@router.get("/namespaces/{namespace}/ring/plan")
def read_plan(namespace: NamespaceName) -> models.Plan:
    """What the next prune would do. It reads all rows of the slot that would be reclaimed and changes nothing."""
    with reading.reader(namespace) as reader:
        return ring.plan(reader)


@router.get("/namespaces/{namespace}/history")
def read_history(namespace: NamespaceName, hours: Hours = 24) -> models.History:
    """What maintenance did, in sixty steps of equal width."""
    with reading.reader(namespace) as reader:
        return history.read(reader, hours)


@router.get("/namespaces/{namespace}/failed-jobs")
def read_failed_jobs(
    namespace: NamespaceName, queue: QueueName = None, kind: KindName = None
) -> models.FailedJobs:
    """Failed jobs that can be put back, by queue and kind, those that are lost first in front."""
    with reading.reader(namespace) as reader:
        return triage.failed_jobs(reader, queue, kind)


@router.get("/namespaces/{namespace}/parked-turns")
def read_parked_turns(
    namespace: NamespaceName, scope: ScopeName = None, error_class: ErrorClass = None
) -> models.ParkedTurns:
    """Parked turns by scope and class of error: ids and times, never words."""
    with reading.reader(namespace) as reader:
        return triage.parked_turns(reader, scope, error_class)


@router.get("/namespaces/{namespace}/rehearsals/redrive")
def rehearse_redrive(
    namespace: NamespaceName, queue: QueueName = None, kind: KindName = None
) -> models.Rehearsal:
    """How many failed jobs a redrive would put back now."""
    with reading.reader(namespace) as reader:
        return triage.redrive(reader, queue, kind)


@router.get("/namespaces/{namespace}/rehearsals/unpark")
def rehearse_unpark(
    namespace: NamespaceName, scope: ScopeName = None, error_class: ErrorClass = None
) -> models.Rehearsal:
    """How many parked turns would go back into the backlog now."""
    with reading.reader(namespace) as reader:
        return triage.unpark(reader, scope, error_class)


@router.get("/namespaces/{namespace}/rehearsals/rebuild")
def rehearse_rebuild(
    namespace: NamespaceName,
    scope: Annotated[str, _name("The scope.")],
) -> models.Rehearsal:
    """How many turns a rebuild of a scope would form again."""
    with reading.reader(namespace) as reader:
        return triage.rebuild(reader, scope)
