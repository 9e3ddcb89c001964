"""What a batch does about its failures: who is asked, what waits for the answer, and what follows from it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import psycopg

from parkkeeper.memory import circuit
from parkkeeper.memory.breaker import Breaker
from parkkeeper.memory.canary import budget
from parkkeeper.memory.circuit import Key, Row
from parkkeeper.memory.claims import STORE_TIME, Due
from parkkeeper.memory.extractors import ExtractionError
from parkkeeper.memory.session import Session
from parkkeeper.memory.settling import DEFERRED, FAILED, Recorded
from parkkeeper.memory.workers import Workers

_LOG = logging.getLogger(__name__)

#: How often a batch that waits for another's canary looks for its answer, in seconds.
LOOK_AGAIN = 0.5


@dataclass(frozen=True, slots=True)
class Suspect:
    """A turn that failed while `streak` ran, and waits for the answer; `capped`: to be parked if it is a good one."""

    turn: Due
    streak: int
    capped: bool


class Inquiry:
    """Outage or turn? Asked by one batch, together with all others that share the circuit.

    Parameters
    ----------
    park
        Parks those of the given turns that are at their cap still; called with the circuit's id too.

    Attributes
    ----------
    open
        The provider does not answer: no turn may be tried.
    given_back
        How many attempts that this batch has seen fail were given back.
    """

    def __init__(
        self,
        session: Session,
        key: Key,
        workers: Workers,
        turn_budget: timedelta,
        park: Callable[[list[Due], int], int],
    ) -> None:
        self.open = False
        self.given_back = 0
        self._session = session
        self._key = key
        self._workers = workers
        self._budget = budget(turn_budget)
        self._park = park
        self._suspects: list[Suspect] = []
        self._spent: list[int] = []  # the streaks of failures that nothing has answered
        self._canary: UUID | None = None
        self._deadline = 0.0
        self._look_at = 0.0

    @property
    def pending(self) -> bool:
        """Whether an answer is waited for, so that no further turn is claimed."""
        return self._canary is not None or bool(self._suspects)

    def begin(self) -> None:
        """Look whether the circuit is open; if it is, send the canary that may close it, when its time has come."""
        row = circuit.look(self._session, self._key)
        self.open = row is not None and row.breaker.open
        # Looked at before it is locked: mostly there is nothing to do, and then nothing is to be written.
        if row is not None and self.open and row.breaker.ask(uuid4(), row.now, self._budget) is not None:
            self._ask()

    def suspect(self, turn: Due, failure: Recorded) -> None:
        """Take in a failure of `turn`; if a canary is owed to it, wait for the answer."""
        if failure.outcome == FAILED:
            self._spent.append(failure.streak)
        elif failure.outcome == DEFERRED and not failure.streak:
            self._give_back()  # another worker has opened the circuit
        if failure.asks:
            self._suspects.append(Suspect(turn, failure.streak, failure.capped))

    def suspect_capped(self, turn: Due) -> None:
        """Let a turn wait that was found at its cap: no answer up to now is one about it."""
        row = circuit.look(self._session, self._key)
        self._suspects.append(Suspect(turn, (row.breaker if row else Breaker()).streak, capped=True))

    def wait(self) -> float | None:
        """Return for how many seconds nothing is to be done here without a result; None: for ever."""
        if self._canary is not None:
            return self._deadline - time.monotonic()
        return self._look_at - time.monotonic() if self._suspects else None

    def go_on(self) -> None:
        """Ask if somebody is to be asked; take a canary whose time is up for one that failed."""
        now = time.monotonic()
        if self._canary is not None:
            if now >= self._deadline:
                self.answer(None, now)
        elif self._suspects and now >= self._look_at:
            self._ask()

    def is_canary(self, token: UUID) -> bool:
        """Tell whether a result under `token` is the answer that is waited for."""
        return token == self._canary

    def answer(self, error: ExtractionError | None, finished_at: float) -> None:
        """Take in what the canary came to, at a time of the monotonic clock; None: it succeeded, unless it is late."""
        assert self._canary is not None
        if finished_at >= self._deadline:
            error = ExtractionError("timeout")
        if error is None:
            row = circuit.hit(self._session, self._key, self._canary)
        else:
            row = circuit.miss(self._session, self._key, self._canary, error.error_class, error.retry_after)
        self._canary = None
        outcome = "succeeded" if error is None else f"failed: {error.error_class}"
        _LOG.info(
            "the canary of %s %s %s; its circuit is %s",
            self._key.extractor,
            self._key.version,
            outcome,
            "open" if row.breaker.open else "closed",
        )
        self._take_in(row)

    def end(self) -> None:
        """Leave no canary behind that others would wait for; called when the batch is cut short."""
        if self._canary is None:
            return
        try:
            circuit.release(self._session, self._key, self._canary)
        except psycopg.Error as error:
            _LOG.warning(
                "a canary that could not be called off (%s) ends by itself",
                error.sqlstate or type(error).__name__,
            )

    def _ask(self) -> None:
        # Noted first: an interrupt may come when the right is had and not yet returned.
        self._canary = uuid4()
        row, granted = circuit.ask(self._session, self._key, self._canary, self._budget + STORE_TIME)
        if granted:
            self._deadline = time.monotonic() + self._budget.total_seconds()
            self._workers.send_canary(self._canary, datetime.now(UTC) + self._budget)
            return
        self._canary = None
        self._look_at = time.monotonic() + LOOK_AGAIN
        self._take_in(row)

    def _take_in(self, row: Row) -> None:
        """Settle what the state of the circuit answers."""
        if row.breaker.open:
            self._give_back()
            return
        self.open = False
        answered = row.breaker.answered
        capped = [suspect for suspect in self._suspects if suspect.capped and suspect.streak <= answered]
        self._spent = [streak for streak in self._spent if streak > answered]
        self._suspects = [suspect for suspect in self._suspects if suspect.streak > answered]
        if capped:
            self._park([suspect.turn for suspect in capped], row.circuit_id)

    def _give_back(self) -> None:
        """Take in that the circuit is open, and that whoever opened it has given back what was not answered."""
        self.open = True
        self.given_back += len(self._spent)
        self._spent.clear()
        self._suspects.clear()
