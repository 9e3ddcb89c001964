"""The rules for what a job is made of. Nothing that breaks one reaches the database, nor an error's message."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from parkkeeper.errors import InvalidArgument

#: The states in which a job holds its unique key unless it says otherwise.
UNIQUE_STATES = ("scheduled", "available", "running", "retryable")
STATES = (*UNIQUE_STATES, "completed", "failed", "cancelled")
#: A job is in one of these when it is enqueued; a key that is not held then would hold nothing.
FIRST_STATES = ("scheduled", "available")

SMALLINT = range(-(2**15), 2**15)
MAX_KEY_BYTES = 1_000
#: How many jobs one claim may ask for.
CLAIM_LIMITS = range(1, 100_001)
MAX_LEASE = timedelta(days=365)

# An escape of NUL is one only behind an even number of backslashes.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def whole_number(field: str, value: object, allowed: range) -> int:
    """Return `value` when it is a whole number (no bool) inside `allowed`."""
    if isinstance(value, int) and not isinstance(value, bool) and value in allowed:
        return value
    raise InvalidArgument(
        f"{field} {ascii(value)[:60]} is refused: a whole number from {allowed.start} to {allowed.stop - 1}"
    )


def job_ids(field: str, values: Collection[int]) -> list[int]:
    """Return ids of jobs, each once, in the order given."""
    if not isinstance(values, Collection) or isinstance(values, str | bytes):
        raise InvalidArgument(f"{field} is refused: a list of job ids")
    return list(dict.fromkeys(whole_number(field, value, range(1, 2**63)) for value in values))


def moment(field: str, value: datetime | None) -> datetime | None:
    """Return `value` when it is None or a datetime that knows its time zone."""
    if value is None or (isinstance(value, datetime) and value.utcoffset() is not None):
        return value
    raise InvalidArgument(f"{field} {ascii(value)[:60]} is refused: a datetime with a time zone, or None")


def lease_seconds(value: timedelta) -> float:
    """Return a lease in seconds."""
    if isinstance(value, timedelta) and timedelta(0) < value <= MAX_LEASE:
        return value.total_seconds()
    raise InvalidArgument(
        f"lease {ascii(value)[:60]} is refused: a timedelta above zero and at most {MAX_LEASE.days} days"
    )


def unique_key_bytes(value: str | bytes | None) -> bytes | None:
    """Return a unique key as it is stored; a str and its UTF-8 bytes are one key."""
    if value is None:
        return None
    try:
        key = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        key = None
    if isinstance(key, bytes) and 0 < len(key) <= MAX_KEY_BYTES:
        return key
    raise InvalidArgument(
        f"unique_key is refused: a str (encoded as UTF-8) or bytes, 1 to {MAX_KEY_BYTES} bytes; "
        "hash what is longer"
    )


def unique_state_names(value: Collection[str]) -> list[str] | None:
    """Return the states in which a key is held, None for the usual ones."""
    # A str is a collection too, of letters.
    states = list(value) if isinstance(value, Collection) and not isinstance(value, str) else []
    if set(FIRST_STATES) <= set(states) <= set(STATES):
        return None if set(states) == set(UNIQUE_STATES) else sorted(set(states), key=STATES.index)
    raise InvalidArgument(
        f"unique_states {ascii(value)[:120]} is refused: some of {', '.join(STATES)}, "
        f"{' and '.join(FIRST_STATES)} among them"
    )


def json_objects(field: str, values: Sequence[Mapping[str, Any] | None], first: int | None = None) -> str:
    """Return the JSON array of `values`, each an object; None is the empty one.

    `first` is the place in the field of the first of them, None when the field has no places.

    Raises
    ------
    InvalidArgument
        One of them is no mapping, or holds what JSON or Postgres cannot: NaN, an infinity, a NUL character, half a
        surrogate pair, an object of another type. The message says which one, and shows nothing of it.
    """
    try:
        return _encoded(values)
    except (TypeError, ValueError, RecursionError):
        for place, value in enumerate(values):
            _refuse_if_bad(field if first is None else f"{field}[{first + place}]", value)
        raise AssertionError("unreachable: one of the values is bad") from None


def _encoded(values: Iterable[Mapping[str, Any] | None]) -> str:
    objects = [{} if value is None else value for value in values]
    for place, value in enumerate(objects):
        if not isinstance(value, dict):
            if not isinstance(value, Mapping):
                raise TypeError("not a mapping")
            objects[place] = dict(value)
    text = json.dumps(objects, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text.encode()
    if "\\u0000" in text and _NUL.search(text):
        raise ValueError("NUL")
    return text


def _refuse_if_bad(field: str, value: Mapping[str, Any] | None) -> None:
    try:
        _encoded([value])
    except (TypeError, ValueError, RecursionError) as error:
        kind = type(error).__name__
        raise InvalidArgument(
            f"{field} is refused ({kind}): a mapping that JSON can hold, without NaN, infinities, NUL characters "
            "and half surrogate pairs"
        ) from None
