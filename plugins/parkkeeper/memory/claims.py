"""Which turn is formed next: taken one by one, just before it is extracted, and fairly between scopes."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from parkkeeper.database import statements
from parkkeeper.memory.breaker import PARKED_AT_ONCE
from parkkeeper.memory.circuit import Key
from parkkeeper.memory.extractors import Message
from parkkeeper.memory.session import Session

_SQL = statements("memory/claim")

#: How long a claim outlives the budget of its turn: the time to store what was extracted.
STORE_TIME = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Due:
    """A turn that was due, since `next_attempt_at`."""

    observation_id: int
    scope: str
    log_offset: int
    next_attempt_at: datetime


@dataclass(frozen=True, slots=True)
class Capped(Due):
    """It has had all its attempts: to be parked."""


@dataclass(frozen=True, slots=True)
class Claim(Due):
    """It is in hand, since `claimed_at`; `attempt` counts this one.

    `streak` is the streak of failures that its success would end; None when there is none.
    """

    occurred_at: datetime
    attempt: int
    token: UUID
    claimed_at: datetime
    streak: int | None
    messages: tuple[Message, ...] = field(repr=False)


def claim(
    session: Session,
    scope: str,
    token: UUID,
    key: Key,
    *,
    after: Due | None = None,
    max_attempts: int,
    turn_budget: timedelta,
) -> Claim | Capped | None:
    """Take the oldest due turn of `scope` behind `after` under `token`.

    None when all are taken or none is due, and while the circuit of `key` is open.
    """
    values = asdict(key) | {
        "scope": scope,
        "token": token,
        "after": "-infinity" if after is None else after.next_attempt_at,
        "after_offset": -1 if after is None else after.log_offset,
        "max_attempts": max_attempts,
        "at_once": list(PARKED_AT_ONCE),
        "lease": turn_budget + STORE_TIME,
    }
    row = session.execute(_SQL, "claim", values).fetchone()
    if row is None:
        return None
    due = (row.observation_id, scope, row.log_offset, row.next_attempt_at)
    if row.formation_attempts is None:
        return Capped(*due)
    messages: tuple[Message, ...] = tuple(
        {"role": role, "content": content}
        for role, content in zip(row.roles or (), row.contents or (), strict=True)
    )
    return Claim(*due, row.occurred_at, row.formation_attempts, token, row.claimed_at, row.streak, messages)


def hand_back(session: Session, tokens: Collection[UUID]) -> None:
    """Give the turns back whose work was cut short; their attempts do not count."""
    session.execute(_SQL, "hand_back", {"tokens": list(tokens)})


def due_scopes(session: Session, shard: tuple[int, int], limit: int | None) -> list[str]:
    """Return scopes with a turn that may be claimed now, in random order, of one of several shards.

    Parameters
    ----------
    shard
        Its number, from 0, and how many there are. Together they have every scope, each has it once.
    limit
        How many at most; None: all.
    """
    values = {"shard": shard[0], "shards": shard[1], "limit": limit}
    return [row.scope for row in session.execute(_SQL, "due_scopes", values)]


class DueTurns:
    """The turns of one batch, one scope after the other.

    Parameters
    ----------
    scope
        The only scope to take turns from; None goes round all that have due ones.
    shard
        When it goes round: only the scopes of this shard, of so many; see :func:`due_scopes`.
    limit
        How many turns the batch takes at most, so how many scopes it needs to know.
    """

    def __init__(
        self,
        session: Session,
        scope: str | None,
        key: Key,
        *,
        shard: tuple[int, int],
        limit: int,
        max_attempts: int,
        turn_budget: timedelta,
    ) -> None:
        self._session = session
        self._key = key
        self._shard = shard
        self._max_attempts = max_attempts
        self._turn_budget = turn_budget
        self._left = limit
        self._scope = scope
        self._scopes: deque[tuple[str, Due | None]] | None = None

    def _begun(self) -> deque[tuple[str, Due | None]]:
        """Return the scopes, each with the last turn that was taken of it; found when the first turn is."""
        if self._scopes is None:
            names = (
                due_scopes(self._session, self._shard, self._left) if self._scope is None else [self._scope]
            )
            self._scopes = deque((name, None) for name in names)
        return self._scopes

    def take(self, token: UUID) -> Claim | Capped | None:
        """Claim the next turn under `token`; None when there is none or the batch has had its share."""
        scopes = self._begun()
        while scopes and self._left:
            scope, last = scopes.popleft()
            taken = claim(
                self._session,
                scope,
                token,
                self._key,
                after=last,
                max_attempts=self._max_attempts,
                turn_budget=self._turn_budget,
            )
            if taken is not None:
                scopes.append((scope, taken))
                self._left -= 1
                return taken
        return None
