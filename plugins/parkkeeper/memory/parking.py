"""Parked turns: which they are, taking them out of their parking, and the sweep that tends them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from parkkeeper.database import retried, statements, transaction
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import watermark
from parkkeeper.memory.arguments import check_counts
from parkkeeper.memory.breaker import PARKED_AT_ONCE, PROVIDER_CLASSES
from parkkeeper.memory.extractors import ERROR_CLASSES
from parkkeeper.memory.outcomes import ParkedTurn, SweepOutcome
from parkkeeper.memory.session import Session
from parkkeeper.memory.settling import park_capped

_SQL = statements("memory/parking")


@dataclass(frozen=True, slots=True)
class SweepPolicy:
    """What a sweep does.

    Attributes
    ----------
    max_attempts
        Turns with this many attempts that nobody is forming are parked, unless their last failure may be an outage's.
    unpark_classes
        Turns that were parked for one of these classes are unparked, once their provider's circuit is closed; empty for
        none.
    max_park_count
        A turn that was parked more often than this stays parked.
    limit
        The most turns that each of the three steps touches.
    """

    max_attempts: int = 6
    unpark_classes: tuple[str, ...] = PROVIDER_CLASSES
    max_park_count: int = 3
    limit: int = 10_000

    def __post_init__(self) -> None:
        check_counts(max_attempts=self.max_attempts, max_park_count=self.max_park_count, limit=self.limit)
        check_classes(self.unpark_classes)


def check_classes(classes: Collection[str]) -> None:
    """Refuse what is no class of error."""
    for error_class in classes:
        if error_class not in ERROR_CLASSES:
            raise InvalidArgument(
                f"error_class {error_class!r} is refused: one of {', '.join(ERROR_CLASSES)}"
            )


DEFAULT_POLICY = SweepPolicy()


def parked(
    session: Session, scope: str | None, *, after: tuple[str, int] | None, limit: int
) -> list[ParkedTurn]:
    """Return a page of parked turns by scope and offset, those behind `after`."""
    after_scope, after_offset = after or (None, None)
    values = {"scope": scope, "after_scope": after_scope, "after_offset": after_offset, "limit": limit}
    return [ParkedTurn(*row) for row in session.execute(_SQL, "parked", values, prepare=False)]


def unpark(
    session: Session,
    *,
    observation_ids: Sequence[int] | None = None,
    scope: str | None = None,
    classes: Sequence[str] | None = None,
    older_than: timedelta | None = None,
    limit: int | None = None,
    max_park_count: int | None = None,
    answering: bool = False,
) -> int:
    """Put the parked turns that meet every condition back into the backlog; return how many.

    `answering` leaves those parked whose provider does not answer at present.
    """
    values = {
        "observation_ids": None if observation_ids is None else list(observation_ids),
        "scope": scope,
        "classes": None if classes is None else list(classes),
        "older_than": older_than,
        "limit": limit,
        "max_park_count": max_park_count,
        "answering": answering,
    }

    def work() -> int:
        with transaction(session.connection, "unpark"):
            chosen = session.execute(_SQL, "to_unpark", values, prepare=False).fetchall()
            if not chosen:
                return 0
            watermark.lock(session, {row.scope for row in chosen})
            stamps = {
                "observation_ids": [row.observation_id for row in chosen],
                "parked_at": [row.parked_at for row in chosen],
            }
            rows = session.execute(_SQL, "unpark", stamps).fetchall()
            changes = {scope: watermark.Change() for scope in {row.scope for row in rows}}
            for row in rows:
                changes[row.scope].count_parked(row.error_class, -1)
                changes[row.scope].reopen(row.log_offset)
            watermark.recompute(session, changes)
            return len(rows)

    return retried(session.connection, work)


def sweep(session: Session, policy: SweepPolicy) -> SweepOutcome:
    """Park what is at its cap, return claims that ran out, unpark by `policy`: each step a transaction of its own."""
    limit = {"limit": policy.limit}
    caps = {"max_attempts": policy.max_attempts, "at_once": list(PARKED_AT_ONCE)}
    capped = session.execute(_SQL, "capped", limit | caps).fetchall()
    scopes, ids = {row.scope for row in capped}, [row.observation_id for row in capped]
    newly_parked = park_capped(session, scopes, ids, max_attempts=policy.max_attempts)
    returned = session.execute(_SQL, "return_expired", limit).rowcount
    unparked = unpark(
        session,
        classes=policy.unpark_classes,
        max_park_count=policy.max_park_count,
        limit=policy.limit,
        answering=True,
    )
    by_class = {row.error_class: row.parked for row in session.execute(_SQL, "parked_totals", {})}
    return SweepOutcome(newly_parked, unparked, returned, sum(by_class.values()), by_class)
