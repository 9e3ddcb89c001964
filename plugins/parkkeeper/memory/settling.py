"""How an attempt ends: formed, tried again later, deferred, or parked. Each is one transaction, fenced by the token."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from parkkeeper.database import retried, session_lost, statements, transaction
from parkkeeper.error_text import kept_error
from parkkeeper.memory import circuit, watermark
from parkkeeper.memory.breaker import PARKED_AT_ONCE, Failure
from parkkeeper.memory.circuit import Key
from parkkeeper.memory.claims import Claim, hand_back
from parkkeeper.memory.extractors import ExtractionError, Extractor, Memory
from parkkeeper.memory.search import spaced
from parkkeeper.memory.session import Session

_SQL = statements("memory/formation")
_PARKING = statements("memory/parking")

# How sqlstates begin that speak of the database and not of what was to be stored: it is read-only, a transaction was
# undone, a right or a table is missing, a disk is full, a lock is not had, it goes down, it cannot read its files.
_OUTAGES = ("25", "40", "42", "531", "533", "534", "55", "57P", "58")

FORMED, FAILED, DEFERRED, PARKED, DISCARDED = "formed", "failed", "deferred", "parked", "discarded"


def form(session: Session, claim: Claim, extractor: Extractor, memories: Sequence[Memory]) -> str:
    """Store what was extracted and mark the turn formed; ``discarded`` when the claim no longer stands."""
    values = {
        "observation_id": claim.observation_id,
        "token": claim.token,
        "extractor": extractor.name,
        "extractor_version": extractor.version,
    } | columns(memories)

    def work() -> str:
        with transaction(session.connection, "form_batch"):
            watermark.lock(session, [claim.scope])
            if session.execute(_SQL, "form", values).fetchone() is None:
                return DISCARDED
            watermark.recompute(session, {claim.scope: watermark.Change(formed=1)})
            return FORMED

    return retried(session.connection, work)


def refused(session: Session, error: psycopg.Error | UnicodeError) -> str | None:
    """Return what the database said when it would not have these memories, a code; None when the fault is its own."""
    code = getattr(error, "sqlstate", None) or type(error).__name__
    return None if session_lost(session.connection, error) or code.startswith(_OUTAGES) else code


def columns(memories: Sequence[Memory]) -> dict[str, list[Any]]:
    """Return memories as the parameters with which they are stored."""
    return {
        "kinds": [memory.kind for memory in memories],
        "texts": [memory.text for memory in memories],
        "search_texts": [_search_text(memory.text) for memory in memories],
    }


def _search_text(text: str) -> str | None:
    found = spaced(text)
    return None if found == text else found


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of a failed attempt.

    Attributes
    ----------
    outcome
        ``failed`` when the attempt is spent, unless a canary gives it back; ``deferred`` when none was spent;
        ``discarded`` when the claim no longer stands.
    streak
        To which the failure belongs; 0 for none, because the circuit is open or the claim no longer stands.
    asks
        A canary is owed to it.
    capped
        The turn is to be parked if that canary succeeds.
    """

    outcome: str
    streak: int = 0
    asks: bool = False
    capped: bool = False


def fail(session: Session, claim: Claim, key: Key, error: ExtractionError, *, max_attempts: int) -> Recorded:
    """Record a failed attempt; its text stays on the row and nowhere else."""
    text = None if error.message is None else kept_error(error.message)
    try:
        return _fail(session, claim, key, error, text, max_attempts)
    except (psycopg.DataError, psycopg.IntegrityError, UnicodeError):
        # Whatever the text is, the failure is recorded: a turn whose failure cannot be told would never be parked.
        return _fail(session, claim, key, error, None, max_attempts)


def _fail(
    session: Session, claim: Claim, key: Key, error: ExtractionError, text: str | None, max_attempts: int
) -> Recorded:
    standing = {"observation_id": claim.observation_id, "token": claim.token}

    def work() -> Recorded:
        with transaction(session.connection, "form_batch"):
            row = circuit.lock(session, key)
            turn = session.execute(_SQL, "hold", standing).fetchone()
            if turn is None:
                return Recorded(DISCARDED)
            failure = Failure(
                error.error_class, turn.formation_attempts, turn.deferrals, max_attempts, error.retry_after
            )
            marked = turn.streak if turn.streak_circuit == row.circuit_id else None
            after, treatment = row.breaker.record(failure, marked, row.now)
            if not treatment.recorded:
                hand_back(session, [claim.token])
                return Recorded(DEFERRED)
            circuit.store(session, row.circuit_id, after)
            earlier = turn.streak_attempts if marked is not None and marked > after.answered else 0
            wait = treatment.wait * random.uniform(1, 1.2) if treatment.spent else treatment.wait
            recorded = {
                "spent": int(treatment.spent),
                "error_class": error.error_class,
                "error": text,
                "wait": wait,
                "circuit_id": row.circuit_id,
                "streak": after.streak,
                "streak_attempts": earlier + treatment.spent,
            }
            session.execute(_SQL, "fail", standing | recorded)
            outcome = FAILED if treatment.spent else DEFERRED
            return Recorded(outcome, after.streak, treatment.asks, treatment.capped)

    return retried(session.connection, work)


def park_capped(
    session: Session,
    scopes: Collection[str],
    observation_ids: Sequence[int],
    *,
    max_attempts: int,
    circuit_id: int | None = None,
) -> int:
    """Park those of the turns that still have had all their attempts and that nobody is forming; return how many.

    A turn whose last failure nothing has answered is left alone, so that no outage parks it. With `circuit_id`, whose
    canary has just succeeded, only failures of that circuit count for this: others may never be answered.
    """
    values = {
        "observation_ids": list(observation_ids),
        "max_attempts": max_attempts,
        "at_once": list(PARKED_AT_ONCE),
        "circuit_id": circuit_id,
    }

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
