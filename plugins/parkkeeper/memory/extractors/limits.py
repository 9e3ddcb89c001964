"""What an extractor may send and ask for: of one request, of a turn, of a scope."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, fields
from datetime import timedelta

from parkkeeper.errors import InvalidArgument
from parkkeeper.memory.extractors import ExtractionError

#: A turn of a scope that is past its ceilings waits this long.
SCOPE_WAIT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens are estimated for what is sent, and as reported for what comes back.

    Parameters
    ----------
    max_input_tokens, max_output_tokens
        Of one request. Messages that do not fit into one are divided among several; when a single one does not, the
        turn is ``too_long`` and nothing is sent.
    max_calls_per_turn, max_tokens_per_turn
        A turn that needs more is ``too_long``.
    max_calls_per_scope, max_tokens_per_scope
        Of all turns of a scope in the life of one extractor, which is a batch. Beyond them a turn is
        ``rate_limited``: it waits an hour and spends no attempt, ten times at most. None: no ceiling.

    Raises
    ------
    InvalidArgument
        One of them is not a whole number from 1.
    """

    max_input_tokens: int = 100_000
    max_output_tokens: int = 16_000
    max_calls_per_turn: int = 8
    max_tokens_per_turn: int = 400_000
    max_calls_per_scope: int | None = None
    max_tokens_per_scope: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            optional = field.default is None
            if value is None and optional:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                rule = "a whole number from 1" + (", or None" if optional else "")
                raise InvalidArgument(f"limits.{field.name} {value!r} is refused: {rule}")


DEFAULT_LIMITS = Limits()


class Ceiling:
    """Counts calls and tokens down, from several threads; beyond them a call is a failure with `error_class`."""

    def __init__(
        self,
        error_class: str,
        message: str,
        calls: int | None,
        tokens: int | None,
        retry_after: timedelta | None = None,
    ) -> None:
        self._error_class = error_class
        self._message = message
        self._calls_left = math.inf if calls is None else calls
        self._tokens_left = math.inf if tokens is None else tokens
        self._retry_after = retry_after
        self._lock = threading.Lock()

    @classmethod
    def of_turn(cls, limits: Limits) -> Ceiling:
        """Return the ceiling of one turn."""
        message = "the turn's ceiling of calls or tokens is reached"
        return cls("too_long", message, limits.max_calls_per_turn, limits.max_tokens_per_turn)

    @classmethod
    def of_scope(cls, limits: Limits) -> Ceiling:
        """Return the ceiling of one scope."""
        message = "the scope's ceiling of calls or tokens in a batch is reached"
        return cls(
            "rate_limited", message, limits.max_calls_per_scope, limits.max_tokens_per_scope, SCOPE_WAIT
        )

    def spend(self, tokens: int) -> None:
        """Count a call that is about to be made, or raise the failure when it would pass the ceiling."""
        with self._lock:
            if self._calls_left < 1 or self._tokens_left < tokens:
                raise ExtractionError(self._error_class, self._message, retry_after=self._retry_after)
            self._calls_left -= 1
            self._tokens_left -= tokens

    def add(self, tokens: int) -> None:
        """Count what came back; that it passes the ceiling is known only then."""
        with self._lock:
            self._tokens_left -= tokens
