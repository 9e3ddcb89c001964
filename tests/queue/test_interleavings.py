"""Actions on one queue in every order of their statements and commits: each job stays in one place, and is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from interleave import COMMIT, Explorer, Order, Rewind, SteppedConnection
from load import FULL
from parkkeeper.database import Statements
from parkkeeper.namespace import Namespace
from parkkeeper.queue import ClaimedJob, QueueStorage
from parkkeeper.queue.prune import QueueSlotPrune
from ringside import age, differences, end_jobs, keep_claims, pruned, query, run_out, terminal

pytestmark = pytest.mark.attack

Connect = Callable[..., psycopg.Connection[Any]]

FLOOR = timedelta(hours=72)
#: Longer than a test lets anybody wait: what waits gets its lock, and does not happen to say ``blocked``.
PATIENT = timedelta(seconds=5)


class Undone(Exception):
    """Rolls a transaction back."""


def undone(storage: QueueStorage, act: Callable[[], Any]) -> None:
    """Do something in a transaction that is rolled back, when all of it is done."""
    connection = storage.connection
    assert isinstance(connection, SteppedConnection)
    try:
        with connection.transaction():
            act()
            connection.on_step(COMMIT)
            raise Undone
    except Undone:
        pass


def late(storage: QueueStorage) -> list[int]:
    """Enqueue in a transaction of the caller's, which commits when it likes."""
    with storage.connection.transaction():
        return storage.enqueue_many("q", "work", [{}] * 2)


@dataclass
class Jobs:
    """The jobs that sessions are about to meet at, in a ring in which all is under way."""

    failed: set[int]
    droppable: set[int]
    running: list[ClaimedJob]
    lost: list[ClaimedJob]
    all: set[int]

    @classmethod
    def begin(cls, storage: QueueStorage) -> Jobs:
        """Seal a slot in which all has ended, and let jobs wait, run, be lost and be failed in the next."""
        failed, old = set(end_jobs(storage, 2)), set(end_jobs(storage, 1))
        age(storage, old, FLOOR + timedelta(minutes=1))
        completed = set(end_jobs(storage, 2, state="completed"))
        assert storage.rotate().outcome == "rotated"
        failed |= set(end_jobs(storage, 1))
        ids = storage.enqueue_many("q", "work", [{}] * 6)
        lost = storage.claim("q", 1)
        run_out(storage)
        running = storage.claim("q", 2)
        return cls(failed | old, old | completed, running, lost, failed | old | completed | set(ids))


ACTIONS: Mapping[str, Callable[[QueueStorage, Jobs], Any]] = {
    "rotate": lambda storage, jobs: storage.rotate(lock_timeout=PATIENT),
    "prune": lambda storage, jobs: storage.prune_oldest(FLOOR, lock_timeout=PATIENT),
    "retry": lambda storage, jobs: storage.retry_failed_by_queue("q"),
    "enqueue": lambda storage, jobs: late(storage),
    "claim": lambda storage, jobs: storage.claim("q", 2),
    "complete": lambda storage, jobs: storage.complete([*jobs.running, *jobs.lost]),
    "rescue": lambda storage, jobs: storage.rescue(),
    "roll-up": lambda storage, jobs: storage.roll_up(lock_timeout=PATIENT),
}
UNDONE: Mapping[str, Callable[[QueueStorage, Jobs], Any]] = {
    f"{name}, undone": lambda storage, jobs, act=ACTIONS[name]: undone(storage, lambda: act(storage, jobs))
    for name in ("enqueue", "claim", "complete")
}

#: Three at once, of those that share most.
TRIPLES = [
    ("rotate", "prune", "enqueue"),
    ("rotate", "prune", "retry"),
    ("rotate", "claim", "roll-up"),
    ("prune", "retry", "claim"),
    ("prune", "retry", "roll-up"),
    ("prune", "complete", "rescue"),
    ("claim", "complete", "rescue"),
]

