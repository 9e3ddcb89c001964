"""Producers, workers good and bad, and maintenance, all at once: each job ends once, and nobody waits for long."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from threading import Condition, Event
from typing import Any

import psycopg
import pytest

from load import JOBS, TIMEOUT, Tally, progress, report
from parkkeeper.queue import ClaimedJob, QueueStorage, Worker
from ringside import differences, prune_all, query

pytestmark = pytest.mark.attack

Connect = Callable[..., psycopg.Connection[Any]]

PRODUCERS, WORKERS = 2, 2
#: So long may a session wait for one lock, as docs/explanation/lock-order.md says ("Time limits").
LONGEST_WAIT = timedelta(seconds=5)
#: So often does the ring turn while a long job runs: its slot is sealed by the first turn, and needed after the second.
LONG_LAPS = 3


class Everything:
    """One queue, a thread for each of those who are at it, and a book of what they were told."""

    def __init__(self, storage: QueueStorage, connect: Connect) -> None:
        self.storage, self._connect = storage, connect
        self.book = Condition()
        self.over = Event()
        self.asked = self.producing = 0
        self.committed, self.ended, self.unsure = Tally(), Tally(), Tally()
        self.did: Counter[str] = Counter()
        self.waits: dict[str, float] = {}

    def open(self, role: str) -> QueueStorage:
        return QueueStorage(self._connect(application_name=f"soak {role}"), self.storage.namespace)

    def note(self, what: str, number: int = 1) -> None:
        with self.book:
            self.did[what] += number

    def note_jobs(self, what: str, job_ids: list[int], tally: Tally, times: int = 1) -> None:
        with self.book:
            self.did[what] += len(job_ids)
            tally.add(job_ids, times)

    # -- those who bring jobs and those who do them

    def produce(self, seed: int) -> None:
        storage, chance = self.open("producer"), random.Random(seed)
        while self.asked < JOBS:
            kind = chance.choices(["fine", "doomed"], [20, 1])[0]
            number = chance.choice([1, 10, 100, 500])
            later = datetime.now(UTC) + timedelta(seconds=0.2) if chance.random() < 0.1 else None
            with self.book:
                self.asked += number
            ids = storage.enqueue_many(
                "q", kind, [{}] * number, priority=chance.choice([1, 2]), run_at=later, max_attempts=2
            )
            self.note_jobs("enqueued", ids, self.committed)
        with self.book:
            self.producing -= 1

    def work(self, seed: int) -> None:
        """Be a worker as they come, of which some jobs fail; note what became of each."""
        chance = random.Random(seed)

        def handle(claim: ClaimedJob) -> None:
            if chance.random() < (0.01 if claim.kind == "fine" else 0.5):
                raise ValueError("it was meant to fail")

        Worker(Noted(self, self.open("worker")), "q", handle, batch=100).run(self.over)

    def lose(self) -> None:
        """Be a worker that dies with jobs in hand, and comes back late to finish some of them."""
        storage, chance = self.open("lost worker"), random.Random(7)
        while self.producing and not self.over.wait(0.1):
            claims = storage.claim("q", 20, lease=timedelta(seconds=0.05))
            self.note_jobs("lost", [claim.job_id for claim in claims], self.unsure)
            if chance.random() < 0.5:
                self.over.wait(0.1)
                self.note("completed", storage.complete(claims))

    def put_off(self) -> None:
        """Be a worker that snoozes what it claims."""
        storage = Noted(self, self.open("snoozer"))
        while self.producing and not self.over.wait(0.05):
            claims = storage.claim("q", 20)
            assert storage.extend(claims, timedelta(minutes=10)) <= len(claims)
            self.note("snoozed", storage.snooze(claims[:10], datetime.now(UTC)))
            storage.complete(claims[10:])

    def run_long(self) -> None:
        """Be a worker whose jobs run for laps of the ring, so that they are moved out of their slots meanwhile."""
        storage = Noted(self, self.open("long runner"))
        while self.producing and not self.over.wait(0.05):
            claims = storage.claim("q", 10, lease=timedelta(minutes=10))
            begun = self.did["queue rotated"]
            while claims and self.did["queue rotated"] < begun + LONG_LAPS and not self.over.wait(0.05):
                pass
            self.note("ran long", storage.extend(claims, timedelta(minutes=20)))
            storage.fail_many([(claim, "it took too long") for claim in claims[:3]])
            storage.complete(claims[3:])

    def cancel(self) -> None:
        storage, chance = self.open("canceller"), random.Random(8)
        while self.producing and not self.over.wait(0.01):
            job_id = chance.randint(1, max(1, self.asked))
            if storage.cancel(job_id):
                self.note_jobs("cancelled", [job_id], self.ended)

    # -- those who keep the queue

    def maintain(self) -> None:
        storage = self.open("maintenance")
        while not self.over.wait(0.05):
            rescue = storage.rescue()
            self.note("rescued", rescue.rescued)
            self.note("failed", rescue.failed)
            evacuated = storage.evacuate()
            self.note("evacuated", evacuated.waiting)
            self.note("evacuated while it ran", evacuated.running)
            self.turn(storage, "queue")

    def roll_up(self) -> None:
        """Fold the ledger while all write to it; now and then doubt it, and count anew."""
        storage, chance = self.open("roll-up"), random.Random(9)
        while not self.over.wait(0.05):
            if chance.random() < 0.05:
                storage.rebuild_terminal_counters()
                self.note("rebuilt")
            outcome = storage.roll_up()
            assert outcome.trusted
            self.note("folded", outcome.folded)
            self.note(f"roll-up {outcome.outcome}")

    def turn_what_workers_hold(self) -> None:
        storage = self.open("maintenance of claims")
        while not self.over.wait(0.05):
            for ring in ("lease", "claim"):
                self.turn(storage, ring)

    def turn(self, storage: QueueStorage, ring: str) -> None:
        self.note(f"{ring} {storage.rotate(ring=ring).outcome}")
        retention = 1 if ring == "queue" else None
        while (outcome := storage.prune_oldest(retention, ring=ring)).outcome == "pruned":
            self.note(f"{ring} pruned")
        self.note(f"{ring} prune {outcome.outcome}")

    def retry(self) -> None:
        storage = self.open("retry")
        while not self.over.wait(0.5):
            outcome = storage.retry_failed_by_queue("q", limit=50)
            self.note_jobs("retried", outcome.retried, self.ended, -1)

    def count(self) -> None:
        """Look at the counts all the time: each job is counted once, wherever it is."""
        storage, dropped = self.open("counter"), 0
        while not self.over.wait(0.01):
            least = self.committed.jobs
            counts = storage.queue_counts("q") if least else None
            if counts is not None:
                total = counts.available + counts.running + counts.deferred + counts.terminal
                assert least <= total <= self.asked
                assert counts.pruned_failed >= dropped
                dropped = counts.pruned_failed

    def watch(self) -> None:
        """Look at who waits for a lock, and for how long."""
        session = self._connect(application_name="watcher")
        while not self.over.wait(0.02):
            for role, waited in session.execute(
                "SELECT application_name, extract(epoch FROM clock_timestamp() - waitstart)::float8"
                " FROM pg_locks JOIN pg_stat_activity USING (pid)"
                " WHERE waitstart IS NOT NULL AND application_name LIKE 'soak %'"
            ):
                self.waits[role] = max(waited, self.waits.get(role, 0.0))

    def run(self) -> None:
        """Let them all go on until every job has ended."""
        self.producing = PRODUCERS
        actions: list[Callable[[], None]] = [self.lose, self.put_off, self.cancel, self.maintain, self.retry]
        actions += [self.turn_what_workers_hold, self.roll_up, self.run_long, self.count, self.watch]
        actions += [lambda seed=seed: self.produce(seed) for seed in range(PRODUCERS)]
        actions += [lambda seed=seed: self.work(100 + seed) for seed in range(WORKERS)]
        with ThreadPoolExecutor(len(actions)) as pool, progress(JOBS) as show:
            threads = [pool.submit(action) for action in actions]
            try:
                while not self.done():
                    show(self.ended.jobs)
                    for thread in wait(threads, timeout=0.2, return_when=FIRST_EXCEPTION).done:
                        thread.result()
            finally:
                self.asked = max(self.asked, JOBS)
                self.over.set()
            for thread in threads:
                thread.result()

    def done(self) -> bool:
        if self.producing or not self.committed.jobs:
            return False
        counts = self.storage.queue_counts("q")
        return counts.available + counts.running + counts.deferred + counts.failed == 0


class Noted(QueueStorage):
    """A queue that keeps book of what its worker was told of each job."""

    def __init__(self, everything: Everything, storage: QueueStorage) -> None:
        super().__init__(storage.connection, storage.namespace)
        self._everything = everything

    def complete(self, claims: Iterable[ClaimedJob]) -> int:
        given = list(claims)
        completed = super().complete(given)
        ids = [claim.job_id for claim in given]
        if completed == len(given):
            self._everything.note_jobs("completed", ids, self._everything.ended)
        else:
            # One or the other was rescued or cancelled meanwhile, and it is not said which.
            self._everything.note_jobs("unsure", ids, self._everything.unsure)
            self._everything.note("completed", completed)
        return completed

    def fail_many(
        self, failures: Iterable[tuple[ClaimedJob, str]], *, terminal: bool = False
    ) -> list[str | None]:
        given = list(failures)
        states = super().fail_many(given, terminal=terminal)
        failed = [claim.job_id for (claim, _), state in zip(given, states, strict=True) if state == "failed"]
        self._everything.note_jobs("failed", failed, self._everything.ended)
        return states


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT)
def test_each_job_ends_once_whatever_goes_on_beside_it(storage: QueueStorage, connect: Connect) -> None:
    everything = Everything(storage, connect)
    everything.run()

    did, committed = everything.did, everything.committed.seen()
    waits = {role: round(seconds * 1000) for role, seconds in sorted(everything.waits.items())}
    report(f"{dict(sorted(did.items()))}; longest waits for one lock, in ms: {waits}")
    assert set(committed.values()) == {1} and len(committed) == did["enqueued"] >= JOBS
    assert did["completed"] + did["failed"] + did["cancelled"] - did["retried"] == len(committed)
    # Each by itself, but for those few whose end was told as part of a sum.
    unsure = everything.unsure.seen().keys()
    ended = everything.ended.seen()
    assert len(unsure) < len(committed) / 4
    assert [job_id for job_id in committed if job_id not in unsure and ended.get(job_id) != 1] == []

    counts = storage.queue_counts("q")
    assert (counts.available, counts.running, counts.deferred, counts.failed) == (0, 0, 0, 0)
    assert counts.terminal == len(committed)
    assert query(storage, "SELECT job_id FROM {ns}.done_entries GROUP BY 1 HAVING count(*) > 1") == []
    # Batches that were pruned no longer tell that their bodies were claimed, so the bodies go, too.
    storage.rotate()
    prune_all(storage, failed_retention=0)
    assert differences(storage) == []
    # It was no fair weather.
    for what in (
        "cancelled",
        "failed",
        "lost",
        "queue pruned",
        "rescued",
        "retried",
        "claim pruned",
        "snoozed",
        "folded",
        "evacuated while it ran",
    ):
        assert did[what], what
    assert max(everything.waits.values(), default=0.0) < LONGEST_WAIT.total_seconds()
