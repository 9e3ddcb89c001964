"""Erasures that are asked for first and carried out later, by somebody who is told only the number of the request."""

from __future__ import annotations

import hmac
from typing import Any
from uuid import UUID

from parkkeeper.database import refuse_open_transaction, statements
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import erasure
from parkkeeper.memory.digests import Digests
from parkkeeper.memory.erasure import Wanted
from parkkeeper.memory.errors import UnknownRequest
from parkkeeper.memory.outcomes import ErasureReceipt, ErasureRequest
from parkkeeper.memory.session import Session

_SQL = statements("memory/erasure_request")

#: How many subjects are compared with a digest at a time.
SUBJECTS = 10_000


def checked_id(request_id: object) -> UUID:
    """Return the id of a request, from one or from its text."""
    try:
        return request_id if isinstance(request_id, UUID) else UUID(str(request_id))
    except ValueError:
        # Not shown: whoever takes the field for another may have given a person's name.
        raise InvalidArgument(
            "request_id is refused: the UUID that the request of an erasure returned"
        ) from None


def request(session: Session, wanted: Wanted, reason: str, subject_digest: bytes | None) -> ErasureRequest:
    """Store what is to be erased, without the subject."""
    values = {
        "reason": reason,
        "scope": wanted.scope,
        "subject_digest": subject_digest,
        "observation_ids": wanted.observation_ids,
    }
    row = session.execute(_SQL, "request", values).fetchone()
    assert row is not None
    return _of(_found(session, row.request_id), erasure.number_matching(session, wanted))


def look(session: Session, request_id: UUID, digests: Digests) -> ErasureRequest:
    """Return a request, and how many turns meet its conditions now."""
    row = _found(session, request_id)
    wanted = None if row.clean else _wanted(session, row, digests)
    return _of(row, 0 if wanted is None else erasure.number_matching(session, wanted))


def waiting(session: Session, limit: int, digests: Digests) -> list[ErasureRequest]:
    """Return the requests that are not carried out, each as :func:`look` does."""
    rows = session.execute(_SQL, "waiting", {"limit": limit}).fetchall()
    return [look(session, row.request_id, digests) for row in rows]


def carry_out(session: Session, request_id: UUID, digests: Digests) -> ErasureReceipt:
    """Erase what a request asks for, once; what was not clean is tried again."""
    refuse_open_transaction(session.connection, "erase_requested")
    row = _found(session, request_id)
    if row.clean:
        return erasure.receipt_of(row, erasure.NONE)
    # A subject of whom there is nothing is found by no digest; then nothing is there to erase, which is a receipt too.
    wanted = _wanted(session, row, digests) or Wanted(None, None, [])
    return erasure.erase(session, wanted, row.reason, row.subject_digest, request_id)


def _found(session: Session, request_id: UUID) -> Any:
    row = session.execute(_SQL, "requested", {"request_id": request_id}).fetchone()
    if row is None or (row.by_ids and row.observation_ids is None and not row.clean):
        raise UnknownRequest(
            f"request {request_id} is unknown in namespace {session.namespace}: no erasure was requested under this id"
        )
    return row


def _of(row: Any, turns: int) -> ErasureRequest:
    receipt = None if row.erased_at is None else erasure.receipt_of(row, erasure.NONE)
    return ErasureRequest(
        request_id=row.request_id,
        requested_at=row.requested_at,
        reason=row.reason,
        scope=row.scope,
        by_subject=row.subject_digest is not None,
        by_ids=row.by_ids,
        turns=turns,
        receipt=receipt,
    )


def _wanted(session: Session, row: Any, digests: Digests) -> Wanted | None:
    """Return the conditions of a request; None when its subject has no turn."""
    subject = None
    if row.subject_digest is not None:
        subject = _subject(session, row.subject_digest, digests)
        if subject is None:
            return None
    return Wanted(row.scope, subject, row.observation_ids)


def _subject(session: Session, digest: bytes, digests: Digests) -> str | None:
    """Find the subject of a digest among those that there are; None: there is nothing of this subject."""
    after = ""
    while True:
        rows = session.execute(_SQL, "subjects", {"after": after, "limit": SUBJECTS}).fetchall()
        for row in rows:
            if hmac.compare_digest(digests.subject(row.subject), digest):
                return str(row.subject)
        if len(rows) < SUBJECTS:
            return None
        after = rows[-1].subject
