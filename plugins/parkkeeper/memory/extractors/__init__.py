"""What turns a turn into memories: the protocol, what goes in, what comes out, and how a failure is said.

A failure has a class from a closed list, chosen by structure (a status, a provider's code, an exception's type), never
by matching prose. See ``docs/explanation/memory.md`` for what each class leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypedDict, runtime_checkable

from parkkeeper.errors import InvalidArgument

#: Every class that a failed attempt can have; the database holds the same list.
ERROR_CLASSES = (
    "rate_limited",
    "quota",
    "auth",
    "unavailable",
    "timeout",
    "refusal",
    "too_long",
    "output_truncated",
    "malformed",
    "store",
    "worker_crash",
    "other",
)


class Message(TypedDict):
    """One message of a turn, as it was appended."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What an extractor sees: one turn, and until when its answer is waited for.

    `deadline` is an aware time by this machine's clock; a result that comes after it is discarded.
    """

    scope: str
    log_offset: int
    occurred_at: datetime
    messages: tuple[Message, ...] = field(repr=False)
    deadline: datetime


@dataclass(frozen=True, slots=True)
class Memory:
    """What an extractor makes of a turn: a text of 1 to 65,536 characters, and a kind, which is an open string."""

    text: str = field(repr=False)
    kind: str = "memory"


@runtime_checkable
class Extractor(Protocol):
    """An extractor has a name, a version and one method; `extract` may run in another thread than the caller's.

    `extract` returns the memories of the turn; an empty list is a success. It raises :class:`ExtractionError` for a
    failure that it can class; whatever else it raises is of class ``other``, but for what asks the process to end.
    """

    name: str
    version: str

    def extract(self, turn: Turn) -> Sequence[Memory]:
        """Return the memories of `turn`."""
        ...


class ExtractionError(Exception):
    """An attempt that failed, with its class.

    Parameters
    ----------
    error_class
        One of :data:`ERROR_CLASSES`.
    message
        What the provider said. It is kept on the turn's row, redacted and cut, and nowhere else: ``str()`` of this
        exception shows the class only.
    retry_after
        Seconds (a number, or its text as in a header) or a timedelta, after which the provider wants to be asked again.
        With class ``rate_limited`` the turn waits that long (1 s to 1 h) and spends no attempt, a bounded number of
        times. What is no such time counts as none.

    Raises
    ------
    InvalidArgument
        The class is not in the list.
    """

    message: object = ""
    retry_after: timedelta | None = None

    def __init__(
        self, error_class: str, message: object = "", *, retry_after: float | str | timedelta | None = None
    ) -> None:
        if error_class not in ERROR_CLASSES:
            raise InvalidArgument(f"error_class is refused: one of {', '.join(ERROR_CLASSES)}")
        super().__init__(error_class)
        self.error_class = error_class
        self.message = message
        self.retry_after = _duration(retry_after)


def _duration(retry_after: float | str | timedelta | None) -> timedelta | None:
    """Return seconds as a timedelta, and as None what is no number of them or more than a clock can express.

    Whatever a provider sends here, the failure keeps its class.
    """
    if retry_after is None or isinstance(retry_after, timedelta):
        return retry_after
    try:
        return timedelta(seconds=float(retry_after))
    except (OverflowError, TypeError, ValueError):
        return None


def load(name: str) -> Extractor:
    """Return a shipped extractor by name: ``chunks``.

    Raises
    ------
    InvalidArgument
        There is none of that name; the message lists those there are.
    """
    from parkkeeper.memory.extractors.chunks import Chunks

    shipped: dict[str, Callable[[], Extractor]] = {Chunks.name: Chunks}
    if name not in shipped:
        raise InvalidArgument(f"extractor {name!r} is refused: one of {', '.join(shipped)}")
    return shipped[name]()


__all__ = ["ERROR_CLASSES", "ExtractionError", "Extractor", "Memory", "Message", "Turn", "load"]
