"""Arguments of operators as they arrive in `execute`: rendered templates are text, whatever they were before.

An optional argument that a template renders as nothing or as ``None`` was not given.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from parkkeeper.errors import InvalidArgument
from parkkeeper.names import checked_name

_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def given(value: Any) -> bool:
    """Tell whether an optional argument was given."""
    return not (value is None or (isinstance(value, str) and value.strip() in ("", "None")))


def whole(field: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Return a whole number between `minimum` and `maximum`, both included."""
    rule = f"a whole number from {minimum}" + (f" to {maximum}" if maximum is not None else "")
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        raise InvalidArgument(f"{field} {value!r} is refused: {rule}") from None
    if not isinstance(number, int) or isinstance(number, bool) or number < minimum:
        raise InvalidArgument(f"{field} {value!r} is refused: {rule}")
    if maximum is not None and number > maximum:
        raise InvalidArgument(f"{field} {value!r} is refused: {rule}")
    return number


def optional_whole(field: str, value: Any, minimum: int) -> int | None:
    """Return a whole number as :func:`whole` does, or None if it was not given."""
    return whole(field, value, minimum) if given(value) else None


def duration(field: str, value: Any) -> timedelta:
    """Return a timedelta, from one or from a number of seconds; the core says what is too long."""
    if isinstance(value, timedelta):
        return value
    try:
        return timedelta(seconds=float(value))
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"{field} {value!r} is refused: a timedelta or a number of seconds") from None


def optional_duration(field: str, value: Any) -> timedelta | None:
    """Return a timedelta as :func:`duration` does, or None if it was not given."""
    return duration(field, value) if given(value) else None


def optional_share(field: str, value: Any) -> float | None:
    """Return a number from 0 to 1, or None if it was not given."""
    if not given(value):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number <= 1:
        raise InvalidArgument(f"{field} {value!r} is refused: a number from 0 to 1, such as 0.05")
    return number


def flag(field: str, value: Any) -> bool:
    """Return a boolean, from one or from its name."""
    if isinstance(value, bool):
        return value
    try:
        return _FLAGS[str(value).strip().lower()]
    except KeyError:
        raise InvalidArgument(f"{field} {value!r} is refused: true or false") from None


def optional_text(value: Any) -> str | None:
    """Return text, or None if it was not given."""
    return str(value) if given(value) else None


def optional_name(field: str, value: Any) -> str | None:
    """Return the name of a queue, a kind or a scope, or None if it was not given."""
    return checked_name(field, value) if given(value) else None


def listed(field: str, value: Any) -> list[str]:
    """Return a list of texts, from one or from its form in JSON."""
    found = _list(value)
    if found is None or not all(isinstance(text, str) for text in found):
        raise InvalidArgument(f"{field} is refused: a list of texts, or one in JSON")
    return found


def optional_ids(field: str, value: Any) -> list[int] | None:
    """Return a list of whole numbers, from one or from its form in JSON, or None if it was not given."""
    if not given(value):
        return None
    found = _list(value)
    if found is None or not all(type(number) is int for number in found):
        raise InvalidArgument(f"{field} is refused: a list of whole numbers, or one in JSON")
    return found


def _list(value: Any) -> list[Any] | None:
    try:
        found = json.loads(value) if isinstance(value, str) else list(value)
    except (TypeError, ValueError):
        return None
    return found if isinstance(found, list) else None


def optional_moment(field: str, value: Any) -> datetime | None:
    """Return a time with a zone, from one or from its form in ISO 8601, or None if it was not given."""
    if not given(value):
        return None
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).strip())
    except ValueError:
        found = None
    if found is None or found.utcoffset() is None:
        raise InvalidArgument(
            f"{field} {str(value)[:60]!r} is refused: a time with a zone, such as 2026-01-31T12:00:00+00:00"
        )
    return found


def window(first_field: str, first: Any, end_field: str, end: Any) -> tuple[datetime | None, datetime | None]:
    """Return both bounds of a window as :func:`optional_moment` does; one without width is refused."""
    since, before = optional_moment(first_field, first), optional_moment(end_field, end)
    if since is not None and before is not None and since >= before:
        raise InvalidArgument(
            f"{first_field} {since.isoformat()} is refused: it is not before {end_field} {before.isoformat()}, "
            "so that nothing could be in the window"
        )
    return since, before


def names(field: str, value: str | Collection[str], allowed: Collection[str]) -> frozenset[str]:
    """Return a set of names, from one or several, each of them one of `allowed`."""
    chosen = frozenset([value] if isinstance(value, str) else value)
    if unknown := sorted(chosen - set(allowed)):
        raise InvalidArgument(f"{field} {unknown[0]!r} is refused: any of {', '.join(allowed)}")
    return chosen
