"""The rules for arguments of the memory's methods that are no names: refused before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from parkkeeper.errors import InvalidArgument
from parkkeeper.memory.circuit import Key
from parkkeeper.memory.extractors import Extractor
from parkkeeper.memory.turns import SUBJECT_LENGTH, storable

#: What a counting argument may be: at least one, and no more than Postgres counts with.
COUNT = range(1, 2**63)
QUERY_LENGTH = 10_000

_IDS = range(-(2**63), 2**63)


def check_counts(**numbers: int) -> None:
    """Refuse what is no whole number of 1 or more; a bool is no number."""
    for field, number in numbers.items():
        if not (_is_whole(number) and number in COUNT):
            raise InvalidArgument(
                f"{field} {ascii(number)[:60]} is refused: a whole number, at least 1 and below 2^63"
            )


def check_optional_counts(**numbers: int | None) -> None:
    """Refuse what is neither None nor a count."""
    check_counts(**{field: number for field, number in numbers.items() if number is not None})


def check_offset(field: str, value: object) -> None:
    """Refuse what is no whole number; one that no turn has is not refused here."""
    if not _is_whole(value):
        raise InvalidArgument(f"{field} is a {type(value).__name__}: a whole number")


def check_range(from_offset: int, to_offset: int | None) -> None:
    """Refuse what is no range of offsets; one that no turn has is not refused here."""
    for field, offset in (("from_offset", from_offset), ("to_offset", to_offset)):
        if offset is not None and not (_is_whole(offset) and 0 <= offset < 2**63):
            raise InvalidArgument(
                f"{field} {ascii(offset)[:60]} is refused: a whole number, at least 0 and below 2^63"
            )
    if to_offset is not None and to_offset < from_offset:
        raise InvalidArgument(f"to_offset {to_offset} is refused: it is below from_offset {from_offset}")


def check_shard(shard: object, scope: str | None) -> None:
    """Refuse what does not say which part of all scopes is meant, and a part of one scope."""
    whole = isinstance(shard, tuple) and len(shard) == 2 and all(_is_whole(number) for number in shard)
    if not (whole and 0 <= shard[0] < shard[1] < 2**31):  # type: ignore[index]
        raise InvalidArgument(
            f"shard {ascii(shard)[:60]} is refused: its number, from 0, and how many there are, e.g. (0, 4)"
        )
    if scope is not None and shard != (0, 1):
        raise InvalidArgument(f"shard {shard} is refused: scope names the only one, which has no parts")


def check_place(after: tuple[str, int] | None) -> None:
    """Refuse what does not say where a page ended."""
    if after is None:
        return
    if not isinstance(after, Sequence) or len(after) != 2 or not isinstance(after[0], str):
        raise InvalidArgument("after is refused: a pair of scope and offset, those of the last turn seen")
    check_offset("after[1]", after[1])


def check_subject(subject: object) -> None:
    """Refuse what is neither None nor a subject that a turn may have, without showing it."""
    if subject is not None and not (
        isinstance(subject, str) and 0 < len(subject) <= SUBJECT_LENGTH and storable(subject)
    ):
        raise InvalidArgument(f"subject is refused: 1 to {SUBJECT_LENGTH} characters")


def check_query(query: object) -> None:
    """Refuse what cannot be looked for, without showing it."""
    if not isinstance(query, str) or len(query) > QUERY_LENGTH or not storable(query):
        raise InvalidArgument(
            f"query is refused: at most {QUERY_LENGTH} characters, neither NUL nor half a surrogate pair"
        )


def checked_ids(observation_ids: Iterable[int] | None) -> list[int] | None:
    """Return ids as a list, whatever yields them."""
    if observation_ids is None:
        return None
    if not isinstance(observation_ids, Iterable) or isinstance(observation_ids, str | bytes):
        raise InvalidArgument(
            f"observation_ids is a {type(observation_ids).__name__}: a list of whole numbers"
        )
    ids = list(observation_ids)
    if not all(_is_whole(number) and number in _IDS for number in ids):
        raise InvalidArgument(
            "observation_ids is refused: a list of whole numbers, each an id that append returned"
        )
    return ids


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def checked_extractor(extractor: object, turn_budget: object) -> Key:
    """Refuse what cannot extract or leaves it no time; return whose circuit it is."""
    if not isinstance(turn_budget, timedelta) or turn_budget <= timedelta(0):
        raise InvalidArgument(f"turn_budget {turn_budget} is refused: a timedelta above zero")
    if isinstance(extractor, type) or not isinstance(extractor, Extractor):
        raise InvalidArgument(
            f"extractor is a {type(extractor).__name__}: it needs name, version and extract(turn); "
            "parkkeeper.memory.extractors.load returns a shipped one by its name"
        )
    return Key.of(extractor)
