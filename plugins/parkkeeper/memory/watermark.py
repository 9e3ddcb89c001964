"""The formed side of the watermark: its lock, and the one function that says how far a scope is formed.

Whatever forms, parks, unparks, rebuilds or erases turns calls :func:`lock` first and :func:`recompute` last, in one
transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from parkkeeper.database import statements
from parkkeeper.memory.session import Session

_SQL = statements("memory/watermark")


@dataclass(slots=True)
class Change:
    """What a transaction did to one scope, as differences of counts.

    `reopened` is the lowest offset that went back to the backlog; `replaced` says that memory of formed turns did not
    stay what it was; `classes` splits `parked` by class of error.
    """

    formed: int = 0
    parked: int = 0
    erased: int = 0
    reopened: int | None = None
    replaced: bool = False
    classes: Counter[str] = field(default_factory=Counter)

    @property
    def cause(self) -> str:
        """Why the number of parked turns changed; one transaction does one of these."""
        if self.erased:
            return "erase"
        if self.reopened is not None:
            return "unpark"
        return "rebuild" if self.replaced else "park"

    def count_parked(self, error_class: str, number: int) -> None:
        """Take in that `number` turns were parked for `error_class`; negative when they no longer are."""
        self.parked += number
        self.classes[error_class] += number

    def reopen(self, log_offset: int) -> None:
        """Take in that the turn at `log_offset` is to be formed again."""
        self.reopened = log_offset if self.reopened is None else min(self.reopened, log_offset)


def lock(session: Session, scopes: Collection[str]) -> None:
    """Lock the formed side of `scopes`, in order, before any of their turns."""
    session.execute(_SQL, "lock", {"scopes": sorted(scopes)})


def recompute(session: Session, changes: Mapping[str, Change]) -> None:
    """Take in `changes` by scope and find anew how far each scope is formed; its lock is held since :func:`lock`."""
    classes, numbers = [], []
    for scope, change in sorted(changes.items()):
        by_class = {error_class: number for error_class, number in change.classes.items() if number}
        if by_class:
            counts = {"classes": list(by_class), "parked": list(by_class.values())}
            classes.append({"scope": scope, "change": change.cause, **counts})
        numbers.append(
            {
                "scope": scope,
                "formed": change.formed,
                "parked": change.parked,
                "erased": change.erased,
                "reopened": change.reopened,
                "replaced": change.replaced,
            }
        )
    session.execute_each(_SQL, "count_parked", classes)
    session.execute_each(_SQL, "recompute", numbers)
