"""What may be appended: a turn is checked whole before anything is sent to the database."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, datetime
from typing import Any

from parkkeeper.errors import InvalidArgument
from parkkeeper.memory.errors import InvalidTurn

#: Who can have said a message; the database holds the same list.
ROLES = ("system", "user", "assistant", "tool")
CONTENT_LENGTH = 65_536
SUBJECT_LENGTH = 200
KEY_LENGTH = 1_000
ON_INVALID = ("reject", "replace")

_FIELDS = ("messages", "subject", "occurred_at", "idempotency_key", "language")
# Postgres's text holds neither NUL nor half a surrogate pair.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_LANGUAGE = re.compile(r"(?=.{2,35}\Z)[A-Za-z]{2,}([-_][A-Za-z0-9]+)*\Z")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class CheckedTurn:
    """A turn that can be stored: `messages` are pairs of role and content."""

    messages: tuple[tuple[str, str], ...]
    subject: str | None
    occurred_at: datetime | None
    idempotency_key: str | None
    language: str | None

    def __repr__(self) -> str:
        return f"CheckedTurn({len(self.messages)} messages)"


def storable(text: str) -> bool:
    """Tell whether Postgres can hold `text`."""
    return _UNSTORABLE.search(text) is None


def check_turn(turn: Mapping[str, Any], where: str, on_invalid: str) -> CheckedTurn:
    """Return `turn` as it will be stored.

    Parameters
    ----------
    turn
        A mapping with `messages`, and if wanted `subject`, `occurred_at`, `idempotency_key` and `language`.
    where
        What error messages put before a field's name, e.g. ``"turns[3]."``.
    on_invalid
        ``"reject"`` a content that holds NUL or a lone surrogate, or ``"replace"`` each by U+FFFD.

    Raises
    ------
    InvalidTurn
        Something about it cannot be stored; the message names the field and the position, never the content.
    """
    if on_invalid not in ON_INVALID:
        raise InvalidArgument(f"on_invalid {on_invalid!r} is refused: one of {', '.join(ON_INVALID)}")
    if not isinstance(turn, Mapping):
        raise InvalidTurn(
            f"{where.rstrip('.')} is a {type(turn).__name__}: a mapping with {', '.join(_FIELDS)}"
        )
    if not turn.keys() <= set(_FIELDS):
        raise InvalidTurn(
            f"{where.rstrip('.')} has other fields than {', '.join(_FIELDS)}: they would be lost"
        )
    return CheckedTurn(
        _messages(turn.get("messages"), f"{where}messages", on_invalid),
        _text(turn.get("subject"), f"{where}subject", SUBJECT_LENGTH),
        _time(turn.get("occurred_at"), f"{where}occurred_at"),
        _text(turn.get("idempotency_key"), f"{where}idempotency_key", KEY_LENGTH),
        checked_language(turn.get("language"), f"{where}language"),
    )


def checked_language(value: object, where: str) -> str | None:
    """Return a language tag, or the name of a text search configuration, as it is stored; refuse what is neither."""
    if value is None:
        return None
    if isinstance(value, str) and _LANGUAGE.match(value):
        return value.lower().replace("_", "-")
    raise InvalidTurn(
        f"{where} is refused: None, a language tag such as de or pt-BR, or the name of one of Postgres's text search "
        "configurations such as german; at most 35 characters"
    )


def _messages(messages: object, where: str, on_invalid: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidTurn(f"{where} is a {type(messages).__name__}: a list of mappings with role and content")
    if not messages:
        raise InvalidTurn(f"{where} is empty: a turn has at least one message")
    return tuple(_message(message, f"{where}[{index}]", on_invalid) for index, message in enumerate(messages))


def _message(message: object, where: str, on_invalid: str) -> tuple[str, str]:
    if not isinstance(message, Mapping) or message.keys() != {"role", "content"}:
        raise InvalidTurn(f"{where} is no mapping of exactly role and content: anything else would be lost")
    role, content = message["role"], message["content"]
    if role not in ROLES:
        raise InvalidTurn(f"{where}.role is refused: one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise InvalidTurn(f"{where}.content is a {type(content).__name__}: a string")
    if len(content) > CONTENT_LENGTH:
        raise InvalidTurn(
            f"{where}.content has {len(content)} characters: at most {CONTENT_LENGTH}; split the message"
        )
    if found := _UNSTORABLE.search(content):
        if on_invalid == "reject":
            what = "a NUL" if found[0] == "\x00" else "half a surrogate pair"
            raise InvalidTurn(
                f"{where}.content has {what} at position {found.start()}, which Postgres cannot store: "
                'remove it or append with on_invalid="replace"'
            )
        content = _UNSTORABLE.sub(_REPLACEMENT, content)
    return role, content


def _text(value: object, where: str, longest: int) -> str | None:
    """Check a subject or a key, which may be personal: the message shows neither."""
    if value is None or (isinstance(value, str) and 0 < len(value) <= longest and storable(value)):
        return value
    raise InvalidTurn(
        f"{where} is refused: None or 1 to {longest} characters, neither NUL nor half a surrogate pair"
    )


def _time(value: object, where: str) -> datetime | None:
    # A year off the ends of what Python can count: in the time zone of whichever session reads it, it may be another.
    if value is None or (
        isinstance(value, datetime) and value.utcoffset() is not None and MINYEAR < value.year < MAXYEAR
    ):
        return value
    raise InvalidTurn(
        f"{where} is refused: None or a datetime with a time zone, of the years {MINYEAR + 1} to {MAXYEAR - 1}"
    )
