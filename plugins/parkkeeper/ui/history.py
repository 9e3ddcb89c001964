"""What maintenance did over time, from its record."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from parkkeeper.ui import models
from parkkeeper.ui.reading import Reader

#: How many steps a range is cut into.
STEPS = 60
#: How many runs are read for one answer, the newest in front.
MOST_RUNS = 300_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """When the range ends, and up to when runs are left out because there are too many; None: none are."""

    ends_at: datetime
    cut_at: datetime | None


def read(reader: Reader, hours: int) -> models.History:
    """Read what was done in so many hours that end now."""
    wanted = timedelta(hours=hours)
    step = wanted // STEPS
    bounds = reader.row("ui/history", "bounds", Bounds, range=wanted, limit=MOST_RUNS)
    steps = reader.rows(
        "ui/history",
        "steps",
        models.Step,
        ends_at=bounds.ends_at,
        cut_at=bounds.cut_at,
        step=int(step.total_seconds()),
        steps=STEPS,
    )
    return models.History(
        namespace=reader.space.name,
        ends_at=bounds.ends_at,
        hours=hours,
        step_seconds=int(step.total_seconds()),
        steps=steps,
        truncated=bounds.cut_at is not None,
    )
