"""Parked turns: which they are, taking them out of their parking, and the sweep that tends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from parkkeeper.database import refuse_open_transaction, retried, statements, transaction
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import watermark
from parkkeeper.memory.arguments import check_counts
from parkkeeper.memory.breaker import PARKED_AT_ONCE, PROVIDER_CLASSES
from parkkeeper.memory.extractors import ERROR_CLASSES
from parkkeeper.memory.outcomes import ParkedTurn, SweepOutcome
from parkkeeper.memory.session import Session
from parkkeeper.memory.settling import park_capped
from parkkeeper.names import checked_name

_SQL = statements("memory/parking")

#: How many turns one transaction unparks: their scopes are locked as long as that takes.
TURNS_PER_STEP = 10_000
#: How many scopes a sweep names.
LISTED_SCOPES = 100


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
        The most turns that are parked, and the most claims that are returned.
    scope
        The only scope that is looked at; None: all.
    parked_for
        Turns that were parked less than this ago stay parked; None: however short it was.
    unpark_limit
        The most turns that one sweep unparks, the longest parked first: what formation can take up until the next one.
    """

    max_attempts: int = 6
    unpark_classes: tuple[str, ...] = PROVIDER_CLASSES
    max_park_count: int = 3
    limit: int = 10_000
    scope: str | None = None
    parked_for: timedelta | None = None
    unpark_limit: int = 10_000

    def __post_init__(self) -> None:
        check_counts(
            max_attempts=self.max_attempts,
            max_park_count=self.max_park_count,
            limit=self.limit,
            unpark_limit=self.unpark_limit,
        )
        check_classes(self.unpark_classes)
        check_parked_for("parked_for", self.parked_for)
        if self.scope is not None:
            checked_name("scope", self.scope)


def check_parked_for(field: str, value: object) -> None:
    """Refuse what is no time that a turn can have been parked."""
    if value is not None and not isinstance(value, timedelta):
        raise InvalidArgument(f"{field} is a {type(value).__name__}: a timedelta")


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


@dataclass(frozen=True, slots=True)
class Which:
    """Which parked turns are meant: those that meet every condition that is given.

    `answering` leaves out those whose provider does not answer at present.
    """

    observation_ids: list[int] | None = None
    scope: str | None = None
    classes: list[str] | None = None
    older_than: timedelta | None = None
    limit: int | None = None
    max_park_count: int | None = None
    answering: bool = False


def unpark(session: Session, which: Which, *, dry_run: bool = False) -> Counter[str]:
    """Put parked turns back into the backlog, the longest parked first; return how many of each class.

    They are chosen once and put back in steps, so that no scope is locked for long and none is put back twice. With
    `dry_run` nothing is written: how many would be put back.
    """
    refuse_open_transaction(session.connection, "unpark")
    rows = session.execute(_SQL, "to_unpark", asdict(which), prepare=False).fetchall()
    if dry_run:
        return Counter(row.error_class for row in rows)
    unparked: Counter[str] = Counter()
    for start in range(0, len(rows), TURNS_PER_STEP):
        unparked += _unpark(session, rows[start : start + TURNS_PER_STEP])
    return unparked


def _unpark(session: Session, chosen: Sequence[Any]) -> Counter[str]:
    stamps = {
        "observation_ids": [row.observation_id for row in chosen],
        "parked_at": [row.parked_at for row in chosen],
    }

    def work() -> Counter[str]:
        with transaction(session.connection, "unpark"):
            watermark.lock(session, {row.scope for row in chosen})
            rows = session.execute(_SQL, "unpark", stamps).fetchall()
            changes = {scope: watermark.Change() for scope in {row.scope for row in rows}}
            for row in rows:
                changes[row.scope].count_parked(row.error_class, -1)
                changes[row.scope].reopen(row.log_offset)
            watermark.recompute(session, changes)
            return Counter(row.error_class for row in rows)

    return retried(session.connection, work)


def sweep(session: Session, policy: SweepPolicy, dry_run: bool) -> SweepOutcome:
    """Park what is at its cap, return claims that ran out, unpark by `policy`; each step is transactions of its own."""
    refuse_open_transaction(session.connection, "sweep")
    where = {"scope": policy.scope, "limit": policy.limit}
    caps = {"max_attempts": policy.max_attempts, "at_once": list(PARKED_AT_ONCE)}
    capped = session.execute(_SQL, "capped", where | caps, prepare=False).fetchall()
    which = Which(
        scope=policy.scope,
        classes=list(policy.unpark_classes),
        older_than=policy.parked_for,
        limit=policy.unpark_limit,
        max_park_count=policy.max_park_count,
        answering=True,
    )
    scopes, ids = {row.scope for row in capped}, [row.observation_id for row in capped]
    if dry_run:
        newly_parked = len(ids)
        returned = _number(session.execute(_SQL, "expired", where | {"but": ids}, prepare=False))
    else:
        newly_parked = park_capped(session, scopes, ids, max_attempts=policy.max_attempts)
        returned = session.execute(_SQL, "return_expired", where, prepare=False).rowcount
    unparked = unpark(session, which, dry_run=dry_run)
    by_class = {row.error_class: row.parked for row in session.execute(_SQL, "parked_totals", {})}
    by_scope = session.execute(_SQL, "parked_scopes", {"limit": LISTED_SCOPES})
    return SweepOutcome(
        parked=newly_parked,
        unparked=unparked.total(),
        claims_returned=returned,
        parked_total=sum(by_class.values()),
        by_class=by_class,
        unparked_by_class=dict(unparked),
        by_scope={row.scope: row.parked for row in by_scope},
    )


def _number(found: Any) -> int:
    return int(found.fetchone().number)
