"""What needs attention first: what is lost or about to be, then what is held up, then what waits for a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args
from urllib.parse import urlencode

from parkkeeper.ui import models, words

_ORDER = {severity: place for place, severity in enumerate(get_args(models.Severity))}

DAY = timedelta(days=1)
#: A turn that has waited for so long is not on its way.
LATE = timedelta(hours=1)

#: What can be seen to go wrong only by its outcome.
_HELD_UP = {
    "failed": "failed",
    "blocked": "did not get its locks",
    "skipped_busy": "found no empty slot to open",
    "skipped_active": "found every slot in use",
    "exceeded": "found a limit passed",
}


@dataclass(frozen=True, slots=True)
class LastDay:
    """What happened in the last 24 hours."""

    pruned_failed: int
    deadline_misses: int


def ordered(items: Iterable[models.Attention]) -> list[models.Attention]:
    """Return them with the gravest in front, otherwise as they came."""
    return sorted(items, key=lambda item: _ORDER[item.severity])


def unreadable(namespace: str, problem: str | None) -> list[models.Attention]:
    """Return what a namespace wants a look at that cannot be read: that."""
    return [
        models.Attention(
            severity="danger",
            namespace=namespace,
            figure="cannot be read",
            sentence=f"{problem}. Nothing is known of its jobs and turns.",
            link=f"./?{urlencode({'namespace': namespace})}",
        )
    ]


def of(found: models.Summary, day: LastDay | None, now: datetime) -> list[models.Attention]:
    """Return what a namespace wants a look at, the gravest first."""
    name = found.namespace
    return ordered(
        models.Attention(
            severity=severity,
            namespace=name,
            figure=figure,
            sentence=sentence,
            link=f"./?{urlencode({'namespace': name, 'view': view})}",
        )
        for severity, figure, sentence, view in _found(found, day, now)
    )


def _found(
    found: models.Summary, day: LastDay | None, now: datetime
) -> Iterator[tuple[models.Severity, str, str, str]]:
    if day is not None and day.pruned_failed:
        yield (
            "lost",
            f"{words.counted(day.pruned_failed, 'failed job')} dropped",
            "They were past their retention when they were pruned, within the last 24 hours, and can no longer be "
            "put back.",
            "history",
        )
    if found.expiring and found.first_expires_at is not None:
        past = found.first_expires_at <= now
        more = " or more" if found.expiring_at_least else ""
        yield (
            "lost",
            f"{words.counted(found.expiring, 'failed job')}{more} about to be lost",
            "The first is past its retention: the next prune of its slot drops it. Put it back if it matters."
            if past
            else f"The first passes its retention in {words.span(found.first_expires_at - now)}. Put them back "
            "before, if they matter.",
            "triage",
        )
    for circuit in found.circuits:
        if circuit.state == "open" and circuit.opened_at is not None:
            yield (
                "danger",
                f"circuit of {circuit.extractor} open for {words.span(now - circuit.opened_at)}",
                f"Its provider does not answer ({circuit.error_class or 'other'}): no turn is tried until a canary "
                "gets through. Nothing is parked for that.",
                "overview",
            )
    for run in found.last_runs:
        # A run that found nothing to do leaves no trace: what was so a day ago may have been cured since.
        if (trouble := _HELD_UP.get(run.outcome)) and now - run.ended_at < DAY:
            yield (
                "danger",
                f"{run.action} {run.outcome}",
                f"When it last had something to do, {words.span(now - run.ended_at)} ago, it {trouble}. The log of "
                "its task says more.",
                "overview",
            )
    if found.queue is not None and not found.queue.trusted:
        yield (
            "danger",
            "counters not believed",
            "Jobs are counted from their rows, which takes longer and is right. rebuild_terminal_counters makes the "
            "counters anew.",
            "overview",
        )
    if day is not None and day.deadline_misses:
        yield (
            "warning",
            words.counted(day.deadline_misses, "missed deadline"),
            "Runs of maintenance were not done in time within the last 24 hours.",
            "history",
        )
    if found.pending_since is not None and now - found.pending_since > LATE:
        yield (
            "warning",
            f"oldest turn waits {words.span(now - found.pending_since)}",
            "It was stored and is still to be formed: formation does not keep up, is paused, or does not run.",
            "overview",
        )
    if found.memory is not None and found.memory.parked:
        since = (
            f", the oldest {words.span(now - found.oldest_parked_at)} ago" if found.oldest_parked_at else ""
        )
        yield (
            "warning",
            words.counted(found.memory.parked, "parked turn"),
            f"They were given up on after their last attempt{since}. They are kept, and not in memory until they are "
            "unparked.",
            "triage",
        )
    if found.queue is not None and found.queue.failed:
        yield (
            "warning",
            words.counted(found.queue.failed, "failed job"),
            "They can be put back until they pass their retention.",
            "triage",
        )
    if found.queue is not None and found.queue.dead_lettered:
        yield (
            "note",
            words.counted(found.queue.dead_lettered, "dead letter"),
            "They are kept outside of the ring for as long as their queue says, and can be put back.",
            "overview",
        )
