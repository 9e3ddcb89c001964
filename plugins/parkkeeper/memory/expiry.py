"""Erasures of more turns than one transaction should delete, by age and of a whole scope: each step is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from parkkeeper.database import retried, statements, transaction
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import watermark
from parkkeeper.memory.erasure import KINDS, delete
from parkkeeper.memory.outcomes import ErasureReceipt
from parkkeeper.memory.session import Session

_SQL = statements("memory/erasure")

#: How many turns one step deletes: appends and formation of their scopes wait as long as that takes.
TURNS_PER_STEP = 1_000
LONGEST_AGE = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to go: the statements that find the next turns and count what is left, and their parameters."""

    action: str
    reason: str
    following: str
    left: str
    where: dict[str, Any]


def check_age(older_than: object) -> None:
    """Refuse what is no age that a turn may have."""
    if not isinstance(older_than, timedelta) or not timedelta(0) < older_than <= LONGEST_AGE:
        raise InvalidArgument(
            f"older_than {older_than} is refused: a timedelta above zero, at most 100 years"
        )


def expire(session: Session, older_than: timedelta, reason: str) -> ErasureReceipt:
    """Erase turns that were stored longer ago than `older_than`, of all scopes, the oldest first.

    Each step of up to 1,000 turns is a transaction, in which the receipt takes in what it deletes: one that is cut
    short has deleted what its receipt says, and is not `clean`.

    Parameters
    ----------
    older_than
        Counted from when a turn was stored, not from when it was said, by the database's clock.
    reason
        A code such as ``retention``, as for `erase`.
    """
    row = session.execute(_SQL, "cutoff", {"older_than": older_than}).fetchone()
    assert row is not None
    return _erase(session, _Plan("expire", reason, "expired", "left_of_age", {"before": row.before}))


def drop(session: Session, scope: str, reason: str) -> ErasureReceipt:
    """Erase all turns of `scope`, in steps as `expire` does, and what is kept about it beside its numbers.

    Its offsets stay assigned and count as erased, and a later append goes on behind them. What is appended while
    this runs stays, and the receipt says so.

    Parameters
    ----------
    scope
        Whose memory.
    reason
        A code such as ``account_closed``, as for `erase`.
    """
    row = session.execute(_SQL, "last_offset", {"scope": scope}).fetchone()
    where = {"scope": scope, "last_offset": -1 if row is None else row.log_offset}
    return _erase(
        session,
        _Plan("drop", reason, "of_scope", "left_of_scope", where),
        lambda: _forget(session, scope),
    )


def _forget(session: Session, scope: str) -> None:
    # Formation notes a scope's languages under this lock: none that it notes meanwhile goes.
    watermark.lock(session, [scope])
    session.execute(_SQL, "forget_scope", {"scope": scope})


def _erase(session: Session, plan: _Plan, also: Callable[[], Any] | None = None) -> ErasureReceipt:
    deleted: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    opened = _receipt(session, plan)
    after = {"after": "-infinity", "after_id": 0, "after_offset": -1, "limit": TURNS_PER_STEP}
    while True:
        rows = session.execute(_SQL, plan.following, plan.where | after, prepare=False).fetchall()
        if not rows:
            break
        deleted += _step(session, opened, rows, deleted)
        last = rows[-1]
        after |= {"after": last.ingested_at, "after_id": last.observation_id, "after_offset": last.log_offset}
    residual = _close(session, plan, opened, also)
    return ErasureReceipt(opened, _kinds(deleted), residual, not any(residual.values()), _kinds(deleted))


def _receipt(session: Session, plan: _Plan) -> UUID:
    values = {
        "action": plan.action,
        "reason": plan.reason,
        "scope": plan.where.get("scope"),
        "before": plan.where.get("before"),
        "deleted": Jsonb(dict.fromkeys(KINDS, 0)),
    }

    def work() -> UUID:
        with transaction(session.connection, plan.action):
            row = session.execute(_SQL, "open_receipt", values).fetchone()
            return row.request_id  # type: ignore[union-attr, no-any-return]

    return retried(session.connection, work)


def _step(session: Session, request_id: UUID, rows: list[Any], before: Counter[str]) -> Counter[str]:
    """Delete `rows` and add them to the receipt; return how many rows of each kind that were."""

    def work() -> Counter[str]:
        with transaction(session.connection, "erase"):
            watermark.lock(session, {row.scope for row in rows})
            deleted = Counter(delete(session, [row.observation_id for row in rows]))
            receipt = {"request_id": request_id, "deleted": Jsonb(_kinds(before + deleted))}
            session.execute(_SQL, "add_to_receipt", receipt)
            return deleted

    return retried(session.connection, work)


def _close(session: Session, plan: _Plan, request_id: UUID, also: Callable[[], Any] | None) -> dict[str, int]:
    """Count what meets the same condition still, and close the receipt with that."""

    def work() -> dict[str, int]:
        with transaction(session.connection, plan.action):
            if also is not None:
                also()
            row = session.execute(_SQL, plan.left, plan.where).fetchone()
            residual = {"observation": row.number}  # type: ignore[union-attr]
            values = {"request_id": request_id, "residual": Jsonb(residual), "clean": not row.number}  # type: ignore[union-attr]
            session.execute(_SQL, "close_receipt", values)
            return residual

    return retried(session.connection, work)


def _kinds(counts: Counter[str]) -> dict[str, int]:
    """Return counts with every kind, also those of which there was none."""
    return dict.fromkeys(KINDS, 0) | dict(counts)
