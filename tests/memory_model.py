"""The memory as a plain model has it: turns in a dictionary and numbers that are counted each time."""

from __future__ import annotations

from dataclasses import dataclass, field

SCOPES = ("a", "b")


@dataclass
class ModelTurn:
    """A turn as the model knows it."""

    scope: str
    offset: int
    subject: str
    state: str = "pending"
    attempts: int = 0
    error_class: str | None = None


@dataclass
class Model:
    """Turns by id; erased ones are no longer in it, their offsets stay counted in `stored`."""

    turns: dict[int, ModelTurn] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SCOPES, 0))
    epoch: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SCOPES, 0))
    paused: set[str] = field(default_factory=set)
    old: set[int] = field(default_factory=set)
    version: dict[int, str] = field(default_factory=dict)

    def of(self, scope: str, *states: str) -> list[ModelTurn]:
        """Return the turns of a scope that are in any of `states`."""
        return [turn for turn in self.turns.values() if turn.scope == scope and turn.state in states]

    def before(self, scope: str, *states: str) -> int | None:
        """Return the offset before the first turn in any of `states`; the last one when there is none."""
        first = min((turn.offset for turn in self.of(scope, *states)), default=self.stored[scope])
        return first - 1 if first > 0 else None

    def status(self, scope: str, offset: int) -> str:
        """Return what `turn_status` is to say."""
        if not 0 <= offset < self.stored[scope]:
            return "unknown"
        found = [turn.state for turn in self.turns.values() if (turn.scope, turn.offset) == (scope, offset)]
        return found[0] if found else "erased"
