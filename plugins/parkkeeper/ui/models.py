"""What the endpoints answer, as the OpenAPI document describes it: numbers, names and times, never content."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from parkkeeper.ui.figures import Figures

Count = Annotated[int, Field(ge=0)]
Severity = Literal["lost", "danger", "warning", "note"]


class Problem(BaseModel):
    """Why there is no answer."""

    detail: str = Field(description="What is wrong and what to do, in a sentence or two.")


class Attention(BaseModel):
    """One thing that wants a look, with what it means."""

    severity: Severity = Field(
        description="lost: gone or about to be; danger: held up; warning: waits for a person; note."
    )
    namespace: str = Field(description="The namespace that it is about.")
    figure: str = Field(description="The figure that says so, with its unit.")
    sentence: str = Field(description="What it means and what to do.")
    link: str = Field(description="Where on the page to look, relative to it.")


class QueueTotals(BaseModel):
    """Sums over the queues of a namespace, in jobs."""

    available: Count = Field(description="Jobs that a worker may claim now.")
    running: Count = Field(description="Jobs that were claimed and have not ended.")
    deferred: Count = Field(description="Jobs that wait for their time, or to be tried again.")
    failed: Count = Field(description="Failed jobs that can be put back now.")
    dead_lettered: Count = Field(description="Dead letters that can be put back.")
    pruned_failed: Count = Field(description="Failed jobs dropped past their retention, ever.")
    trusted: bool = Field(
        description="Whether the counters are believed; else jobs are counted from their rows."
    )


class MemoryTotals(BaseModel):
    """Sums over the scopes of a namespace, in turns but for `scopes` and `scopes_behind`."""

    scopes: Count = Field(description="Scopes that turns were ever appended to.")
    scopes_behind: Count = Field(description="Scopes with turns that are still to be formed.")
    stored: Count = Field(description="Turns ever appended.")
    formed: Count = Field(description="Turns that are in memory.")
    parked: Count = Field(description="Turns that were given up on and are kept.")
    erased: Count = Field(description="Turns that were erased.")
    backlog: Count = Field(description="Turns that are neither formed nor parked nor erased.")


class Circuit(BaseModel):
    """Whether an extractor's provider answers; one row for each extractor that ever failed."""

    extractor: str = Field(description="The name of the extractor.")
    extractor_version: str = Field(description="Its version.")
    identity: str = Field(
        description="What else tells its circuit apart, for example a model; empty without."
    )
    state: Literal["open", "closed"] = Field(
        description="open: the provider does not answer; no turn is tried."
    )
    opened_at: datetime | None = Field(description="Since when it is open; null when it is closed.")
    next_probe_at: datetime | None = Field(description="When one turn is tried next; null when it is closed.")
    error_class: str | None = Field(
        description="The class of failure that opened it; null when it is closed."
    )
    failing: Count = Field(description="Turns that failed in the current streak.")


class Run(BaseModel):
    """The newest run of an action that did something, was held up or failed."""

    action: str = Field(description="What was run, for example prune_with_carry.")
    outcome: str = Field(description="How it ended, in the words of that action.")
    started_at: datetime = Field(description="When it began.")
    ended_at: datetime = Field(description="When it ended.")
    figures: dict[str, int | float | str | None] = Field(
        description="What it did, by name; the reference of XComs says each with its unit."
    )
    dag_id: str | None = Field(description="The DAG, null outside of Airflow.")
    dag_run_id: str | None = Field(description="The run of the DAG, null outside of Airflow.")
    task_id: str | None = Field(description="The task, null outside of Airflow.")


class Summary(BaseModel):
    """A namespace at a glance; a family that it does not have is null."""

    namespace: str = Field(description="Its name.")
    problem: str | None = Field(description="Why it cannot be read; null when it can.")
    queue: QueueTotals | None = Field(
        default=None, description="What its jobs do; null without queue tables."
    )
    memory: MemoryTotals | None = Field(
        default=None, description="What its turns do; null without memory tables."
    )
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
    oldest_parked_at: datetime | None = Field(
        default=None, description="Since when the longest parked turn is parked; null when none is."
    )
    circuits: list[Circuit] = Field(default=[], description="At most 50, the open ones first.")
    last_runs: list[Run] = Field(default=[], description="Of each action, by name, at most 50.")
    attention: list[Attention] = Field(default=[], description="What needs attention, first things first.")


