"""What each figure on the page means, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the history: its field, heading, unit, the colour of the page's style, and what it means."""

    name: str
    heading: str
    unit: str
    colour: str
    meaning: str


#: Figures over time, in the order of the charts.
HISTORY = (
    Figure(
        "carried_failed",
        "Carried",
        "jobs",
        "green",
        "Failed jobs that a prune moved on because they are inside their retention: they stay retryable.",
    ),
    Figure(
        "pruned_failed",
        "Pruned failed",
        "jobs",
        "red",
        "Failed jobs that a prune dropped past their retention: they can no longer be put back.",
    ),
    Figure(
        "pruned_completed",
        "Pruned completed",
        "jobs",
        "blue",
        "Other jobs that ended and whose slot was reclaimed: how fast history goes.",
    ),
    Figure("formed", "Formed", "turns", "green", "Turns whose memory was stored."),
    Figure(
        "parked", "Parked", "turns", "red", "Turns that were given up on after their last attempt, and kept."
    ),
    Figure(
        "backlog",
        "Backlog",
        "turns",
        "amber",
        "Turns that were still to be formed, at their most in each step; it should not grow.",
    ),
    Figure(
        "backlog_seconds",
        "Backlog age",
        "seconds",
        "amber",
        "How long the longest waiting turn had waited, at its highest.",
    ),
    Figure(
        "lock_ms",
        "Lock time",
        "milliseconds",
        "blue",
        "How long a prune waited for the locks of a slot, at its longest: somebody reads for long.",
    ),
)

#: Figures of a queue, in the order of the table: field, heading, meaning.
QUEUE = (
    ("available", "Available", "Jobs that wait in the ring: a worker may claim them now."),
    ("running", "Running", "Jobs that a worker has claimed and not finished."),
    (
        "deferred",
        "Deferred",
        "Jobs that are scheduled for later, or that wait to be tried again after a failure.",
    ),
    ("failed", "Failed", "Failed jobs inside their retention: they can be retried now."),
    (
        "terminal",
        "Terminal",
        "Jobs that ended (completed, failed or cancelled), ever: those in the ring and those pruned.",
    ),
    (
        "pruned_failed",
        "Pruned failed",
        "Failed jobs that were dropped past their retention, ever: they can no longer be retried.",
    ),
    (
        "dead_lettered",
        "Dead letters",
        "Jobs that failed for good and are kept outside of the ring: they can be put back. In no other figure.",
    ),
    (
        "purged_dead_letters",
        "Purged letters",
        "Dead letters that were purged, ever: they can no longer be put back.",
    ),
)

#: Sums over the scopes of a namespace.
MEMORY = (
    ("scopes", "Scopes", "Scopes that turns were ever appended to."),
    ("scopes_behind", "Scopes behind", "Scopes with turns that are still to be formed."),
    ("stored", "Stored", "Turns ever appended."),
    ("formed", "Formed", "Turns that are in memory."),
    ("backlog", "Backlog", "Turns that are neither formed nor parked nor erased: they will be tried."),
    (
        "parked",
        "Parked",
        "Turns that were given up on after their last attempt: kept, not in memory, and not in the way.",
    ),
)

#: Figures of a scope.
SCOPE = (
    ("stored", "Stored", "Turns ever appended to this scope."),
    (
        "formed",
        "Formed up to",
        "Every turn up to this offset is in memory, erased, or parked; the first offset is 0.",
    ),
    ("formed_strict", "Strictly up to", "The same, counting parked turns as not formed."),
    ("backlog", "Backlog", "Turns that are neither formed nor parked nor erased: they will be tried."),
    ("parked", "Parked", "Exceptions to both offsets: turns that were given up on, kept, and not in memory."),
)

#: States of a slot of the ring, and what they mean.
RING_STATES = {
    "current": "It takes new jobs now.",
    "sealed": "It takes no new jobs and nothing in it waits or runs: the next prune may reclaim it.",
    "pinned": "It takes no new jobs and some in it wait or run: a prune passes it over.",
    "empty": "It holds nothing: rotate may open it.",
}

#: What a rehearsed prune says when it would reclaim nothing, by its outcome.
NOT_PRUNED = {
    "noop": "There is nothing to reclaim now.",
    "skipped_active": "Nothing can be reclaimed now: in every sealed slot jobs wait or run.",
    "blocked": "Another session holds the ring's locks now: try again.",
}

#: Figures of a namespace in the list of all: heading, meaning.
NAMESPACES = (
    ("Available", "Jobs that a worker may claim now."),
    ("Running", "Jobs that a worker has claimed and not finished."),
    ("Failed", "Failed jobs that can be put back now."),
    ("Pruned failed", "Failed jobs dropped past their retention, ever: they can no longer be put back."),
    ("Backlog", "Turns that are still to be formed."),
    ("Parked", "Turns that were given up on after their last attempt, and kept."),
    ("Open circuits", "Extractors whose provider does not answer."),
)


def ring(states: Sequence[str]) -> str:
    """Return the picture of the ring in words, from the states of its slots."""
    counted = ", ".join(f"{states.count(state)} {state}" for state in RING_STATES)
    return f"The ring: {len(states)} slots, of which {counted}."


def counted(number: int, thing: str) -> str:
    """Return how many there are of a thing: ``1 failed job``, ``1,200 failed jobs``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def utc(moment: datetime) -> str:
    """Return a moment in UTC, whatever zone the database's session tells it in: ``2026-03-01 08:15:00 UTC``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span(length: timedelta) -> str:
    """Return a length of time for people, in its largest unit but one: ``3 days 4 h``, ``12 min``, ``0 s``."""
    seconds = max(int(length.total_seconds()), 0)
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days} {'day' if days == 1 else 'days'}" + (f" {hours} h" if hours else "")
    if hours:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    return f"{minutes} min" if minutes else f"{seconds} s"
