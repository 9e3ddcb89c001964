"""What each figure on the page means, in a sentence."""

from __future__ import annotations

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

SLOT_STATES = {
    "open": "takes new jobs now",
    "sealed": "takes no new jobs; prune reclaims it once nothing in it waits or runs",
    "empty": "holds nothing; rotate may open it",
}
