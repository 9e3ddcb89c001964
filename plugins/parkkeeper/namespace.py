"""The name of a namespace: one Postgres schema, validated in one place.

Every statement of Parkkeeper is qualified with a :class:`Namespace`; nothing else ever becomes part of an identifier.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from parkkeeper.errors import InvalidNamespace

_RULE = re.compile(r"[a-z][a-z0-9_]{0,47}\Z")
_RESERVED = frozenset({"public", "information_schema"})


@dataclass(frozen=True, slots=True)
class Namespace:
    """A schema name that is safe to render as an identifier.

    Parameters
    ----------
    name
        Lower-case ASCII letter first, then letters, digits and underscores, 48 characters at most; not ``pg_*``,
        ``public`` or ``information_schema``.

    Raises
    ------
    InvalidNamespace
        The name breaks the rule; the message shows the rule.
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _RULE.match(self.name):
            raise InvalidNamespace(
                f"namespace {self.name!r} is refused: 1 to 48 of a-z, 0-9 and _, starting with a letter"
            )
        if self.name in _RESERVED or self.name.startswith("pg_"):
            raise InvalidNamespace(
                f"namespace {self.name!r} is refused: it belongs to Postgres; choose another name"
            )

    @property
    def identifier(self) -> str:
        """The name as a quoted SQL identifier."""
        return f'"{self.name}"'

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, name: str | Namespace) -> Namespace:
        """Return `name` itself when it is a namespace already, else the validated namespace of that name."""
        return name if isinstance(name, Namespace) else cls(name)
