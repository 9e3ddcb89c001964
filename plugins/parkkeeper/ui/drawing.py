"""The ring as a picture: where each slot's arc lies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parkkeeper.ui import models

_OUTER, _INNER, _LABEL = 104, 68, 86
# Half of the gap between two arcs, in radians; less where there are many.
_GAP = 0.018


@dataclass(frozen=True, slots=True)
class Arc:
    """The path of a slot's arc around the origin, and where its number stands."""

    path: str
    x: float
    y: float


def arcs(slots: Sequence[models.Slot]) -> Iterator[tuple[models.Slot, Arc]]:
    """Return each slot with its arc, clockwise from the top."""
    width = 2 * math.pi / len(slots)
    gap = min(_GAP, width / 6)
    for place, slot in enumerate(slots):
        begin, end = place * width + gap, (place + 1) * width - gap
        large = int(end - begin > math.pi)
        path = (
            f"M{_at(_OUTER, begin)}A{_OUTER},{_OUTER},0,{large},1,{_at(_OUTER, end)}"
            f"L{_at(_INNER, end)}A{_INNER},{_INNER},0,{large},0,{_at(_INNER, begin)}Z"
        )
        middle = (begin + end) / 2
        yield slot, Arc(path, round(_LABEL * math.sin(middle), 2), round(-_LABEL * math.cos(middle) + 4, 2))


def _at(radius: int, angle: float) -> str:
    return f"{radius * math.sin(angle):.2f},{-radius * math.cos(angle):.2f}"
