"""Outage or turn? What follows from a failure, and when the provider is asked: decisions alone, without a database.

A class of error cannot tell whether the provider fails or the turn: a gateway may answer one turn's text with 403 for
ever, and an outage may look like refusals. So the provider is asked, with a canary: a turn without content. All this is
arithmetic on values; ``docs/explanation/circuit.md`` has the table of states, and a simulation in the tests runs these
very functions over hours of virtual time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

#: Classes that speak of the provider: the first failure of one asks.
PROVIDER_CLASSES = ("rate_limited", "quota", "auth", "unavailable", "timeout")
#: Classes that another attempt does not cure.
PARKED_AT_ONCE = ("refusal", "too_long")
#: The turn that fails as this one in a row, counted by turns and not by attempts, asks whatever the class; and so does
#: the second failure of one turn in a row.
SUSPICIOUS_TURNS = 3

FIRST_WAIT = timedelta(seconds=10)
LONGEST_WAIT = timedelta(hours=1)
SHORTEST_WAIT = timedelta(seconds=1)
#: How often a turn waits at its provider's wish without spending an attempt; counted anew after an unpark.
MAX_DEFERRALS = 10

FIRST_COOL_DOWN = timedelta(seconds=30)
LONGEST_COOL_DOWN = timedelta(minutes=10)
SHORT_COOL_DOWNS = 3
#: A circuit that opens again this soon after it closed goes on with the cool-down it had, so that a provider that comes
#: and goes is not asked twice a minute.
CALM = timedelta(minutes=10)


def cap(error_class: str | None, max_attempts: int) -> int:
    """Return after how many attempts a turn that failed for `error_class` is given up."""
    return 1 if error_class in PARKED_AT_ONCE else max_attempts


def backoff(attempts: int) -> timedelta:
    """Return how long a turn waits after this many attempts, before jitter."""
    # The exponent is bounded too: long before an attempt of the hundreds, the wait would be longer than a timedelta.
    return min(FIRST_WAIT * (1 << min(max(attempts, 1) - 1, 10)), LONGEST_WAIT)


def cool_down(misses: int, retry_after: timedelta | None) -> timedelta:
    """Return how long an open circuit waits after so many canaries in a row have failed.

    A time that the provider asked for goes before the doubling: always when it is longer, and for the first
    :data:`SHORT_COOL_DOWNS` when it is shorter. A provider that says "in a second" for hours is not asked every second.
    """
    doubled = min(FIRST_COOL_DOWN * (1 << min(max(misses, 1) - 1, 10)), LONGEST_COOL_DOWN)
    if retry_after is None:
        return doubled
    asked = min(max(retry_after, SHORTEST_WAIT), LONGEST_WAIT)
    return asked if misses <= SHORT_COOL_DOWNS else max(asked, doubled)


@dataclass(frozen=True, slots=True)
class Failure:
    """What is known of an attempt that failed; `attempts` counts it."""

    error_class: str
    attempts: int
    deferrals: int
    max_attempts: int
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Treatment:
    """What becomes of the turn.

    Attributes
    ----------
    recorded
        False: the circuit is open, so the failure says nothing of the turn; it is given back as if not tried.
    spent
        Whether the attempt counts, until a canary gives it back.
    wait
        From the failure to the next attempt, before jitter.
    asks
        Whether a canary is owed to it.
    capped
        Whether it is to be parked if the canary succeeds.
    """

    recorded: bool
    spent: bool
    wait: timedelta
    asks: bool = False
    capped: bool = False


@dataclass(frozen=True, slots=True)
class Breaker:
    """The state of one circuit.

    Failures belong to a numbered *streak*. A canary that is sent begins the next one, so that what fails while it is on
    its way is not answered by it. A success, or a canary that succeeds, *answers* streaks: their failures are the
    turns' own. A canary that fails gives back every attempt of the streaks that are not answered.

    Attributes
    ----------
    streak
        To which failures belong now.
    answered
        Failures of this streak and of all before it are the turns' own, or were given back.
    asked
        What the last canary that was sent answers if it succeeds.
    failing
        How many turns have failed in the current streak.
    failed_at
        When a failure was last recorded.
    opened_at
        Since when the circuit is open; None: closed.
    next_probe_at
        From when on an open circuit lets one canary through.
    closed_at
        When it last closed.
    misses
        How many canaries in a row have failed. A circuit that closes keeps it until it has been :data:`CALM`.
    error_class
        Of the last canary that failed.
    prober, probing_until
        Who has sent a canary, and until when nobody else does.
    canaries
        How many were ever sent.
    """

    streak: int = 1
    answered: int = 0
    asked: int = 0
    failing: int = 0
    failed_at: datetime | None = None
    opened_at: datetime | None = None
    next_probe_at: datetime | None = None
    closed_at: datetime | None = None
    misses: int = 0
    error_class: str | None = None
    prober: UUID | None = None
    probing_until: datetime | None = None
    canaries: int = 0

    @property
    def open(self) -> bool:
        """Whether no turn may be tried."""
        return self.opened_at is not None

    def probing(self, now: datetime) -> bool:
        """Tell whether a canary is on its way; one whose prober died is not, once its time is up."""
        return self.probing_until is not None and self.probing_until > now

    def record(self, failure: Failure, streak: int | None, now: datetime) -> tuple[Breaker, Treatment]:
        """Take a failure in.

        Parameters
        ----------
        streak
            The streak of the turn's last failure at this circuit; None when it has none.
        """
        if self.open:
            return self, Treatment(recorded=False, spent=False, wait=timedelta(0))
        failing = self.failing + (streak != self.streak)
        after = replace(self, failing=failing, failed_at=now)
        suspicious = failing >= SUSPICIOUS_TURNS
        if (
            failure.error_class == "rate_limited"
            and failure.retry_after is not None
            and failure.deferrals < MAX_DEFERRALS
        ):
            wait = min(max(failure.retry_after, SHORTEST_WAIT), LONGEST_WAIT)
            return after, Treatment(recorded=True, spent=False, wait=wait, asks=suspicious)
        capped = failure.attempts >= cap(failure.error_class, failure.max_attempts)
        # Again the same turn: no attempt is to stay unanswered for long, or six in an outage would be taken for the
        # turn's own when the canary is sent a moment after it ends.
        asks = capped or suspicious or streak == self.streak or failure.error_class in PROVIDER_CLASSES
        return after, Treatment(True, True, backoff(failure.attempts), asks, capped)

    def succeed(self, streak: int, since: datetime) -> Breaker | None:
        """Take in that a turn, tried `since` then and when `streak` ran, was extracted; None when that says nothing.

        It says nothing of failures that came after its own beginning.
        """
        if self.open or self.streak != streak or not self.failing:
            return None
        if self.failed_at is not None and self.failed_at >= since:
            return None
        return replace(self, answered=self.streak, streak=self.streak + 1, failing=0)

    def ask(self, prober: UUID, now: datetime, lease: timedelta) -> Breaker | None:
        """Let `prober` send a canary; None when somebody else has, or when an open circuit still cools down."""
        if self.probing(now) or (self.next_probe_at is not None and self.next_probe_at > now):
            return None
        return replace(
            self,
            asked=self.streak,
            streak=self.streak + 1,
            failing=0,
            prober=prober,
            probing_until=now + lease,
            canaries=self.canaries + 1,
        )

    def hit(self, prober: UUID, now: datetime) -> Breaker | None:
        """Take in that the canary of `prober` succeeded; None when it took so long that others may ask."""
        if self.prober != prober:
            return None
        return replace(
            self,
            answered=max(self.answered, self.asked),
            opened_at=None,
            next_probe_at=None,
            closed_at=now if self.open else self.closed_at,
            prober=None,
            probing_until=None,
        )

    def miss(
        self, prober: UUID, error_class: str, retry_after: timedelta | None, now: datetime
    ) -> Breaker | None:
        """Take in that the canary of `prober` failed: the circuit is open, and all streaks are given back."""
        if self.prober != prober:
            return None
        again = self.open or (self.closed_at is not None and now - self.closed_at < CALM)
        misses = (self.misses if again else 0) + 1
        return replace(
            self,
            answered=self.streak,
            streak=self.streak + 1,
            failing=0,
            opened_at=self.opened_at or now,
            next_probe_at=now + cool_down(misses, retry_after),
            misses=misses,
            error_class=error_class,
            prober=None,
            probing_until=None,
        )

    def release(self, prober: UUID) -> Breaker | None:
        """Take in that `prober` ends without an answer, so that the next one need not wait; None when it is another."""
        return replace(self, prober=None, probing_until=None) if self.prober == prober else None
