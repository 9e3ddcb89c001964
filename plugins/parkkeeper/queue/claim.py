"""Claiming a batch of jobs with one append. See ``docs/adr/0003-claim-by-cursor-and-late-list.md``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any, TypeVar

import psycopg

from parkkeeper.database import statements
from parkkeeper.names import checked_name
from parkkeeper.namespace import Namespace
from parkkeeper.queue.arguments import CLAIM_LIMITS, lease_seconds, whole_number
from parkkeeper.queue.calls import call

T = TypeVar("T")

_SQL = statements("queue/claim")


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job in the hands of a worker.

    Attributes
    ----------
    job_id, queue, kind, priority, max_attempts
        As they were enqueued.
    args
        The JSON object that the job was enqueued with; not shown when the claim is printed.
    attempt
        Which claim of the job this is, from 1.
    run_lease
        With `job_id`, the identity of this claim: what must match when the job is finished.
    lease_until
        When others may take the job for abandoned, by the database's clock.
    claim_slot, ordinal
        Where the claim is recorded, so that it is found again without a search.
    """

    job_id: int
    queue: str
    kind: str
    args: dict[str, Any] = field(repr=False)
    priority: int
    attempt: int
    max_attempts: int
    run_lease: int
    lease_until: datetime
    claim_slot: int
    ordinal: int


def claim(
    connection: psycopg.Connection[Any], namespace: Namespace, queue: str, limit: int, *, lease: timedelta
) -> list[ClaimedJob]:
    """Take jobs; see :meth:`QueueStorage.claim <parkkeeper.queue.storage.QueueStorage.claim>`."""
    values = {
        "queue": checked_name("queue", queue),
        "limit": whole_number("limit", limit, CLAIM_LIMITS),
        "lease_seconds": lease_seconds(lease),
    }
    jobs: list[ClaimedJob] = []
    for priority, claim_slot, run_lease, lease_until, *arrays, args in call(
        connection, namespace, _SQL, "claim", values
    ):
        job_ids, attempts, max_attempts, kinds = arrays
        size = len(job_ids)
        columns = zip(
            job_ids,
            _each(kinds, size),
            json.loads(args),
            _each(attempts, size),
            _each(max_attempts, size),
            range(1, size + 1),
            strict=True,
        )
        jobs += [
            ClaimedJob(
                job_id, queue, kind, arg, priority, attempt, most, run_lease, lease_until, claim_slot, ordinal
            )
            for job_id, kind, arg, attempt, most, ordinal in columns
        ]
    return jobs


def _each(values: list[T], size: int) -> Iterable[T]:
    """Return the values of a batch's jobs, of which one stands for all when all are the same."""
    return repeat(values[0], size) if len(values) == 1 else values
