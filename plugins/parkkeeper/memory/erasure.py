"""Erasing turns: the words, what was derived from them, what failures said of them, and the digests that knew them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from parkkeeper.database import retried, statements, transaction
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import watermark
from parkkeeper.memory.outcomes import ErasureReceipt
from parkkeeper.memory.session import Session

_SQL = statements("memory/erasure")
_REQUESTED = statements("memory/erasure_request")
_REASON = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
#: What receipts always count, whether there was any or not.
KINDS = ("observation", "turn_message", "memory", "idempotency_digest")
#: What was deleted where nothing was to be deleted any more.
NONE = dict.fromkeys(KINDS, 0)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which turns are to go: those that meet all conditions that are given."""

    scope: str | None
    subject: str | None
    observation_ids: list[int] | None


def check_reason(reason: str) -> None:
    """Refuse a reason that is no code: a sentence might name somebody, and the receipt stays."""
    if not isinstance(reason, str) or not _REASON.match(reason):
        raise InvalidArgument(
            "reason is refused: a code of 1 to 64 of a-z, 0-9 and _, starting with a letter"
        )


def erase(
    session: Session,
    wanted: Wanted,
    reason: str,
    subject_digest: bytes | None,
    request_id: UUID | None = None,
) -> ErasureReceipt:
    """Erase the turns that meet every condition, in one transaction with their receipt.

    The receipt is a row of its own, or that of the request that is carried out.
    """
    where = asdict(wanted)

    def work() -> ErasureReceipt:
        with transaction(session.connection, "erase"):
            scopes = {row.scope for row in _matching(session, where)}
            watermark.lock(session, scopes)
            # Again under the locks: what was appended to these scopes meanwhile goes too; the locks of further scopes
            # would come out of order, so a turn there is left, and the receipt says so.
            ids = [row.observation_id for row in _matching(session, where) if row.scope in scopes]
            deleted = delete(session, ids)
            residual = _residual(session, where, ids)
            receipt = {
                "deleted": Jsonb(deleted),
                "residual": Jsonb(residual),
                "clean": not any(residual.values()),
            }
            if request_id is None:
                receipt |= {
                    "reason": reason,
                    "scope": wanted.scope,
                    "subject_digest": subject_digest,
                    "by_ids": wanted.observation_ids is not None,
                }
                row = session.execute(_SQL, "receipt", receipt).fetchone()
            else:
                row = session.execute(
                    _REQUESTED, "carried_out", receipt | {"request_id": request_id}
                ).fetchone()
            assert row is not None
            return receipt_of(row, deleted)

    return retried(session.connection, work)


def receipt_of(row: Any, deleted_now: dict[str, int]) -> ErasureReceipt:
    """Return the receipt that a row holds; JSON in the database keeps no order of kinds."""
    deleted, residual = (
        {kind: kept.get(kind, 0) for kind in KINDS} | kept for kept in (row.deleted, row.residual)
    )
    return ErasureReceipt(row.request_id, deleted, residual, row.clean, deleted_now)


def delete(session: Session, ids: list[int]) -> dict[str, int]:
    """Delete turns and all that came of them, under the locks of their scopes; return how many rows of each kind."""
    changes = _changes(session, ids)
    counts = dict.fromkeys(KINDS, 0)
    for name in ("delete_derived", "delete_source"):
        counts |= {row.kind: row.number for row in session.execute(_SQL, name, {"observation_ids": ids})}
    if changes:
        watermark.recompute(session, changes)
    return counts


def number_matching(session: Session, wanted: Wanted) -> int:
    """Return how many turns meet every condition now."""
    return len(_matching(session, asdict(wanted)))


def _matching(session: Session, where: dict[str, Any]) -> list[Any]:
    return session.execute(_SQL, "matching", where, prepare=False).fetchall()


def _changes(session: Session, ids: list[int]) -> dict[str, watermark.Change]:
    """Lock the turns in order and count what their going takes from each scope's numbers."""
    changes: dict[str, watermark.Change] = {}
    for row in session.execute(_SQL, "hold", {"observation_ids": ids}):
        change = changes.setdefault(row.scope, watermark.Change())
        change.erased += 1
        change.formed -= int(row.formed)
        if row.parked_class is not None:
            change.count_parked(row.parked_class, -1)
    return changes


def _residual(session: Session, where: dict[str, Any], ids: list[int]) -> dict[str, int]:
    left = ids + [row.observation_id for row in _matching(session, where)]
    rows = session.execute(_SQL, "residual", {"observation_ids": left})
    return dict.fromkeys(KINDS, 0) | {row.kind: row.number for row in rows}
