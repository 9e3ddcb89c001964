"""The canary: a turn without content, sent through the same extractor to ask whether the provider answers at all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from parkkeeper.memory.extractors import ExtractionError, Extractor, Message, Turn

#: A scope and an offset that no turn has.
SCOPE, OFFSET = "", -1
_MESSAGES: tuple[Message, ...] = (
    {"role": "user", "content": "This is a test. There is nothing in it to remember."},
)
#: The longest time for an answer; less when the turns themselves have less.
LONGEST_BUDGET = timedelta(minutes=5)


def budget(turn_budget: timedelta) -> timedelta:
    """Return how long a canary may take: as long as a turn, so that what serves turns serves it, up to five minutes."""
    return min(turn_budget, LONGEST_BUDGET)


def canary(extractor: Extractor, deadline: datetime) -> Turn:
    """Return the canary that `extractor` ships, or the one that serves any.

    Raises
    ------
    BaseException
        Whatever the extractor's own ``canary()`` raises; that it failed counts as no answer.
    """
    own = getattr(extractor, "canary", None)
    if own is None:
        return Turn(SCOPE, OFFSET, datetime.now(UTC), _MESSAGES, deadline)
    turn = own()
    if not isinstance(turn, Turn):
        raise ExtractionError("malformed", f"canary returned a {type(turn).__name__}, not a Turn")
    return replace(turn, deadline=deadline)
