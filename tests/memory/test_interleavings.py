"""Actions on one memory in every order of their statements and commits: no turn is lost, and every number is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from interleave import Explorer, Order, Rewind, SteppedConnection
from load import FULL
from memory_kit import Database, Scripted, failing, say
from parkkeeper.memory import ErasureReceipt, MemoryStore, RebuildActive, watermark
from parkkeeper.memory.extractors import Memory
from parkkeeper.memory.extractors.chunks import Chunks

pytestmark = pytest.mark.attack

Connect = Callable[..., psycopg.Connection[Any]]

SCOPE = "s"
#: Offsets of the turns that an erasure and the retention are for.
ANN, OLD = {1, 4}, {0, 3}
TURNS = 8

ACTIONS: Mapping[str, Callable[[MemoryStore], Any]] = {
    "append": lambda store: store.append_many(SCOPE, [{"messages": say("new")}] * 2),
    "form": lambda store: store.form_batch(Chunks(), limit=2, concurrency=1),
    "park": lambda store: store.form_batch(failing("refusal"), limit=1, concurrency=1),
    "unpark": lambda store: store.unpark(scope=SCOPE),
    "erase": lambda store: store.erase(subject="ann", reason="asked"),
    "rebuild": lambda store: store.rebuild(
        SCOPE, Scripted(lambda turn: [Memory("anew")]), from_offset=0, to_offset=3, concurrency=1
    ),
    "retention": lambda store: store.expire(timedelta(days=30), reason="old"),
}
#: Three at once, of those that share most.
TRIPLES = [
    ("form", "park", "unpark"),
    ("form", "erase", "append"),
    ("park", "erase", "rebuild"),
    ("unpark", "rebuild", "retention"),
    ("erase", "retention", "append"),
]

_ROWS = """
SELECT log_offset, formed_at IS NOT NULL, parked_at IS NOT NULL, claim_token IS NOT NULL,
       (SELECT count(*) FROM {schema}.projection_dependency AS source WHERE source.source_id = observation_id)
  FROM {schema}.observation ORDER BY log_offset
"""
_WITHOUT_SOURCE = """
SELECT (SELECT count(*) FROM {schema}.memory WHERE memory_id NOT IN
               (SELECT derived_id FROM {schema}.projection_dependency))
     + (SELECT count(*) FROM {schema}.projection_dependency WHERE source_id NOT IN
               (SELECT observation_id FROM {schema}.observation))
     + (SELECT count(*) FROM {schema}.turn_message WHERE observation_id NOT IN
               (SELECT observation_id FROM {schema}.observation))
