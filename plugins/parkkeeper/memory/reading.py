"""Questions to the memory: how far it reaches, what became of a turn, what it knows."""

from __future__ import annotations

from collections.abc import Sequence

from parkkeeper.database import statements
from parkkeeper.memory.outcomes import Freshness, Miscount, Recall, RecalledMemory
from parkkeeper.memory.search import SCOPE_MARK, quoted_word, spaced
from parkkeeper.memory.session import Session

_SQL = statements("memory/reading")

#: How many parked turns one reading of freshness looks at to name their ranges.
WALKED = 1_000


def freshness(session: Session, scope: str) -> Freshness:
    """Read how far `scope` is formed; a scope without a turn is all zeros."""
    row = session.execute(_SQL, "freshness", {"scope": scope, "walk": WALKED + 1}).fetchone()
    assert row is not None
    return Freshness(
        scope=scope,
        stored=row.stored,
        formed=_offset(row.formed_offset),
        formed_strict=_offset(row.formed_strict_offset),
        parked=row.parked,
        parked_ranges=_ranges(row.parked_offsets[:WALKED]),
        truncated=len(row.parked_offsets) > WALKED,
        oldest_parked_at=row.oldest_parked_at,
        backlog=row.stored - row.formed_turns - row.parked - row.erased,
        by_class=dict(zip(row.classes, row.class_counts, strict=True)),
        epoch=row.epoch,
        erased=row.erased,
        paused_at=row.paused_at,
    )


def _offset(stored: int) -> int | None:
    return None if stored < 0 else stored


def _ranges(offsets: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Join ascending offsets into pairs of first and last."""
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and offset == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], offset)
        else:
            ranges.append((offset, offset))
    return tuple(ranges)


def miscounts(session: Session) -> list[Miscount]:
    """Return the kept numbers that are not what a count of the rows says."""
    return [Miscount(*row) for row in session.execute(_SQL, "miscounts", {})]


def turn_status(session: Session, scope: str, log_offset: int) -> str:
    """Return ``pending``, ``formed``, ``parked``, ``erased``, or ``unknown`` for an offset never assigned."""
    row = session.execute(_SQL, "turn_status", {"scope": scope, "log_offset": log_offset}).fetchone()
    return "unknown" if row is None else str(row[0])


def recall(session: Session, scope: str, query: str, *, limit: int) -> Recall:
    """Find memories; freshness is read first, so that they are never older than it says."""
    reach = freshness(session, scope)
    asked = session.execute(_SQL, "words", {"scope": scope, "text": spaced(query)}).fetchone()
    if asked is None or not asked.words:
        return Recall((), reach)
    values = {
        "scope": scope,
        "words": " | ".join(quoted_word(word) for word in asked.words),
        "scope_word": quoted_word(SCOPE_MARK + scope),
        "limit": limit,
    }
    # Not prepared: the planner has to see the words to know that the index is the way.
    rows = session.execute(_SQL, "recall", values, prepare=False)
    return Recall(tuple(RecalledMemory(*row) for row in rows), reach)
