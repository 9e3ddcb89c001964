"""Claiming: take a batch of jobs with one append."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job in the hands of a worker.

    Attributes
    ----------
    job_id, queue, kind, priority, max_attempts
        As they were enqueued.
    args
        The JSON object that the job was enqueued with.
    attempt
        Which claim of the job this is, from 1.
    run_lease
        With `job_id`, the identity of this claim: what it must match to finish the job.
    lease_until
        When others may take the job for abandoned, by the database's clock.
    claim_slot
        Where the claim is recorded, so that it is found again without a search.
    """

    job_id: int
    queue: str
    kind: str
    args: dict[str, Any]
    priority: int
    attempt: int
    max_attempts: int
    run_lease: int
    lease_until: datetime
    claim_slot: int