"""


class Meeting:
    """Sessions at one memory, who find the same turns each time and go on in every order."""

    def __init__(self, store: MemoryStore, db: Database, connect: Connect) -> None:
        self._store, self._db = store, db
        turns = [
            {"messages": say(f"turn {offset}"), "subject": "ann" if offset in ANN else "bob"}
            for offset in range(TURNS)
        ]
        store.append_many(SCOPE, turns)
        # Formed, parked and waiting turns, of each person and of each age.
        assert store.form_batch(failing("refusal", offsets=[1, 3]), limit=4).parked == 2
        db(
            "UPDATE {schema}.observation SET ingested_at = now() - interval '1 year' WHERE log_offset = ANY (%s)",
            [list(OLD)],
        )
        db.come_due()
        self._before = store.freshness(SCOPE)
        self._rewind = Rewind(db.connection, db.namespace.name)
        sessions = [connect(connection_class=SteppedConnection) for _ in range(3)]
        self._stores = [MemoryStore(session, db.namespace) for session in sessions]
        self.explorer = Explorer(db.connection, sessions)

    def orders(self, *names: str, preemptions: int) -> Iterator[Order]:
        """Let the actions of these names meet in every order, and look at the memory after each."""

        def begin() -> list[Callable[[], Any]]:
            self._rewind()
            return [
                lambda name=name, store=store: ACTIONS[name](store)
                for name, store in zip(names, self._stores, strict=False)
            ]

        first = [0] if len(set(names)) == 1 else None
        for order in self.explorer.orders(begin, preemptions=preemptions, first=first):
            try:
                self.check(names, order.results)
            except AssertionError as error:
                raise AssertionError(
                    f"{' and '.join(names)} in the order {order.choices}: {error}"
                ) from error
            yield order

    def check(self, names: tuple[str, ...], results: list[Any]) -> None:
        """Find each turn where it belongs, and each number true."""
        for name, result in zip(names, results, strict=True):
            busy = names.count("rebuild") > 1 and isinstance(result, RebuildActive)
            assert busy or not isinstance(result, BaseException), f"{name}: {result!r}"
        found = {offset: state for offset, *state in self._db(_ROWS)}
        self._check_turns(names, results, found)
        self._check_numbers(found)

    def _check_turns(
        self, names: tuple[str, ...], results: list[Any], found: Mapping[int, list[Any]]
    ) -> None:
        appended = [turn.log_offset for result in results if isinstance(result, list) for turn in result]
        every = range(TURNS + len(appended))
        assert sorted(appended) == list(every[TURNS:]), "offsets have a gap"
        erased = ANN if "erase" in names else set()
        erased = erased | (OLD if "retention" in names else set())
        assert set(found) == set(every) - erased, "a turn is gone, or came back"
        for offset, (formed, parked, claimed, memories) in found.items():
            assert not (formed and parked), f"offset {offset} is parked and formed"
            assert not claimed, f"offset {offset} has a claim that nobody holds"
            assert formed == bool(memories), f"offset {offset} has memory and is not formed, or the reverse"
        assert self._db.one(_WITHOUT_SOURCE) == 0, "what came of an erased turn is there still"
        for result in results:
            if isinstance(result, ErasureReceipt):
                assert result.clean

    def _check_numbers(self, found: Mapping[int, list[Any]]) -> None:
        assert self._store.verify() == [], "a kept number is not that of the rows"
        fresh = self._store.freshness(SCOPE)
        waiting = [offset for offset, (formed, parked, *_) in found.items() if not formed and not parked]
        parked = [offset for offset, (_, is_parked, *_) in found.items() if is_parked]
        assert (fresh.backlog, fresh.parked) == (len(waiting), len(parked))
        assert fresh.formed == watermark_of(waiting, fresh.stored), "formed is not what it says it is"
        assert fresh.formed_strict == watermark_of([*waiting, *parked], fresh.stored)
        fell = (self._before.formed if self._before.formed is not None else -1) > (
            fresh.formed if fresh.formed is not None else -1
        )
        assert not fell or fresh.epoch > self._before.epoch, "formed fell and the epoch did not tell"


def watermark_of(holes: list[int], stored: int) -> int | None:
    """Return the offset before the first hole."""
    first = min(holes, default=stored)
    return first - 1 if first > 0 else None


@pytest.fixture
def meeting(store: MemoryStore, db: Database, connect: Connect) -> Iterator[Meeting]:
    meeting = Meeting(store, db, connect)
    with meeting.explorer:
        yield meeting


@pytest.mark.timeout(0 if FULL else 300)
@pytest.mark.parametrize("holder", ACTIONS)
def test_two_actions_in_every_order_keep_every_turn_and_every_number(
    meeting: Meeting, holder: str, record_property: Callable[[str, object], None]
) -> None:
    """One of them is made to stand once, at any statement; in the full run twice."""
    names = list(ACTIONS)
    # Two batches that park wait for one another's canary by looking again, not by a lock: see test_canary.py.
    others = names[names.index(holder) + (holder == "park") :]
    count = sum(len(list(meeting.orders(holder, other, preemptions=2 if FULL else 1))) for other in others)
    record_property("covered", f"{holder} with each of {len(others)} actions: {count} orders")


@pytest.mark.timeout(0 if FULL else 300)
def test_three_actions_in_every_order_keep_every_turn_and_every_number(
    meeting: Meeting, record_property: Callable[[str, object], None]
) -> None:
    """One after the other; in the full run one of them is made to stand once, at any statement."""
    for names in TRIPLES:
        count = len(list(meeting.orders(*names, preemptions=1 if FULL else 0)))
        record_property("covered", f"{', '.join(names)}: {count} orders")


def test_formation_that_does_not_lock_the_watermark_is_caught(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermark, "lock", lambda session, scopes: None)
    with pytest.raises(AssertionError, match="in the order"):
        for other in ("unpark", "erase", "form"):
            list(meeting.orders("form", other, preemptions=1))
