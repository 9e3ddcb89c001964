"""Formation in virtual time: workers, turns and a provider, around the very decisions that the real batches make.

No clock, no thread, no database: a worker is a generator that yields the seconds for which it is busy. What is not
decided in :mod:`parkkeeper.memory.breaker` (claims, fences, locks) is as plain here as it can be.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from parkkeeper.memory.breaker import Breaker, Failure, cap
from parkkeeper.memory.inquiry import LOOK_AGAIN

START = datetime(2026, 1, 1, tzinfo=UTC)
BUDGET = timedelta(minutes=5)
LEASE = BUDGET + timedelta(minutes=1)
MAX_ATTEMPTS = 6
#: How long a worker whose batch is over waits before it begins the next, in seconds.
POLL = 5.0
LIMIT = 100
CANARY = -1
HOUR = 3600.0


@dataclass(frozen=True)
class Answer:
    """What a call comes to; `error_class` None is a success."""

    error_class: str | None = None
    seconds: float = 1.0
    retry_after: timedelta | None = None


#: Says what a call at a time, in seconds, comes to; the canary is turn -1.
Provider = Callable[[int, float], Answer]


@dataclass
class SimulatedTurn:
    """A turn as its row has it."""

    number: int
    state: str = "pending"
    attempts: int = 0
    deferrals: int = 0
    error_class: str | None = None
    streak: int = 0
    streak_attempts: int = 0
    due: float = 0.0
    claimed: bool = False
    ended: float = 0.0


@dataclass
class Simulation:
    """A backlog, some workers, one circuit."""

    provider: Provider
    backlog: int
    workers: int = 1
    now: float = 0.0
    breaker: Breaker = field(default_factory=Breaker)
    calls: list[tuple[float, int]] = field(default_factory=list)
    canaries: list[float] = field(default_factory=list)
    openings: int = 0

    def __post_init__(self) -> None:
        self.turns = [SimulatedTurn(number) for number in range(self.backlog)]
        self._queue = [(0.0, number) for number in range(self.backlog)]
        self._left = self.backlog

    def run(self, hours: float) -> Simulation:
        """Let the workers work until all turns have ended or the time is up."""
        events: list[tuple[float, int, Iterator[float]]] = [
            (0.01 * number, number, self._worker(number)) for number in range(self.workers)
        ]
        heapq.heapify(events)
        while events and self._left:
            self.now, number, worker = heapq.heappop(events)
            if self.now > hours * HOUR:
                break
            heapq.heappush(events, (self.now + next(worker), number, worker))
        return self

    def of(self, state: str) -> list[int]:
        """Return the turns in this state."""
        return [turn.number for turn in self.turns if turn.state == state]

    def most_canaries_an_hour(self) -> int:
        """Return how many canaries the busiest hour had."""
        return max(
            (sum(begin <= at < begin + HOUR for at in self.canaries) for begin in self.canaries), default=0
        )

    def _time(self) -> datetime:
        return START + timedelta(seconds=self.now)

    def _worker(self, number: int) -> Iterator[float]:
        prober = UUID(int=number + 1)
        while True:
            if self.breaker.open:
                asked = self.breaker.ask(prober, self._time(), LEASE)
                if asked is not None:
                    yield from self._send_canary(prober, asked)
            for _ in range(LIMIT):
                turn = None if self.breaker.open else self._claim()
                if turn is None:
                    break
                yield from self._try(turn, prober)
            yield POLL

    def _claim(self) -> SimulatedTurn | None:
        while self._queue and self._queue[0][0] <= self.now:
            due, number = heapq.heappop(self._queue)
            turn = self.turns[number]
            if turn.state == "pending" and turn.due == due and not turn.claimed:
                turn.attempts += 1
                turn.claimed = True
                return turn
        return None

    def _call(self, number: int) -> Answer:
        answer = self.provider(number, self.now)
        return (
            Answer("timeout", BUDGET.total_seconds()) if answer.seconds > BUDGET.total_seconds() else answer
        )

    def _try(self, turn: SimulatedTurn, prober: UUID) -> Iterator[float]:
        since, streak = self._time(), self.breaker.streak if self.breaker.failing else None
        self.calls.append((self.now, turn.number))
        answer = self._call(turn.number)
        yield answer.seconds
        turn.claimed = False
        if answer.error_class is None:
            self._end(turn, "formed")
            if streak is not None:
                self.breaker = self.breaker.succeed(streak, since) or self.breaker
            return
        failure = Failure(answer.error_class, turn.attempts, turn.deferrals, MAX_ATTEMPTS, answer.retry_after)
        self.breaker, treatment = self.breaker.record(failure, turn.streak or None, self._time())
        if not treatment.recorded:
            turn.attempts -= 1
            self._come_due(turn, self.now)
            return
        if turn.streak <= self.breaker.answered:
            turn.streak_attempts = 0
        turn.streak, turn.error_class = self.breaker.streak, answer.error_class
        turn.attempts -= not treatment.spent
        turn.deferrals += not treatment.spent
        turn.streak_attempts += treatment.spent
        self._come_due(turn, self.now + treatment.wait.total_seconds())
        if treatment.asks:
            yield from self._ask(turn.streak, prober)
            capped = turn.attempts >= cap(turn.error_class, MAX_ATTEMPTS)
            if treatment.capped and capped and not turn.claimed and not self.breaker.open:
                self._end(turn, "parked")

    def _ask(self, streak: int, prober: UUID) -> Iterator[float]:
        while not self.breaker.open and self.breaker.answered < streak:
            asked = self.breaker.ask(prober, self._time(), LEASE)
            if asked is None:
                yield LOOK_AGAIN
            else:
                yield from self._send_canary(prober, asked)

    def _send_canary(self, prober: UUID, asked: Breaker) -> Iterator[float]:
        self.breaker = asked
        self.canaries.append(self.now)
        answer = self._call(CANARY)
        yield answer.seconds
        if answer.error_class is None:
            self.breaker = self.breaker.hit(prober, self._time()) or self.breaker
            return
        unanswered = self.breaker.answered
        after = self.breaker.miss(prober, answer.error_class, answer.retry_after, self._time())
        assert after is not None, "nobody takes the right to probe from one who is in time"
        self.openings += not self.breaker.open
        self.breaker = after
        for turn in self.turns:
            if turn.state == "pending" and turn.streak > unanswered:
                turn.attempts -= turn.streak_attempts
                turn.streak = turn.streak_attempts = 0
                turn.error_class = None
                if not turn.claimed:
                    self._come_due(turn, self.now)

    def _come_due(self, turn: SimulatedTurn, due: float) -> None:
        turn.due = due
        heapq.heappush(self._queue, (due, turn.number))

    def _end(self, turn: SimulatedTurn, state: str) -> None:
        turn.state, turn.ended = state, self.now
        self._left -= 1


def works(number: int, now: float) -> Answer:
    """Answer everything."""
    return Answer()


def outage(answer: Answer, begin: float, end: float, otherwise: Provider = works) -> Provider:
    """Return a provider that gives `answer` to whoever asks between two times, in seconds."""
    return lambda number, now: answer if begin <= now < end else otherwise(number, now)


def poison(answer: Answer, numbers: Iterable[int]) -> Provider:
    """Return a provider that gives `answer` to some turns, whenever they are tried."""
    those = frozenset(numbers)
    return lambda number, now: answer if number in those else Answer()
