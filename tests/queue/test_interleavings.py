"""Each pair of actions at once: one stands anywhere inside its transaction while the other one runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import ClaimedJob, QueueStorage
from ringside import SOON, age, differences, end_jobs, on_statement, prune_all, pruned, terminal, until

pytestmark = pytest.mark.attack

Connect = Callable[..., psycopg.Connection[Any]]

FLOOR = timedelta(hours=72)
#: Longer than a test lets anybody wait: what waits gets its lock, and does not happen to say ``blocked``.
PATIENT = timedelta(seconds=5)


@dataclass
class Round:
    """The jobs that two sessions are about to meet at, and what the sessions made of them."""

    storage: QueueStorage
    before: tuple[int, int]
    running: list[ClaimedJob]
    failed: set[int]
    droppable: set[int]
    jobs: set[int]
    outcomes: list[tuple[str, Any]] = field(default_factory=list)

    @classmethod
    def begin(cls, storage: QueueStorage) -> Round:
        """Seal a slot in which all has ended, and let jobs wait, run and be failed in the next."""
        before = pruned(storage)
        failed, old = set(end_jobs(storage, 2)), set(end_jobs(storage, 1))
        age(storage, old, FLOOR + timedelta(minutes=1))
        completed = set(end_jobs(storage, 2, state="completed"))
        assert storage.rotate().outcome == "rotated"
        failed |= set(end_jobs(storage, 1))
        running_ids = storage.enqueue_many("q", "work", [{}] * 2)
        running = storage.claim("q", 2)
        assert [claim.job_id for claim in running] == running_ids
        waiting = set(storage.enqueue_many("q", "work", [{}] * 3))
        droppable = old | completed
        jobs = failed | droppable | set(running_ids) | waiting
        return cls(storage, before, running, failed | old, droppable, jobs)

    def did(self, action: str, result: Any) -> None:
        """Note what has been committed."""
        self.outcomes.append((action, result))
        if action == "enqueue":
            self.jobs |= set(result)

    def check(self) -> None:
        """Find each job in exactly one place, and each outcome true."""
        results: dict[str, list[Any]] = {name: [] for name in ACTIONS}
        for action, result in self.outcomes:
            results[action].append(result)
        assert {outcome.outcome for outcome in results["rotate"]} <= {"rotated", "blocked"}
        assert {outcome.outcome for outcome in results["prune"]} <= {"pruned", "blocked", "noop"}
        assert sum(results["complete"]) == len(self.running) * bool(results["complete"]), "ended once"
        retried = [job_id for outcome in results["retry"] for job_id in outcome.retried]
        assert len(retried) == len(set(retried)) and set(retried) <= self.failed
        for outcome in results["retry"]:
            assert outcome.matched == len(outcome.retried) + len(outcome.conflicts) + outcome.raced

        assert differences(self.storage) == []
        gone = sum(pruned(self.storage)) - sum(self.before)
        assert gone == sum(outcome.pruned_completed + outcome.pruned_failed for outcome in results["prune"])
        ended = terminal(self.storage)
        claims = [claim for batch in results["claim"] for claim in batch]
        claims += [] if results["complete"] else self.running
        assert self.storage.complete(claims) == len(claims), "a claim was lost"
        while batch := self.storage.claim("q", 100):
            assert self.storage.complete(batch) == len(batch)
            claims += batch
        found = [*ended, *(claim.job_id for claim in claims)]
        assert len(found) == len(set(found)), "a job stands in two places"
        missing = self.jobs - set(found)
        assert set(found) <= self.jobs and missing <= self.droppable and len(missing) == gone

        # An empty ring for the next round.
        assert self.storage.rotate().outcome == "rotated"
        prune_all(self.storage, failed_retention=0)
        counts = self.storage.queue_counts("q")
        assert (counts.available, counts.running, counts.deferred, counts.failed) == (0, 0, 0, 0)


ACTIONS: Mapping[str, Callable[[QueueStorage, Round], Any]] = {
    "rotate": lambda storage, meeting: storage.rotate(lock_timeout=PATIENT),
    "prune": lambda storage, meeting: storage.prune_oldest(FLOOR, lock_timeout=PATIENT),
    "retry": lambda storage, meeting: storage.retry_failed_by_queue("q"),
    "enqueue": lambda storage, meeting: storage.enqueue_many("q", "work", [{}] * 2),
    "claim": lambda storage, meeting: storage.claim("q", 2),
    "complete": lambda storage, meeting: storage.complete(meeting.running),
}

#: The file of an action's statements, and the last one before it commits what it did.
LAST = {
    "rotate": ("queue/ring", "advance"),
    "prune": ("queue/prune", "reclaimed"),
    "retry": ("queue/retry", "retry"),
}

# What each action does while another one has all its locks and has not committed; "says blocked" is its outcome.
GOES_ON, WAITS, SAYS_BLOCKED = "goes on", "waits", "says blocked"
WHILE = {
    "rotate": {"rotate": SAYS_BLOCKED, "prune": WAITS},
    # Its locks on the children are exclusive by then: all who look at the slot wait.
    "prune": {"rotate": WAITS, "prune": WAITS, "retry": WAITS, "claim": WAITS},
    "retry": {"prune": SAYS_BLOCKED, "retry": WAITS},
    "enqueue": {},
    "claim": {"prune": SAYS_BLOCKED, "claim": WAITS},
    "complete": {"complete": WAITS},
}


class Stop:
    """Where a session stands until the test lets it go on: behind its statement number `place`, from 0."""

    def __init__(self, place: int | None = None) -> None:
        self.place = place
        self.names: list[str] = []
        self.reached, self._left = Event(), Event()

    def watch(self, storage: QueueStorage, path: str) -> None:
        """Stand at the place among the statements of a session; those of the file at `path` have their names."""

        def passed(name: str) -> None:
            self.names.append(name)
            if len(self.names) - 1 == self.place:
                self.stand()

        on_statement(storage, path, after=passed)

    def stand(self) -> None:
        """Wait here."""
        self.reached.set()
        assert self._left.wait(SOON), "the test did not let it go on"

    def leave(self) -> None:
        """Let the session go on."""
        self._left.set()


class Undone(Exception):
    """Rolls a transaction back."""


class Meeting:
    """Two sessions at one queue, of which one stands in its transaction while the other one acts."""

    def __init__(self, storage: QueueStorage, connect: Connect) -> None:
        self._watcher = storage
        self._first, self._second = (QueueStorage(connect(), storage.namespace) for _ in range(2))

    def statements(self, action: str) -> list[str]:
        """Return the names of an action's statements, in the order in which it runs them."""
        stop, jobs = Stop(), Round.begin(self._watcher)
        stop.watch(self._first, LAST[action][0])
        jobs.did(action, ACTIONS[action](self._first, jobs))
        jobs.check()
        return stop.names

    def at(self, place: int, holder: str, other: str) -> str:
        """Meet at one statement of the holder; tell what the other one did meanwhile."""
        stop, jobs = Stop(place), Round.begin(self._watcher)
        stop.watch(self._first, LAST[holder][0])
        return self._meet(jobs, stop, lambda: jobs.did(holder, ACTIONS[holder](self._first, jobs)), other)

    def before_the_end(self, holder: str, other: str, *, commits: bool) -> str:
        """Meet when the holder has done its work and its transaction is open; tell what the other one did."""
        stop, jobs = Stop(), Round.begin(self._watcher)

        def hold() -> None:
            with suppress(Undone):
                with self._first.connection.transaction():
                    result = ACTIONS[holder](self._first, jobs)
                    stop.stand()
                    if not commits:
                        raise Undone
                jobs.did(holder, result)

        return self._meet(jobs, stop, hold, other)

    def _meet(self, jobs: Round, stop: Stop, hold: Callable[[], None], other: str) -> str:
        waiting = (
            "SELECT FROM pg_locks WHERE pid = %s AND NOT granted",
            [self._second.connection.info.backend_pid],
        )
        with ThreadPoolExecutor(2) as pool:
            try:
                first = pool.submit(hold)
                assert stop.reached.wait(SOON), first
                second = pool.submit(ACTIONS[other], self._second, jobs)
                until(lambda: second.done() or self._watcher.connection.execute(*waiting).rowcount)
                waited = not second.done()
            finally:
                stop.leave()
            first.result(SOON)
            result = second.result(SOON)
        jobs.did(other, result)
        jobs.check()
        if waited:
            return WAITS
        return SAYS_BLOCKED if getattr(result, "outcome", "") == "blocked" else GOES_ON

    def deadlocks(self) -> int:
        """Return how many deadlocks the server has found so far in this database."""
        for session in (self._first, self._second):
            session.connection.execute("SELECT pg_stat_force_next_flush()")
        found = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        return self._watcher.connection.execute(found).fetchall()[0][0]


@pytest.fixture
def meeting(storage: QueueStorage, connect: Connect) -> Iterator[Meeting]:
    """Two sessions that are patient, and have no need of the server to tell them that they wait for each other."""
    meeting = Meeting(storage, connect)
    before = meeting.deadlocks()
    yield meeting
    assert meeting.deadlocks() == before


@pytest.mark.parametrize("other", ACTIONS)
@pytest.mark.parametrize("holder", LAST)
def test_an_action_at_any_statement_of_maintenance_leaves_each_job_in_one_place(
    meeting: Meeting, holder: str, other: str
) -> None:
    statements = meeting.statements(holder)
    did = [meeting.at(place, holder, other) for place in range(len(statements))]
    assert did[statements.index(LAST[holder][1])] == WHILE[holder].get(other, GOES_ON)


@pytest.mark.parametrize("other", ACTIONS)
@pytest.mark.parametrize("holder", ["enqueue", "claim", "complete"])
def test_an_action_during_an_open_transaction_leaves_each_job_in_one_place(
    meeting: Meeting, holder: str, other: str
) -> None:
    for commits in (True, False):
        assert meeting.before_the_end(holder, other, commits=commits) == WHILE[holder].get(other, GOES_ON)