# What each action does while another one has all its locks and is about to commit; "says blocked" is its outcome.
GOES_ON, WAITS, SAYS_BLOCKED = "goes on", "waits", "says blocked"
WHILE: Mapping[str, Mapping[str, str]] = {
    "rotate": {"rotate": SAYS_BLOCKED, "prune": WAITS},
    # Its locks on the children are exclusive by then: all who look at the slot wait.
    "prune": {"rotate": WAITS, "prune": WAITS, "retry": WAITS, "claim": WAITS, "roll-up": WAITS},
    "retry": {"prune": SAYS_BLOCKED, "retry": WAITS},
    "roll-up": {"roll-up": SAYS_BLOCKED},
    "enqueue, undone": {},
    "claim, undone": {"prune": SAYS_BLOCKED, "claim": WAITS},
    "complete, undone": {"complete": WAITS},
}


class Meeting:
    """Sessions at one queue, who find the same jobs each time and go on in every order."""

    def __init__(self, storage: QueueStorage, connect: Connect) -> None:
        self.watcher = storage
        keep_claims(storage)
        self._jobs = Jobs.begin(storage)
        self._rewind = Rewind(storage.connection, storage.namespace.name)
        self._pruned = sum(pruned(storage))
        sessions = [connect(connection_class=SteppedConnection) for _ in range(3)]
        self._storages = [QueueStorage(session, storage.namespace) for session in sessions]
        self.explorer = Explorer(storage.connection, sessions)

    def orders(self, *names: str, preemptions: int) -> Iterator[Order]:
        """Let the actions of these names meet in every order, and look at the queue after each."""
        acts = [(ACTIONS | UNDONE)[name] for name in names]

        def begin() -> list[Callable[[], Any]]:
            self._rewind()
            return [
                lambda act=act, storage=storage: act(storage, self._jobs)
                for act, storage in zip(acts, self._storages, strict=False)
            ]

        # An action and its like are the same in either order; what is undone is to be met, not to meet others.
        first = [0] if len(set(names)) == 1 or names[0] in UNDONE else None
        for order in self.explorer.orders(begin, preemptions=preemptions, first=first):
            try:
                self.check(dict(enumerate(names)), order)
            except AssertionError as error:
                raise AssertionError(
                    f"{' and '.join(names)} in the order {order.choices}: {error}"
                ) from error
            yield order

    def check(self, names: Mapping[int, str], order: Order) -> None:
        """Find each job in exactly one place, and each outcome true."""
        results: dict[str, list[Any]] = {name: [] for name in ACTIONS}
        for number, result in enumerate(order.results):
            assert not isinstance(result, BaseException), repr(result)
            if names[number] in ACTIONS:
                results[names[number]].append(result)
        assert {outcome.outcome for outcome in results["rotate"]} <= {"rotated", "blocked", "skipped_busy"}
        assert {outcome.outcome for outcome in results["prune"]} <= {"pruned", "blocked", "noop"}
        assert {outcome.trusted for outcome in results["roll-up"]} <= {True}
        self._check_ends(results)
        assert differences(self.watcher) == [], "the counters are not the rows"
        self._check_places(results)

    def _check_ends(self, results: Mapping[str, list[Any]]) -> None:
        running, lost = len(self._jobs.running), len(self._jobs.lost)
        rescued = sum(outcome.rescued + outcome.failed for outcome in results["rescue"])
        completed = sum(results["complete"])
        if results["complete"]:
            assert running <= completed + rescued <= running + lost, "a claim ended twice, or not at all"
        retried = [job_id for outcome in results["retry"] for job_id in outcome.retried]
        assert len(retried) == len(set(retried)) and set(retried) <= self._jobs.failed
        for outcome in results["retry"]:
            assert outcome.matched == len(outcome.retried) + len(outcome.conflicts) + outcome.raced

    def _check_places(self, results: Mapping[str, list[Any]]) -> None:
        storage, jobs = self.watcher, self._jobs
        gone = sum(pruned(storage)) - self._pruned
        assert gone == sum(outcome.pruned_completed + outcome.pruned_failed for outcome in results["prune"])
        found = [*terminal(storage)]
        found += [job_id for (job_id,) in query(storage, "SELECT job_id FROM {ns}.deferred_jobs")]
        claims = [claim for batch in results["claim"] for claim in batch]
        claims += [claim for claim in (*jobs.running, *jobs.lost) if claim.job_id not in found]
        assert storage.complete(claims) == len(claims), "a claim was lost"
        while batch := storage.claim("q", 100):
            assert storage.complete(batch) == len(batch)
            claims += batch
        found += [claim.job_id for claim in claims]
        assert len(found) == len(set(found)), "a job stands in two places"
        every = jobs.all | {job_id for ids in results["enqueue"] for job_id in ids}
        missing = every - set(found)
        assert set(found) <= every and missing <= jobs.droppable and len(missing) == gone, "a job is gone"

    def deadlocks(self) -> int:
        """Return how many deadlocks the server has found so far in this database."""
        for storage in self._storages:
            storage.connection.execute("SELECT pg_stat_force_next_flush()")
        found = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        return int(self.watcher.connection.execute(found).fetchall()[0][0])


