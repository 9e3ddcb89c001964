"""One batch of formation: claim, extract outside any transaction, settle; until the limit, or nothing is due."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import psycopg

from parkkeeper.database import bring_to_rest, statements
from parkkeeper.memory import circuit, control, settling
from parkkeeper.memory.circuit import Key
from parkkeeper.memory.claims import Capped, Claim, Due, DueTurns, hand_back
from parkkeeper.memory.extractors import ExtractionError, Extractor, Memory, Turn
from parkkeeper.memory.inquiry import Inquiry
from parkkeeper.memory.outcomes import FormationOutcome
from parkkeeper.memory.session import Session
from parkkeeper.memory.workers import Extraction, Workers

_SQL = statements("memory/formation")
_LOG = logging.getLogger(__name__)

#: A longer time than this is as good as none, and more than the clocks of machines can count with.
LONGEST_BUDGET = timedelta(days=36_500)


def form_batch(
    session: Session,
    extractor: Extractor,
    key: Key,
    *,
    scope: str | None,
    shard: tuple[int, int],
    limit: int,
    max_attempts: int,
    turn_budget: timedelta,
    concurrency: int,
) -> FormationOutcome:
    """Form turns that are due, one claim at a time, until `limit` were claimed or none is due.

    A failure that may be the provider's is followed by a canary, a turn without content. If that fails too, the
    attempts are given back, the circuit opens, and no batch tries a turn until a canary succeeds.

    Whatever else ends the call (an interrupt, a lost session) hands the turns in hand back without counting their
    attempts; if the database is out of reach they come due when their claims end.

    Parameters
    ----------
    extractor
        What makes memories of a turn; see :mod:`parkkeeper.memory.extractors`.
    scope
        The only scope to form; None takes turns from all that have due ones, one from each in its turn.
    shard
        Of all scopes only this part: its number, from 0, and how many parts there are. Workers with a part each
        do not meet in a scope.
    limit
        The most turns that are claimed.
    max_attempts
        A turn is parked when this many attempts have failed and the canary has not; refusal and too_long park at
        the first.
    turn_budget
        How long one extraction may take. On overrun the attempt failed with class timeout and the batch ends.
    concurrency
        How many turns are extracted at once, each in a thread; only the caller's thread uses the connection.

    Returns
    -------
    FormationOutcome
        In turns. A failure of a turn is counted, never raised.
    """
    turn_budget = min(turn_budget, LONGEST_BUDGET)
    due = DueTurns(
        session, scope, key, shard=shard, limit=limit, max_attempts=max_attempts, turn_budget=turn_budget
    )
    batch = _Batch(session, extractor, key, due, max_attempts, turn_budget, min(concurrency, limit))
    # Claims look too: it may be paused while the batch runs. Here it keeps an open circuit's canary from being sent.
    paused = bool(control.paused(session, scope, key.extractor))
    batch.run(idle=paused)
    done, given_back = batch.done, batch.inquiry.given_back
    row = session.execute(_SQL, "left", asdict(key) | {"scope": scope}).fetchone()
    assert row is not None
    return FormationOutcome(
        formed=done[settling.FORMED],
        failed=done[settling.FAILED] - given_back,
        parked=done[settling.PARKED],
        deferred=done[settling.DEFERRED] + given_back,
        memories=batch.memories,
        backlog=row.backlog,
        discarded=done[settling.DISCARDED],
        circuit="open" if row.open else "closed",
        paused=paused,
    )


class _Batch:
    """The turns in hand and what became of the others. Only the thread that calls :meth:`run` uses the connection."""

    def __init__(
        self,
        session: Session,
        extractor: Extractor,
        key: Key,
        due: DueTurns,
        max_attempts: int,
        turn_budget: timedelta,
        concurrency: int,
    ) -> None:
        self.done: Counter[str] = Counter()
        self.memories = 0
        self._session = session
        self._extractor = extractor
        self._key = key
        self._due = due
        self._max_attempts = max_attempts
        self._turn_budget = turn_budget
        self._concurrency = concurrency
        self._claiming = True
        self._in_hand: dict[UUID, tuple[Claim, float]] = {}  # token -> claim, deadline of the monotonic clock
        self._tokens: set[UUID] = set()  # under which claims may stand in the database
        self._workers = Workers(extractor, concurrency)
        self.inquiry = Inquiry(session, key, self._workers, turn_budget, self._park)

    def run(self, *, idle: bool) -> None:
        """Work until nothing is in hand and nothing more is to be claimed; hand back what an exception cuts short."""
        try:
            if idle:
                return
            self.inquiry.begin()
            self._claim()
            while self._in_hand or self.inquiry.pending:
                self._settle_next()
                self.inquiry.go_on()
                self._claim()
        except BaseException:
            bring_to_rest(self._session.connection)
            self._hand_back()
            self.inquiry.end()
            raise
        finally:
            self._workers.close()

    def _claim(self) -> None:
        while self._may_claim():
            token = uuid4()
            # Noted first: an interrupt may come when the claim is made and not yet returned.
            self._tokens.add(token)
            taken = self._due.take(token)
            if isinstance(taken, Claim):
                self._submit(taken)
                continue
            self._tokens.remove(token)
            if taken is None:
                self._claiming = False
            elif not self._park([taken]):
                # Its failures may be an outage's. What a crash of its worker left at the cap was parked just now: that
                # is no provider's answer, and there is nobody to ask about it.
                self.inquiry.suspect_capped(taken)

    def _may_claim(self) -> bool:
        return (
            self._claiming
            and len(self._in_hand) < self._concurrency
            and not self.inquiry.open
            and not self.inquiry.pending
        )

    def _park(self, turns: Sequence[Due], circuit_id: int | None = None) -> int:
        parked = 0
        for turn in turns:
            number = settling.park_capped(
                self._session,
                [turn.scope],
                [turn.observation_id],
                max_attempts=self._max_attempts,
                circuit_id=circuit_id,
            )
            parked += number
            if isinstance(turn, Capped):
                self.done[settling.FAILED] += number  # by others, who could not say so
        self.done[settling.PARKED] += parked
        return parked

    def _submit(self, claim: Claim) -> None:
        self._in_hand[claim.token] = claim, time.monotonic() + self._turn_budget.total_seconds()
        deadline = datetime.now(UTC) + self._turn_budget
        self._workers.submit(
            claim.token, Turn(claim.scope, claim.log_offset, claim.occurred_at, claim.messages, deadline)
        )

    def _settle_next(self) -> None:
        """Settle the next result, or every turn whose time is up when none comes before that."""
        waits = [deadline - time.monotonic() for _, deadline in self._in_hand.values()]
        if (wait := self.inquiry.wait()) is not None:
            waits.append(wait)
        extraction = self._workers.next(min(waits))
        if extraction is not None:
            self._settle(extraction)
            return
        now = time.monotonic()
        for claim in [claim for claim, deadline in self._in_hand.values() if deadline <= now]:
            self._overrun(claim)

    def _settle(self, extraction: Extraction) -> None:
        if self.inquiry.is_canary(extraction.token):
            self.inquiry.answer(extraction.failure, extraction.finished_at)
            return
        if extraction.token not in self._in_hand:
            return  # it overran, and that is recorded
        claim, deadline = self._in_hand[extraction.token]
        if extraction.finished_at > deadline:
            self._overrun(claim)
        elif extraction.failure is not None:
            self._fail(claim, extraction.failure)
        else:
            self._form(claim, extraction.memories)

    def _overrun(self, claim: Claim) -> None:
        """A thread that is late cannot be stopped and may never come back, so the batch takes no more turns."""
        self._claiming = False
        self._fail(claim, ExtractionError("timeout", f"no result in {self._turn_budget.total_seconds():g} s"))

    def _form(self, claim: Claim, memories: Sequence[Memory]) -> None:
        try:
            outcome = settling.form(self._session, claim, self._extractor, memories)
        except (psycopg.Error, UnicodeError) as error:
            code = settling.refused(self._session, error)
            if code is None:
                raise
            self._fail(claim, ExtractionError("store", f"the memories could not be stored: {code}"))
            return
        self._settled(claim, outcome)
        if outcome == settling.FORMED:
            self.memories += len(memories)
        if claim.streak is not None:
            circuit.succeed(self._session, self._key, claim.streak, claim.claimed_at)

    def _fail(self, claim: Claim, error: ExtractionError) -> None:
        recorded = settling.fail(self._session, claim, self._key, error, max_attempts=self._max_attempts)
        self._settled(claim, recorded.outcome)
        self.inquiry.suspect(claim, recorded)
        _LOG.info(
            "scope %s offset %d: attempt %d: %s",
            claim.scope,
            claim.log_offset,
            claim.attempt,
            error.error_class,
        )

    def _settled(self, claim: Claim, outcome: str) -> None:
        del self._in_hand[claim.token]
        self._tokens.remove(claim.token)
        self.done[outcome] += 1

    def _hand_back(self) -> None:
        if not self._tokens:
            return
        try:
            hand_back(self._session, self._tokens)
        except psycopg.Error as error:
            _LOG.warning(
                "claims that could not be handed back (%s) come due when they end: %d",
                error.sqlstate or type(error).__name__,
                len(self._tokens),
            )
