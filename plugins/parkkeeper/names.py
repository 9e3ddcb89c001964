"""The rule for the names that people give to queues, kinds and scopes."""

from __future__ import annotations

import unicodedata

from parkkeeper.errors import InvalidName

NAME_LENGTH = 200


def checked_name(field: str, value: object) -> str:
    """Return `value` when it is a name: 1 to 200 characters, none of them a control character, no blank ends.

    Raises
    ------
    InvalidName
        It is not; the message names the field, the value (cut to 60 characters) and the rule.
    """
    if (
        isinstance(value, str)
        and 0 < len(value) <= NAME_LENGTH
        and value == value.strip()
        and not any(unicodedata.category(character) in ("Cc", "Cs") for character in value)
    ):
        return value
    raise InvalidName(
        f"{field} {ascii(value)[:60]} is refused: 1 to {NAME_LENGTH} characters, no control characters, no blank ends"
    )