@pytest.fixture
def meeting(storage: QueueStorage, connect: Connect) -> Iterator[Meeting]:
    """Sessions that are patient, and have no need of the server to tell them that they wait for each other."""
    meeting = Meeting(storage, connect)
    before = meeting.deadlocks()
    with meeting.explorer:
        yield meeting
    assert meeting.deadlocks() == before


def meanwhile(orders: list[Order], holder: int, other: int) -> str:
    """Tell what the other one did when the holder stood before its last commit."""
    stood = {
        decision.stood[1]: order
        for order in orders
        if order.preemptions() == 1
        for decision in order.decisions
        if decision.preempts and decision.before == holder and decision.stood[0] == COMMIT
    }
    order = stood[max(stood)]
    if other in order.waited:
        return WAITS
    return SAYS_BLOCKED if getattr(order.results[other], "outcome", "") == "blocked" else GOES_ON


@pytest.mark.timeout(0 if FULL else 300)
@pytest.mark.parametrize("holder", [*ACTIONS, *UNDONE])
def test_two_actions_in_every_order_leave_each_job_in_one_place(
    meeting: Meeting, holder: str, record_property: Callable[[str, object], None]
) -> None:
    """One of them is made to stand once, at any statement; in the full run twice."""
    names = list(ACTIONS)
    others = names[names.index(holder) :] if holder in names else names
    count = 0
    for other in others:
        orders = list(meeting.orders(holder, other, preemptions=2 if FULL else 1))
        count += len(orders)
        if holder in WHILE:
            assert (other, meanwhile(orders, 0, 1)) == (other, WHILE[holder].get(other, GOES_ON))
        if other in WHILE and other != holder and holder in names:
            assert (other, meanwhile(orders, 1, 0)) == (other, WHILE[other].get(holder, GOES_ON))
    record_property("covered", f"{holder} with each of {len(others)} actions: {count} orders")


@pytest.mark.timeout(0 if FULL else 300)
def test_three_actions_in_every_order_leave_each_job_in_one_place(
    meeting: Meeting, record_property: Callable[[str, object], None]
) -> None:
    """One after the other; in the full run one of them is made to stand once, at any statement."""
    for names in TRIPLES:
        count = len(list(meeting.orders(*names, preemptions=1 if FULL else 0)))
        record_property("covered", f"{', '.join(names)}: {count} orders")


def test_a_prune_that_lets_writers_in_is_caught(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    class Weaker(Statements):
        def render(self, name: str, namespace: Namespace, **numbers: int) -> bytes:
            return b"SELECT" if name == "hold_writers" else super().render(name, namespace, **numbers)

    monkeypatch.setattr(QueueSlotPrune, "sql", Weaker("queue/prune"))
    with pytest.raises(AssertionError, match="prune and retry in the order"):
        list(meeting.orders("prune", "retry", preemptions=1))
