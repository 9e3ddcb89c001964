"""Readers of arguments that are more than a word; each refusal is one line and says the rule."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)?")
_UNITS = {"ms": "milliseconds", None: "seconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(text: str | timedelta) -> timedelta:
    """Read ``30s``, ``90m``, ``72h``, ``7d``, ``50ms`` or whole seconds."""
    if isinstance(text, timedelta):
        return text
    match = _DURATION.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text[:40]!r} is no duration: whole seconds, or a whole number with ms, s, m, h or d, e.g. 72h"
        ) from None


def duration_or_default(text: str | timedelta) -> timedelta | str:
    """Read ``default``, or what :func:`duration` reads."""
    return text if text == "default" else duration(text)


def moment(text: str | datetime) -> datetime:
    """Read an ISO 8601 time that has a time zone."""
    try:
        found = text if isinstance(text, datetime) else datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.utcoffset() is not None else _no_zone(found)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            "it is no ISO 8601 time with a time zone, e.g. 2026-01-31T12:00:00Z"
        ) from None


def _no_zone(found: datetime) -> datetime:
    raise ValueError(found)


def numbers(field: str, text: str | None) -> list[int] | None:
    """Read whole numbers with commas between them; None when there is no text."""
    if text is None:
        return None
    found = text.split(",")
    if not all(number.strip().isascii() and number.strip().isdecimal() for number in found):
        raise typer.BadParameter("whole numbers with commas between them, e.g. 7,8,9", param_hint=field)
    return [int(number) for number in found]


def json_object(text: str | bytes) -> dict[str, Any]:
    """Read one JSON object.

    Raises
    ------
    ValueError
        It is none; the message says what is wrong and shows nothing of it.
    """
    try:
        # Not left to the decoder, which takes a line for UTF-16 that has a zero in it.
        decoded = text if isinstance(text, str) else text.decode("utf-8-sig")
        found = json.loads(decoded, parse_constant=_not_json, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg.removesuffix(' at')} at character {error.pos + 1})") from None
    except UnicodeDecodeError:
        raise ValueError("not valid UTF-8") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _not_json(constant: str) -> Any:
    raise ValueError(f"not JSON ({constant} is no number there)")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("not storable (a number is too large)")
    return number


def attribute(field: str, reference: str) -> Any:
    """Import what ``module:attribute`` names; a module beside the working directory is found too."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise typer.BadParameter(
            f"{reference!r} is refused: module:attribute, e.g. tasks:handle", param_hint=field
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        # What a module does when it is imported is its own: only the kind of its failure is ours to show.
        raise typer.BadParameter(
            f"module {module!r} cannot be imported ({type(error).__name__}): see `python -c 'import {module}'`",
            param_hint=field,
        ) from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise typer.BadParameter(f"module {module!r} has no {name!r}", param_hint=field)
        found = getattr(found, part)
    return found