class Overview(BaseModel):
    """All namespaces that the connection's login may read."""

    taken_at: datetime = Field(description="When they were read, by the database's clock.")
    namespaces: list[Summary] = Field(description="By name, at most 25.")
    more: Count = Field(description="How many namespaces are left out.")
    attention: list[Attention] = Field(description="Of all that are listed, first things first.")


class Slot(BaseModel):
    """One slot of the ring; `waiting` is counted to 10,000 a lane."""

    slot: Count = Field(description="Its number.")
    generation: int | None = Field(
        description="How often the ring had turned when it was opened; null when it never was."
    )
    state: Literal["current", "sealed", "pinned", "empty"] = Field(
        description="current takes new jobs; sealed can be reclaimed; pinned has jobs in use; empty can be opened."
    )
    opened_at: datetime | None = Field(description="When it began to take jobs; null when it never did.")
    sealed_at: datetime | None = Field(description="When it ceased to; null while it does.")
    terminal: Count = Field(description="Jobs that ended and stand in it.")
    failed: Count = Field(description="Failed jobs in it, which can be put back.")
    waiting: Count = Field(description="Jobs that wait in it, counted to 10,000 a lane.")
    running: Count = Field(description="Jobs that were claimed from it and have not ended.")
    pinned_by: str | None = Field(
        default=None, description="The job that has pinned it for longest, in words."
    )


class Segment(BaseModel):
    """One floor segment that holds failed jobs."""

    segment: int = Field(ge=-24, le=-1, description="Its number.")
    failed: Count = Field(description="Failed jobs in it, which can be put back.")
    passes_at: datetime = Field(description="When the last of them was to pass the floor.")


class Ring(BaseModel):
    """The queue's ring and its floor."""

    namespace: str = Field(description="The namespace.")
    taken_at: datetime = Field(description="When it was read, by the database's clock.")
    slots: list[Slot] = Field(description="By number.")
    floor: list[Segment] = Field(description="Those that hold failed jobs, the newest in front.")
    first_expires_at: datetime | None = Field(
        description="When the oldest failed job passes its floor, or did."
    )


class PlannedRow(BaseModel):
    """What would become of the terminal rows of one queue and kind."""

    queue: str = Field(description="The queue.")
    kind: str = Field(description="The kind.")
    carried_failed_rows: Count = Field(description="Failed jobs that would be moved on to the floor.")
    pruned_failed: Count = Field(description="Failed jobs that would be dropped, past their retention.")
    pruned_completed: Count = Field(description="Other jobs that would be dropped.")
    kept_failed_rows: Count = Field(description="Failed jobs that would stay where they are.")


class Plan(BaseModel):
    """What the next prune would do; nothing was changed."""

    namespace: str = Field(description="The namespace.")
    outcome: str = Field(
        description="pruned when something would be reclaimed; noop, skipped_active or blocked when nothing would."
    )
    sentence: str | None = Field(description="Why nothing would be reclaimed; null when something would.")
    slot: int | None = Field(
        description="What would be reclaimed: a slot, below zero a floor segment; null when nothing would."
    )
    reason: str | None = Field(description="Why, in the word of the prune; null without one.")
    carried_failed_rows: Count = Field(description="Failed jobs that would be moved on to the floor.")
    pruned_failed: Count = Field(description="Failed jobs that would be dropped, past their retention.")
    pruned_completed: Count = Field(description="Other jobs that would be dropped.")
    by_kind: list[PlannedRow] = Field(description="At most 200, by queue and kind.")


class Step(BaseModel):
    """What maintenance did in one step of the range; sums but for `backlog`, `backlog_seconds` and `lock_ms`."""

    begins_at: datetime = Field(description="Where the step begins.")
    runs: Count = Field(description="Runs on record.")
    deadline_misses: Count = Field(description="Deadlines that were missed.")
    failed_runs: Count = Field(description="Runs that failed.")
    blocked_runs: Count = Field(description="Runs that did not get their locks.")
    carried_failed: Count = Field(description="Failed jobs that were moved on to the floor.")
    pruned_failed: Count = Field(description="Failed jobs that were dropped past their retention.")
    pruned_completed: Count = Field(description="Other jobs that were dropped.")
    formed: Count = Field(description="Turns that came into memory.")
    parked: Count = Field(description="Turns that were given up on.")
    lock_ms: float | None = Field(
        description="How long a prune waited for its locks, at its longest, in milliseconds; null without a prune."
    )
    backlog: int | None = Field(
        description="Turns to be formed, at their most; null when they were not counted."
    )
    backlog_seconds: float | None = Field(
        description="The age of the longest waiting turn, at its highest, in seconds; null when none was taken."
    )


