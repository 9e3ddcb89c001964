"""Many producers, some slow, many claimers, the ring turning under them: what was committed is done, once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from load import JOBS, TIMEOUT, Tally, progress
from parkkeeper.queue import ClaimedJob, QueueStorage
from ringside import differences, prune_all, query

pytestmark = pytest.mark.attack

Connect = Callable[..., psycopg.Connection[Any]]
PRODUCERS, CLAIMERS = 12, 3
RINGS = ("queue", "lease", "claim")


class Undone(Exception):
    """Rolls a transaction back."""


class Fuzz:
    """What the threads share: sessions, tallies, and a sign that somebody has committed."""

    def __init__(self, storage: QueueStorage, connect: Connect) -> None:
        self.open = lambda: QueueStorage(connect(), storage.namespace)
        self.progress = threading.Condition()
        self.enqueued = 0
        self.committed, self.claimed, self.ended = Tally(), Tally(), Tally()
        self.late: set[Any] = set()
        self.pruned = dict.fromkeys(RINGS, 0)
        self.broken = False
        self.rolled_back = 0
        self.producing = PRODUCERS

    def tally(self, **changes: Any) -> None:
        with self.progress:
            for name, change in changes.items():
                if isinstance(change, int):
                    setattr(self, name, getattr(self, name) + change)
                else:
                    getattr(self, name).add(change)
            self.progress.notify_all()

    def linger(self, chance: random.Random) -> None:
        """Keep a transaction open until others have gone on, or no longer do."""
        with self.progress:
            goal = self.committed.jobs + chance.choice([1, 20, 200, 2_000])
            self.progress.wait_for(lambda: self.committed.jobs >= goal, timeout=0.05)

    def produce(self, seed: int) -> None:
        storage, chance = self.open(), random.Random(seed)
        while self.enqueued < JOBS:
            ids: list[int] = []
            try:
                with storage.connection.transaction():
                    for _ in range(chance.choice([1, 1, 1, 3])):
                        ids += self.enqueue(storage, chance)
                        if chance.random() < 0.6:
                            self.linger(chance)
                    if chance.random() < 0.15:
                        raise Undone
            except Undone:
                self.tally(enqueued=len(ids), rolled_back=1)
            else:
                self.tally(enqueued=len(ids), committed=ids)
        self.tally(producing=-1)

    def enqueue(self, storage: QueueStorage, chance: random.Random) -> list[int]:
        if chance.random() < 0.2:
            with suppress(Undone), storage.connection.transaction():
                storage.enqueue("q", "undone")
                raise Undone
        priority = chance.choice([2, 2, 2, 1])
        if chance.random() < 0.1:
            return [
                storage.enqueue(
                    "q", "k", priority=priority, run_at=datetime.now(UTC) + timedelta(seconds=0.05)
                )
            ]
        with storage.connection.transaction():
            return storage.enqueue_many(
                "q", "k", [{}] * chance.choice([1, 2, 10, 100, 200]), priority=priority
            )

    def claim(self, seed: int) -> None:
        storage, chance = self.open(), random.Random(seed)
        while not self.broken:
            over = not self.producing
            claims: list[ClaimedJob] = []
            with suppress(Undone), storage.connection.transaction():
                claims = storage.claim("q", chance.choice([1, 10, 100, 1000]))
                if claims and chance.random() < 0.1:
                    claims = []
                    raise Undone
            if claims:
                self.work(storage, chance, claims)
            elif over and storage.queue_counts("q").available + storage.queue_counts("q").deferred == 0:
                return
            else:
                with self.progress:
                    self.progress.wait(0.01)

    def work(self, storage: QueueStorage, chance: random.Random, claims: list[ClaimedJob]) -> None:
        failing: list[ClaimedJob] = []
        done: list[ClaimedJob] = []
        for claim in claims:
            (failing if chance.random() < 0.05 else done).append(claim)
        outcomes = storage.fail_many([(claim, "no") for claim in failing], terminal=chance.random() < 0.5)
        assert storage.complete(done) == len(done)
        failed = [claim for claim, outcome in zip(failing, outcomes, strict=True) if outcome == "failed"]
        self.tally(
            claimed=[claim.job_id for claim in claims if claim.attempt == 1],
            ended=[claim.job_id for claim in (*done, *failed)],
        )

    def turn(self) -> None:
        storage = self.open()
        # On a fast machine the producers may be done before a slot could be reclaimed.
        while self.producing or not (self.broken or (self.pruned["queue"] and self.pruned["claim"])):
            storage.evacuate()
            self.late |= set(
                query(storage, "SELECT run_lease FROM {ns}.lease_claim_batches WHERE late_xids <> '{{}}'")
            )
            for ring in RINGS:
                storage.rotate(ring=ring)
                outcome = storage.prune_oldest(2 if ring == "queue" else None, ring=ring)
                self.pruned[ring] += outcome.outcome == "pruned"
            with self.progress:
                self.progress.wait(0.02)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT)
def test_what_was_committed_is_claimed_and_ended_once(storage: QueueStorage, connect: Connect) -> None:
    fuzz = Fuzz(storage, connect)
    for priority in (1, 2):  # makes the lanes, so that all producers use the same
        fuzz.committed.add([storage.enqueue("q", "k", priority=priority)])
    with ThreadPoolExecutor(PRODUCERS + CLAIMERS + 1) as pool, progress(JOBS) as show:
        threads = [pool.submit(fuzz.produce, seed) for seed in range(PRODUCERS)]
        threads += [pool.submit(fuzz.claim, 100 + seed) for seed in range(CLAIMERS)]
        threads.append(pool.submit(fuzz.turn))
        try:
            while wait(threads, timeout=0.5, return_when=FIRST_EXCEPTION).not_done:
                show(fuzz.ended.jobs)
                [thread.result() for thread in threads if thread.done()]
        except BaseException:
            fuzz.broken = True
            raise
        finally:
            fuzz.enqueued, fuzz.producing = JOBS, 0

    assert fuzz.rolled_back > 10 and fuzz.committed.jobs > JOBS / 2
    committed = fuzz.committed.seen()
    assert set(committed.values()) == {1}
    assert fuzz.claimed.seen() == committed
    assert fuzz.ended.seen() == committed
    counts = storage.queue_counts("q")
    assert (counts.available, counts.running, counts.deferred) == (0, 0, 0)
    assert counts.terminal == fuzz.committed.jobs
    # Batches that were pruned no longer tell that their bodies were claimed, so the bodies go, too.
    prune_all(storage, failed_retention=0)
    assert storage.rotate().outcome == "rotated"
    prune_all(storage, failed_retention=0)
    assert differences(storage) == []
    # It was no fair weather: some were late, and the rings have turned.
    assert len(fuzz.late) > 5
    assert fuzz.pruned["queue"] and fuzz.pruned["claim"]
