"""What the endpoints answer, as the OpenAPI document describes it: numbers, names and times, never content."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

Count = Annotated[int, Field(ge=0)]
Severity = Literal["lost", "danger", "warning", "note"]


class Problem(BaseModel):
    """Why there is no answer."""

    detail: str


class Attention(BaseModel):
    """One thing that wants a look, with what it means."""

    severity: Severity = Field(
        description="lost: gone or about to be; danger: held up; warning: waits for a person; note."
    )
    namespace: str
    figure: str = Field(description="The figure that says so, with its unit.")
    sentence: str = Field(description="What it means and what to do.")
    link: str = Field(description="Where on the page to look, relative to it.")


class QueueTotals(BaseModel):
    """Sums over the queues of a namespace, in jobs."""

    available: Count
    running: Count
    deferred: Count
    failed: Count = Field(description="Failed jobs that can be put back now.")
    dead_lettered: Count
    pruned_failed: Count = Field(description="Failed jobs dropped past their retention, ever.")
    trusted: bool = Field(
        description="Whether the counters are believed; else jobs are counted from their rows."
    )


class MemoryTotals(BaseModel):
    """Sums over the scopes of a namespace, in turns but for `scopes` and `scopes_behind`."""

    scopes: Count
    scopes_behind: Count
    stored: Count
    formed: Count
    parked: Count
    erased: Count
    backlog: Count


class Circuit(BaseModel):
    """Whether an extractor's provider answers; one row for each extractor that ever failed."""

    extractor: str
    extractor_version: str
    identity: str
    state: Literal["open", "closed"] = Field(
        description="open: the provider does not answer; no turn is tried."
    )
    opened_at: datetime | None
    next_probe_at: datetime | None
    error_class: str | None
    failing: Count = Field(description="Turns that failed in the current streak.")


class Run(BaseModel):
    """The newest run of an action that did something, was held up or failed."""

    action: str
    outcome: str
    started_at: datetime
    ended_at: datetime
    figures: dict[str, int | float | str | None]
    dag_id: str | None
    dag_run_id: str | None
    task_id: str | None


class Summary(BaseModel):
    """A namespace at a glance; a family that it does not have is null."""

    namespace: str
    problem: str | None = Field(description="Why it cannot be read; null when it can.")
    queue: QueueTotals | None = None
    memory: MemoryTotals | None = None
    expiring: Count = Field(
        default=0, description="Failed jobs that pass their floor within a day, counted to 10,000."
    )
    expiring_at_least: bool = Field(
        default=False, description="Whether there may be more of them than were counted."
    )
    first_expires_at: datetime | None = Field(
        default=None, description="When the first of them does, or did."
    )
    pending_since: datetime | None = Field(
        default=None, description="Since when the longest waiting turn waits."
    )
    oldest_parked_at: datetime | None = None
    circuits: list[Circuit] = Field(default=[], description="At most 50, the open ones first.")
    last_runs: list[Run] = Field(default=[], description="Of each action, by name, at most 50.")
    attention: list[Attention] = Field(default=[], description="What needs attention, first things first.")


class Overview(BaseModel):
    """All namespaces that the connection's login may read."""

    taken_at: datetime
    namespaces: list[Summary] = Field(description="By name, at most 25.")
    more: Count = Field(description="How many namespaces are left out.")
    attention: list[Attention] = Field(description="Of all that are listed, first things first.")


class Slot(BaseModel):
    """One slot of the ring; `waiting` is counted to 10,000 a lane."""

    slot: Count
    generation: int | None
    state: Literal["current", "sealed", "pinned", "empty"]
    opened_at: datetime | None
    sealed_at: datetime | None
    terminal: Count
    failed: Count = Field(description="Failed jobs in it, which can be put back.")
    waiting: Count
    running: Count
    pinned_by: str | None = Field(
        default=None, description="The job that has pinned it for longest, in words."
    )


class Segment(BaseModel):
    """One floor segment that holds failed jobs."""

    segment: int = Field(ge=-24, le=-1)
    failed: Count
    passes_at: datetime = Field(description="When the last of them was to pass the floor.")