class History(BaseModel):
    """What maintenance did over a range that ends now."""

    namespace: str = Field(description="The namespace.")
    ends_at: datetime = Field(description="When the range ends, by the database's clock.")
    hours: int = Field(ge=1, le=2160, description="How long the range is, in hours.")
    step_seconds: int = Field(description="How long a step is, in seconds.")
    steps: list[Step] = Field(description="Those with a run in them, the oldest first.")
    truncated: bool = Field(
        description="Whether the range holds more runs than are read: the oldest are left out."
    )


class FailedGroup(BaseModel):
    """Failed jobs of one queue and kind, among those that were looked at."""

    queue: str = Field(description="The queue.")
    kind: str = Field(description="The kind.")
    jobs: Count = Field(description="How many they are.")
    least_attempts: int = Field(description="How often the one that was claimed least was claimed.")
    most_attempts: int = Field(description="How often the one that was claimed most was claimed.")
    oldest_failed_at: datetime = Field(description="When the first of them failed.")
    first_expires_at: datetime = Field(description="Until then none of them is dropped.")


class FailedJob(BaseModel):
    """One failed job, without its args and its error, which are the application's."""

    job_id: int = Field(description="Its id.")
    queue: str = Field(description="Its queue.")
    kind: str = Field(description="Its kind.")
    attempt: int = Field(description="How often it was claimed.")
    finalized_at: datetime = Field(description="When it failed for good.")
    expires_at: datetime = Field(description="Until then no prune drops it.")


class FailedJobs(BaseModel):
    """Failed jobs that can be put back, those that are lost first in front."""

    namespace: str = Field(description="The namespace.")
    taken_at: datetime = Field(description="When they were read, by the database's clock.")
    total: Count = Field(description="Of the queue that was asked for, or of all, whatever their kind.")
    looked_at: Count = Field(description="So many of them were looked at, at most 10,000.")
    groups: list[FailedGroup] = Field(description="At most 200.")
    jobs: list[FailedJob] = Field(description="At most 100.")


class ParkedGroup(BaseModel):
    """Parked turns of one scope and class of error."""

    scope: str = Field(description="The scope.")
    error_class: str = Field(description="Why they were given up on.")
    parked: Count = Field(description="How many they are.")
    oldest_parked_at: datetime | None = Field(description="Of the whole scope.")


class ParkedTurn(BaseModel):
    """One parked turn: never its words, nor the text of its error."""

    observation_id: int = Field(description="Its id.")
    scope: str = Field(description="Its scope.")
    log_offset: int = Field(description="Its place in the log of the scope; the first is 0.")
    attempts: int = Field(description="How often it was tried.")
    park_count: int = Field(description="How often it was parked.")
    error_class: str = Field(description="Why it was given up on.")
    parked_at: datetime = Field(description="When it was parked.")


class ParkedTurns(BaseModel):
    """Turns that were given up on and are kept."""

    namespace: str = Field(description="The namespace.")
    taken_at: datetime = Field(description="When they were read, by the database's clock.")
    total: Count = Field(description="Of the scope and class that were asked for, or of all.")
    groups: list[ParkedGroup] = Field(description="At most 200, the largest first.")
    turns: list[ParkedTurn] = Field(description="At most 100, by scope and offset.")


class Rehearsal(BaseModel):
    """How many rows an action would touch now; nothing was changed."""

    namespace: str = Field(description="The namespace.")
    action: Literal["redrive", "unpark", "rebuild"] = Field(description="Which action.")
    taken_at: datetime = Field(
        description="When they were counted, by the database's clock: a run whose window ends then touches them."
    )
    rows: Count = Field(description="Jobs of a redrive, turns of an unpark or a rebuild.")
    at_least: bool = Field(description="Whether there may be more than were counted.")
    sentence: str = Field(description="What happens to them.")


class AllFigures(BaseModel):
    """Every figure of one namespace, and the names of all that the connection's login may read."""

    namespaces: list[str] = Field(description="The names of all namespaces.")
    figures: Figures | None = Field(
        description="Those of the one that was asked for; null when there is none."
    )
