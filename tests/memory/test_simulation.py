"""Hours of formation in virtual time: outages of every kind, poison turns in every place, one worker and four."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outage_simulation import HOUR, LIMIT, POLL, Answer, Simulation, outage, poison
from parkkeeper.memory.breaker import Breaker, cool_down

pytestmark = pytest.mark.attack

KINDS = {
    "429": Answer("rate_limited"),
    "429, wait a second": Answer("rate_limited", retry_after=timedelta(seconds=1)),
    "429, wait two hours": Answer("rate_limited", retry_after=timedelta(hours=2)),
    "quota": Answer("quota"),
    "401 or 403": Answer("auth", 0.1),
    "500": Answer("unavailable", 0.1),
    "503 after a while": Answer("unavailable", 100),
    "time-out": Answer("timeout", 10**9),
    "refusal": Answer("refusal"),
    "too long": Answer("too_long"),
    "gibberish": Answer("malformed"),
    "plain exception": Answer("other", 0.01),
}
#: Those that are tried again.
RETRIED = sorted(KINDS.keys() - {"refusal", "too long"})
#: At most so many canaries in any hour in which the provider does not answer.
CANARIES_AN_HOUR = 13

every_kind = pytest.mark.parametrize("kind", KINDS)
each_crew = pytest.mark.parametrize("workers", [1, 4])


@every_kind
@each_crew
@pytest.mark.parametrize("backlog", [3, 300, 10_000])
@pytest.mark.parametrize("begin", [0.0, 100.5])
def test_an_outage_parks_no_turn_spends_no_attempt_and_asks_seldom(
    kind: str, workers: int, backlog: int, begin: float
) -> None:
    end = begin + 2 * HOUR
    ran = Simulation(outage(KINDS[kind], begin, end), backlog, workers).run(hours=12)
    assert ran.of("parked") == []
    assert len(ran.of("formed")) == backlog
    assert {turn.attempts for turn in ran.turns} == {1}
    assert ran.most_canaries_an_hour() <= CANARIES_AN_HOUR
    # Those in hand when it begins, three strikes, or the few attempts of a backlog too small for them.
    during = [number for at, number in ran.calls if begin <= at < end]
    assert len(during) <= max(3 * 6, 3 + 2 * workers)
    # Nobody waits for a backoff: the longest cool-down, a canary, and then as fast as calls are.
    last = max(turn.ended for turn in ran.turns)
    assert last <= end + max(600, HOUR if "two hours" in kind else 0) + 300 + 10 + 1.1 * backlog / workers


@every_kind
@each_crew
@pytest.mark.parametrize("backlog", [1, 2])
def test_an_outage_over_fewer_turns_than_three_parks_none_of_them(
    kind: str, workers: int, backlog: int
) -> None:
    ran = Simulation(outage(KINDS[kind], 0, 3 * HOUR), backlog, workers).run(hours=12)
    assert (ran.of("parked"), len(ran.of("formed"))) == ([], backlog)
    assert {turn.attempts for turn in ran.turns} == {1}
    # With a 429 that asks to wait, ten deferrals come first.
    during = sum(at < 3 * HOUR for at, number in ran.calls)
    assert during <= (12 if "wait" in kind else 2) * backlog
    assert ran.most_canaries_an_hour() <= CANARIES_AN_HOUR


@every_kind
@each_crew
@pytest.mark.parametrize(
    "where", [[0], [150], range(10), range(100, 110), [0, 50, 299], range(0, 300, 3)], ids=str
)
def test_poison_turns_are_parked_each_alone_and_nobody_else_is_delayed(
    kind: str, workers: int, where: list[int]
) -> None:
    """Whatever a gateway answers to their text."""
    bad = KINDS[kind]
    ran = Simulation(poison(bad, where), 300, workers).run(hours=200)
    assert ran.of("parked") == list(where)
    assert (ran.openings, len(ran.of("formed"))) == (0, 300 - len(where))
    assert {ran.turns[number].attempts for number in ran.of("formed")} == {1}
    # One call and one canary of each that fails come before the last of the others, and nothing else.
    busy = 300 + (min(bad.seconds, 300) + 1) * len(where)
    assert max(ran.turns[number].ended for number in ran.of("formed")) <= busy + 60


@pytest.mark.parametrize("kind", ["401 or 403", "time-out", "refusal", "plain exception"])
@each_crew
def test_one_poison_turn_among_ten_thousand_is_parked_and_delays_nobody(kind: str, workers: int) -> None:
    bad = KINDS[kind]
    ran = Simulation(poison(bad, [5_000]), 10_000, workers).run(hours=200)
    assert (ran.of("parked"), len(ran.of("formed")), ran.openings) == ([5_000], 9_999, 0)
    assert {ran.turns[number].attempts for number in ran.of("formed")} == {1}
    # A second each, the pauses between batches, the call that fails and one canary.
    busy = 10_000 * (1 + POLL / LIMIT) / workers + min(bad.seconds, 300) + 1
    assert max(ran.turns[number].ended for number in ran.of("formed")) <= busy + 60


@every_kind
@each_crew
def test_a_poison_turn_is_parked_and_nothing_else_when_an_outage_comes_in_between(
    kind: str, workers: int
) -> None:
    bad = poison(Answer("auth"), [5, 6, 7, 200])
    ran = Simulation(outage(KINDS[kind], 60, 2 * HOUR, otherwise=bad), 300, workers).run(hours=24)
    assert ran.of("parked") == [5, 6, 7, 200]
    assert len(ran.of("formed")) == 296
    assert {ran.turns[number].attempts for number in ran.of("formed")} == {1}
    assert {ran.turns[number].attempts for number in ran.of("parked")} == {6}


def test_a_provider_that_comes_and_goes_is_not_asked_ever_more_often() -> None:
    """A minute up, a minute down, for six hours."""

    def provider(number: int, now: float) -> Answer:
        return Answer("unavailable", 0.1) if now < 6 * HOUR and now % 120 >= 60 else Answer(None, 5)

    ran = Simulation(provider, 10_000, 4).run(hours=24)
    assert (ran.of("parked"), len(ran.of("formed"))) == ([], 10_000)
    assert {turn.attempts for turn in ran.turns} == {1}
    assert ran.most_canaries_an_hour() <= CANARIES_AN_HOUR


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    workers=st.integers(1, 5),
    backlog=st.integers(1, 40),
    bad=st.dictionaries(st.integers(0, 39), st.sampled_from(sorted(KINDS)), max_size=6),
    outages=st.lists(
        st.tuples(st.floats(0, 5 * HOUR), st.floats(1, 2 * HOUR), st.sampled_from(RETRIED)), max_size=3
    ),
)
def test_whatever_comes_together_only_poison_is_parked_and_all_else_is_formed(
    workers: int, backlog: int, bad: dict[int, str], outages: list[tuple[float, float, str]]
) -> None:
    """An outage that ends between a failure and its canary is not seen: the turn that it hit pays with attempts."""

    def provider(number: int, now: float) -> Answer:
        for begin, length, kind in outages:
            if begin <= now < begin + length:
                return KINDS[kind]
        return KINDS[bad[number]] if number in bad else Answer()

    ran = Simulation(provider, backlog, workers).run(hours=300)
    assert ran.of("parked") == sorted(number for number in bad if number < backlog)
    assert ran.of("pending") == []
    assert all(1 <= ran.turns[number].attempts <= 1 + 2 * len(outages) for number in ran.of("formed"))


def test_the_cool_down_doubles_unless_the_provider_says_how_long() -> None:
    seconds = [cool_down(misses, None).total_seconds() for misses in range(1, 8)]
    assert seconds == [30, 60, 120, 240, 480, 600, 600]
    for misses, asked, waits in [
        (1, 7, 7),
        (3, 7, 7),
        (4, 7, 240),
        (1, 0, 1),
        (9, 10**6, 3600),
        (9, 700, 700),
    ]:
        assert cool_down(misses, timedelta(seconds=asked)).total_seconds() == waits


def test_a_circuit_begins_closed_with_nothing_to_answer() -> None:
    assert (Breaker().open, Breaker().answered < Breaker().streak) == (False, True)
