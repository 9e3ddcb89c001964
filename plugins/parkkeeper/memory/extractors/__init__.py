"""What turns a turn into memories: the protocol, what goes in, what comes out, and how a failure is said.

A failure has a class from a closed list, chosen by structure (a status, a provider's code, an exception's type), never
by matching prose. See ``docs/explanation/memory.md`` for what each class leads to.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, runtime_checkable

from parkkeeper.errors import InvalidArgument, ParkkeeperError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The entry point group in which a distribution registers its extractors.
ENTRY_POINTS = "parkkeeper.extractors"

#: What is always there under its name; setup.cfg registers the same.
SHIPPED = {
    "chunks": "parkkeeper.memory.extractors.chunks:Chunks",
    "llm": "parkkeeper.memory.extractors.llm:from_environment [llm]",
}

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
    failure that it can class; whatever else it raises is of class ``other``.

    Optional: `identity`, a name of what it is connected to, each with a circuit of its own; and `canary()`, which
    returns a turn without content that must work whenever the provider does. See ``docs/explanation/circuit.md``.
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
        After which time the provider wants to be asked again: seconds, a timedelta, or the text of a ``Retry-After``
        header (seconds, or an HTTP date, which is compared with this machine's clock). With class ``rate_limited`` the
        turn waits that long (1 s to 1 h) and spends no attempt, a bounded number of times. What is no such time counts
        as none.

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
    """Return seconds or an HTTP date as a timedelta, and as None what is neither or more than a clock can express.

    Whatever a provider sends here, the failure keeps its class.
    """
    if retry_after is None or isinstance(retry_after, timedelta):
        return retry_after
    try:
        return timedelta(seconds=float(retry_after))
    except (OverflowError, TypeError, ValueError):
        pass
    try:
        moment = parsedate_to_datetime(str(retry_after))
        # RFC 5322's "-0000" says UTC without a zone.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime.now(UTC)
    except (OverflowError, TypeError, ValueError):
        return None


def load(name: str, **arguments: Any) -> Extractor:
    """Return an extractor by its name: a shipped one, or one that an installed distribution registers.

    A distribution registers one in the entry point group ``parkkeeper.extractors``; the object that it names is an
    extractor, or a class or function that returns one.

    Parameters
    ----------
    arguments
        What that class or function is called with.

    Raises
    ------
    InvalidArgument
        There is none of that name (the message lists those there are), two distributions register different ones
        under it, it cannot be imported, or it does not take the arguments.
    """
    registered = _registered()
    found = {each.value: each for each in registered if each.name == name}
    if not found:
        names = ", ".join(sorted({each.name for each in registered}))
        raise InvalidArgument(f"extractor {name!r} is refused: one of {names}")
    if len(found) > 1:
        raise InvalidArgument(
            f"extractor {name!r} is refused: it stands for {' and for '.join(sorted(found))}; "
            "uninstall one of the distributions that register them"
        )
    (entry_point,) = found.values()
    try:
        target = entry_point.load()
    except Exception as error:
        # What a module does when it is imported is its own: only the kind of its failure is ours to show.
        missing = f" {error.name}" if isinstance(error, ModuleNotFoundError) else ""
        raise InvalidArgument(
            f"extractor {name!r} cannot be imported ({type(error).__name__}{missing}): {_extra(entry_point)}"
            f"see `python -c 'import {entry_point.module}'`"
        ) from None
    return made(name, target, **arguments)


def made(name: str, target: Any, **arguments: Any) -> Extractor:
    """Return `target` if it is an extractor, else what the class or function `target` returns.

    Raises
    ------
    InvalidArgument
        `target` is or returns something else, or does not take `arguments`.
    """
    if isinstance(target, Extractor) and not isinstance(target, type):
        if arguments:
            raise InvalidArgument(f"extractor {name!r} takes no {', '.join(arguments)}: it is made already")
        return target
    if callable(target):
        try:
            inspect.signature(target).bind(**arguments)
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"extractor {name!r} cannot be made with {', '.join(arguments) or 'no arguments'}"
            ) from None
        try:
            target = target(**arguments)
        except ParkkeeperError:
            raise
        except Exception as error:
            raise InvalidArgument(f"extractor {name!r} cannot be made ({type(error).__name__})") from None
    if isinstance(target, type) or not isinstance(target, Extractor):
        raise InvalidArgument(f"extractor {name!r} is refused: it needs name, version and extract(turn)")
    return target


def _extra(entry_point: EntryPoint) -> str:
    """Return the advice to install what the entry point says that it needs."""
    if not entry_point.extras:
        return ""
    distribution = entry_point.dist.name if entry_point.dist else "the distribution"
    return f"install {distribution}[{','.join(entry_point.extras)}], or "


def _registered() -> list[EntryPoint]:
    """Return the shipped extractors, which are known without being installed too, and what is registered."""
    from importlib.metadata import EntryPoint, entry_points

    shipped = [EntryPoint(name, value, ENTRY_POINTS) for name, value in SHIPPED.items()]
    return [*shipped, *entry_points(group=ENTRY_POINTS)]


__all__ = ["ERROR_CLASSES", "ExtractionError", "Extractor", "Memory", "Message", "Turn", "load"]
