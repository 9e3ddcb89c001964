"""How an attempt ends: formed, tried again later, deferred, or parked. Each is one transaction, fenced by the token."""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Sequence
from datetime import timedelta

import psycopg

from parkkeeper.database import retried, statements, transaction
from parkkeeper.error_text import kept_error
from parkkeeper.memory import watermark
from parkkeeper.memory.claims import Claim
from parkkeeper.memory.extractors import ExtractionError, Extractor, Memory
from parkkeeper.memory.search import spaced
from parkkeeper.memory.session import Session

_SQL = statements("memory/formation")
_PARKING = statements("memory/parking")
_LOG = logging.getLogger(__name__)

#: Classes that another attempt does not cure.
PARKED_AT_ONCE = frozenset({"refusal", "too_long"})
FIRST_WAIT = timedelta(seconds=10)
LONGEST_WAIT = timedelta(hours=1)
SHORTEST_DEFERRAL = timedelta(seconds=1)
#: How often a turn waits at its provider's wish without spending an attempt; counted anew after an unpark.
MAX_DEFERRALS = 10

FORMED, FAILED, DEFERRED, PARKED, DISCARDED = "formed", "failed", "deferred", "parked", "discarded"


def form(session: Session, claim: Claim, extractor: Extractor, memories: Sequence[Memory]) -> str:
    """Store what was extracted and mark the turn formed; ``discarded`` when the claim no longer stands."""
    values = {
        "observation_id": claim.observation_id,
        "token": claim.token,
        "extractor": extractor.name,
        "extractor_version": extractor.version,
        "kinds": [memory.kind for memory in memories],
        "texts": [memory.text for memory in memories],
        "search_texts": [_search_text(memory.text) for memory in memories],
    }

    def work() -> str:
        with transaction(session.connection, "form_batch"):
            watermark.lock(session, [claim.scope])
            if session.execute(_SQL, "form", values).fetchone() is None:
                return DISCARDED
            watermark.recompute(session, {claim.scope: watermark.Change(formed=1)})
            return FORMED

    return retried(session.connection, work)


def _search_text(text: str) -> str | None:
    found = spaced(text)
    return None if found == text else found


def fail(session: Session, claim: Claim, error: ExtractionError, *, max_attempts: int) -> str:
    """Record a failed attempt; its text stays on the row and nowhere else.

    Returns
    -------
    str
        ``failed`` when the turn is tried again after a while, ``deferred`` when no attempt was spent, ``parked`` when
        it was the last attempt, ``discarded`` when the claim no longer stands.
    """
    try:
        return _fail(session, claim, error, _text(error), max_attempts)
    except (psycopg.DataError, psycopg.IntegrityError, UnicodeError):
        # Whatever the text is, the failure is recorded: a turn whose failure cannot be told would never be parked.
        return _fail(session, claim, error, None, max_attempts)


def _text(error: ExtractionError) -> str | None:
    try:
        return kept_error(error.message)
    except Exception:  # the message's own __str__ may raise anything
        _LOG.info("the text of a %s failure cannot be read; its class is recorded alone", error.error_class)
        return None


def _fail(session: Session, claim: Claim, error: ExtractionError, text: str | None, max_attempts: int) -> str:
    values = {
        "observation_id": claim.observation_id,
        "token": claim.token,
        "error_class": error.error_class,
        "error": text,
    }
    deferral = _deferral(claim, error)
    if deferral is None and claim.attempt >= (1 if error.error_class in PARKED_AT_ONCE else max_attempts):
        return _park(session, claim.scope, values)
    wait = deferral or _backoff(claim.attempt) * random.uniform(1, 1.2)
    values |= {"returned": int(deferral is not None), "wait": wait}
    if not session.execute(_SQL, "retry_later", values).rowcount:
        return DISCARDED
    return FAILED if deferral is None else DEFERRED


def _backoff(attempt: int) -> timedelta:
    # The exponent is bounded too: long before an attempt of the hundreds, the wait would be longer than a timedelta.
    return min(FIRST_WAIT * (1 << min(attempt - 1, 10)), LONGEST_WAIT)


def _deferral(claim: Claim, error: ExtractionError) -> timedelta | None:
    """Return how long the provider asked to wait, when that is why the attempt failed and it may still ask."""
    if error.error_class != "rate_limited" or error.retry_after is None or claim.deferrals >= MAX_DEFERRALS:
        return None
    return min(max(error.retry_after, SHORTEST_DEFERRAL), LONGEST_WAIT)


def _park(session: Session, scope: str, values: dict[str, object]) -> str:
    def work() -> str:
        with transaction(session.connection, "form_batch"):
            watermark.lock(session, [scope])
            if not session.execute(_SQL, "park", values).rowcount:
                return DISCARDED
            change = watermark.Change()
            change.count_parked(str(values["error_class"]), 1)
            watermark.recompute(session, {scope: change})
            return PARKED

    return retried(session.connection, work)


def park_capped(
    session: Session, scopes: Collection[str], observation_ids: Sequence[int], *, max_attempts: int
) -> int:
    """Park those of the turns that still have had all their attempts and that nobody is forming; return how many."""
    values = {"observation_ids": list(observation_ids), "max_attempts": max_attempts}

    def work() -> int:
        with transaction(session.connection, "park"):
            watermark.lock(session, scopes)
            rows = session.execute(_PARKING, "park_capped", values).fetchall()
            changes = {scope: watermark.Change() for scope in {row.scope for row in rows}}
            for row in rows:
                changes[row.scope].count_parked(row.error_class, 1)
            if changes:
                watermark.recompute(session, changes)
            return len(rows)

    return retried(session.connection, work)