class Ring(BaseModel):
    """The queue's ring and its floor."""

    namespace: str
    taken_at: datetime
    slots: list[Slot]
    floor: list[Segment]
    first_expires_at: datetime | None = Field(
        description="When the oldest failed job passes its floor, or did."
    )


class PlannedRow(BaseModel):
    """What would become of the terminal rows of one queue and kind."""

    queue: str
    kind: str
    carried_failed_rows: Count
    pruned_failed: Count
    pruned_completed: Count
    kept_failed_rows: Count


class Plan(BaseModel):
    """What the next prune would do; nothing was changed."""

    namespace: str
    outcome: str
    sentence: str | None = Field(description="Why nothing would be reclaimed; null when something would.")
    slot: int | None
    reason: str | None
    carried_failed_rows: Count
    pruned_failed: Count
    pruned_completed: Count
    by_kind: list[PlannedRow] = Field(description="At most 200, by queue and kind.")


class Step(BaseModel):
    """What maintenance did in one step of the range; sums but for `backlog`, `backlog_seconds` and `lock_ms`."""

    begins_at: datetime
    runs: Count
    deadline_misses: Count
    failed_runs: Count
    blocked_runs: Count
    carried_failed: Count
    pruned_failed: Count
    pruned_completed: Count
    formed: Count
    parked: Count
    lock_ms: float | None = Field(description="How long a prune waited for its locks, at its longest.")
    backlog: int | None = Field(description="Turns to be formed, at their most.")
    backlog_seconds: float | None = Field(description="The age of the longest waiting turn, at its highest.")


class History(BaseModel):
    """What maintenance did over a range that ends now."""

    namespace: str
    ends_at: datetime
    hours: int = Field(ge=1, le=2160)
    step_seconds: int
    steps: list[Step] = Field(description="Those with a run in them, the oldest first.")
    truncated: bool = Field(
        description="Whether the range holds more runs than are read: the oldest are left out."
    )


class FailedGroup(BaseModel):
    """Failed jobs of one queue and kind, among those that were looked at."""

    queue: str
    kind: str
    jobs: Count
    least_attempts: int
    most_attempts: int
    oldest_failed_at: datetime
    first_expires_at: datetime = Field(description="Until then none of them is dropped.")


class FailedJob(BaseModel):
    """One failed job, without its args and its error, which are the application's."""

    job_id: int
    queue: str
    kind: str
    attempt: int
    finalized_at: datetime
    expires_at: datetime


class FailedJobs(BaseModel):
    """Failed jobs that can be put back, those that are lost first in front."""

    namespace: str
    taken_at: datetime
    total: Count = Field(description="Of the queue that was asked for, or of all, whatever their kind.")
    looked_at: Count = Field(description="So many of them were looked at, at most 10,000.")
    groups: list[FailedGroup] = Field(description="At most 200.")
    jobs: list[FailedJob] = Field(description="At most 100.")


class ParkedGroup(BaseModel):
    """Parked turns of one scope and class of error."""

    scope: str
    error_class: str
    parked: Count
    oldest_parked_at: datetime | None = Field(description="Of the whole scope.")


class ParkedTurn(BaseModel):
    """One parked turn: never its words, nor the text of its error."""

    observation_id: int
    scope: str
    log_offset: int
    attempts: int
    park_count: int
    error_class: str
    parked_at: datetime


class ParkedTurns(BaseModel):
    """Turns that were given up on and are kept."""

    namespace: str
    taken_at: datetime
    total: Count = Field(description="Of the scope and class that were asked for, or of all.")
    groups: list[ParkedGroup] = Field(description="At most 200, the largest first.")
    turns: list[ParkedTurn] = Field(description="At most 100, by scope and offset.")


class Rehearsal(BaseModel):
    """How many rows an action would touch now; nothing was changed."""

    namespace: str
    action: Literal["redrive", "unpark", "rebuild"]
    taken_at: datetime
    rows: Count
    at_least: bool = Field(description="Whether there may be more than were counted.")
    sentence: str
