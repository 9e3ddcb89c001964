"""A day in minutes: producers, workers, maintenance each second, outages, erasures, kept snapshots, slow readers.

``make soak`` runs it. It prints what it has measured as tables for ``docs/reference/soak.md``, and fails when something
grows without end or an invariant does not hold when all is over.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from threading import Event, Lock

import psutil
import psycopg
from psycopg import sql
from rich.console import Console

from parkkeeper import database, embedded, migrations
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.queue import QueueStorage

NAMESPACE = "soak"
#: A day of 72-hour floors, in minutes: so long stay failed jobs retryable here.
FLOOR = timedelta(seconds=60)
#: Seconds of each minute in which the provider is away, a snapshot is kept, and a reader sits on its cursor.
AWAY, KEPT, READING = 10, 30, 3


class Provider:
    """An extractor whose provider is away for a part of each minute, and refuses some turns for ever."""

    name, version = "soaked", "1"

    def __init__(self, began: float) -> None:
        self._began, self._chunks = began, Chunks()

    def extract(self, turn: Turn) -> Sequence[Memory]:
        if (time.monotonic() - self._began) % 60 < AWAY:
            raise ExtractionError("unavailable", "away")
        if turn.log_offset > 0 and turn.log_offset % 200 == 0:
            raise ExtractionError("refusal", "no")
        return self._chunks.extract(turn)


@dataclass
class Soak:
    """What goes on, and what was seen of it."""

    dsn: str
    began: float = field(default_factory=time.monotonic)
    over: Event = field(default_factory=Event)
    did: Counter[str] = field(default_factory=Counter)
    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    samples: list[dict[str, float]] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    @contextmanager
    def session(self, role: str) -> Iterator[psycopg.Connection]:
        with database.connect(self.dsn, application_name=f"soak {role}") as connection:
            yield connection

    def timed(self, what: str, action: Callable[[], object], items: int = 1) -> object:
        began = time.perf_counter()
        result = action()
        with self.lock:
            self.took[what].append(time.perf_counter() - began)
            self.did[what] += items
        return result

    # -- the queue

    def produce(self) -> None:
        with self.session("producer") as connection:
            storage = QueueStorage(connection, NAMESPACE)
            while not self.over.wait(0.1):
                self.timed("enqueue", lambda: storage.enqueue_many("q", "work", [{}] * 20), 20)

    def work(self, seed: int) -> None:
        chance = random.Random(seed)
        with self.session("worker") as connection:
            storage = QueueStorage(connection, NAMESPACE)
            while not self.over.wait(0.02):
                claims = self.timed("claim", lambda: storage.claim("q", 50))
                doomed = [claim for claim in claims if chance.random() < 0.05]
                fine = [claim for claim in claims if claim not in doomed]
                self.timed("complete", lambda fine=fine: storage.complete(fine), len(fine))
                storage.fail_many([(claim, "no") for claim in doomed], terminal=True)
                with self.lock:
                    self.did["failed"] += len(doomed)

    def lose(self) -> None:
        with self.session("lost worker") as connection:
            storage = QueueStorage(connection, NAMESPACE)
            while not self.over.wait(2):
                self.did["lost"] += len(storage.claim("q", 5, lease=timedelta(seconds=1)))

    def maintain(self) -> None:
        with self.session("maintenance") as connection:
            storage = QueueStorage(connection, NAMESPACE)
            while not self.over.wait(1):
                self.did["rescued"] += storage.rescue().rescued
                storage.evacuate()
                for ring in ("queue", "claim", "lease"):
                    outcome = self.timed("rotate", lambda ring=ring: storage.rotate(ring=ring))
                    self.did[f"rotate {outcome.outcome}"] += 1
                    self.prune(storage, ring)
                self.timed("roll-up", storage.roll_up)
                self.did["retried"] += len(storage.retry_failed_by_queue("q", limit=10).retried)

    def prune(self, storage: QueueStorage, ring: str) -> None:
        going = True
        while going:
            outcome = self.timed("prune", lambda: storage.prune_oldest(ring=ring))
            self.did[f"prune {outcome.outcome}"] += 1
            self.did["dropped past the floor"] += outcome.pruned_failed
            going = outcome.outcome == "pruned"

    # -- the memory

    def remember(self) -> None:
        chance = random.Random(1)
        with self.session("application") as connection:
            store = MemoryStore(connection, NAMESPACE)
            while not self.over.wait(0.1):
                said = [{"role": "user", "content": "Where is it?"}]
                turns = [{"messages": said, "subject": f"s{chance.randint(1, 500)}"}] * 5
                scope = f"scope{chance.randint(1, 20)}"
                self.timed("append", lambda turns=turns, scope=scope: store.append_many(scope, turns), 5)

    def form(self) -> None:
        with self.session("formation") as connection:
            store, provider = MemoryStore(connection, NAMESPACE), Provider(self.began)
            while not self.over.wait(0.2):
                outcome = self.timed("form", lambda: store.form_batch(provider, limit=100))
                self.did["formed"] += outcome.formed
                self.did["parked"] += outcome.parked
                self.did["deferred by an outage"] += outcome.deferred
                if outcome.circuit == "open":
                    store.probe_now()

    def tend(self) -> None:
        chance = random.Random(2)
        with self.session("tending") as connection:
            store = MemoryStore(connection, NAMESPACE)
            while not self.over.wait(2):
                store.sweep()
                receipt = store.erase(subject=f"s{chance.randint(1, 500)}", reason="asked")
                self.did["erased"] += receipt.deleted["observation"]
                self.did["expired"] += store.expire(FLOOR, reason="retention").deleted["observation"]
                self.did["unparked"] += store.unpark(scope=f"scope{chance.randint(1, 20)}")

    # -- those who are in the way

    def keep_a_snapshot(self) -> None:
        with self.session("snapshot") as connection:
            while not self.over.wait(60 - KEPT):
                with connection.transaction():
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    connection.execute("SELECT count(*) FROM pg_class")
                    self.over.wait(KEPT)
                self.did["snapshots kept"] += 1

    def read_slowly(self) -> None:
        look = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(NAMESPACE, "terminal_jobs"))
        with self.session("reader") as connection:
            while not self.over.wait(20):
                with connection.transaction():
                    connection.execute(look)
                    self.over.wait(READING)
                self.did["slow reads"] += 1

    def sample(self) -> None:
        size = (
            "SELECT (SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
            "         WHERE relnamespace = %s::regnamespace AND relkind = 'r') / 1e6,"
            "       (SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname IN"
            "         ('pg_class', 'pg_attribute', 'pg_statistic', 'pg_depend', 'pg_index')) / 1e6"
        )
        process = psutil.Process()
        with self.session("sampler") as connection:
            while True:
                tables, catalog = map(float, connection.execute(size, [NAMESPACE]).fetchone())
                rss = process.memory_info().rss / 1e6
                minute = (time.monotonic() - self.began) / 60
                self.samples.append({"minute": minute, "tables": tables, "catalog": catalog, "rss": rss})
                if self.over.wait(10):
                    return

    def run(self, minutes: float) -> None:
        actions = [
            self.produce,
            self.produce,
            lambda: self.work(1),
            lambda: self.work(2),
            self.lose,
            self.maintain,
        ]
        actions += [self.remember, self.form, self.tend, self.keep_a_snapshot, self.read_slowly, self.sample]
        with ThreadPoolExecutor(len(actions)) as pool:
            threads = [pool.submit(action) for action in actions]
            wait(threads, timeout=minutes * 60, return_when=FIRST_EXCEPTION)
            self.over.set()
            for thread in threads:
                thread.result()

    def check(self) -> None:
        """Find nothing that grows without end, and each job and turn counted."""
        for what in ("rss", "tables", "catalog"):
            early, late = self.halves(what)
            assert late < 1.5 * early + 20, f"{what} grew from {early:.1f} to {late:.1f} MB"
        with self.session("check") as connection:
            storage, store = QueueStorage(connection, NAMESPACE), MemoryStore(connection, NAMESPACE)
            counts = storage.queue_counts("q")
            total = counts.available + counts.running + counts.deferred + counts.terminal
            assert total == self.did["enqueue"], (
                f"{self.did['enqueue']} jobs were enqueued and {total} are counted"
            )
            storage.rebuild_terminal_counters()
            assert storage.queue_counts("q") == counts, "the counters are not the rows"
            assert store.verify() == [], "a kept number of the memory is not that of the rows"

    def halves(self, what: str) -> tuple[float, float]:
        """Return the most that there was of something in the first half of the time, and in the second."""
        half = self.samples[-1]["minute"] / 2
        early = max(sample[what] for sample in self.samples if sample["minute"] <= half)
        return early, max(sample[what] for sample in self.samples if sample["minute"] > half)

    def show(self, console: Console) -> None:
        """Print the tables of the report."""
        console.print("| | calls | median, ms | 99th percentile, ms | longest, ms |")
        console.print("| --- | ---: | ---: | ---: | ---: |")
        for what, seconds in sorted(self.took.items()):
            high = sorted(seconds)[len(seconds) * 99 // 100]
            figures = " | ".join(f"{figure * 1000:.1f}" for figure in (median(seconds), high, max(seconds)))
            console.print(f"| {what} | {len(seconds):,} | {figures} |")
        console.print("\n| | first half, at most | second half, at most |\n| --- | ---: | ---: |")
        for what in ("rss", "tables", "catalog"):
            early, late = self.halves(what)
            console.print(f"| {what}, MB | {early:.1f} | {late:.1f} |")
        console.print("\n" + ", ".join(f"{what} {number:,}" for what, number in sorted(self.did.items())))
        console.print(f"load of the machine: {os.getloadavg()[2]:.1f} on {os.cpu_count()} cores")


def main(minutes: float) -> None:
    """Soak a fresh namespace for so many minutes."""
    if minutes < 1:
        raise SystemExit(
            f"minutes {minutes:g} are refused: 1 or more, since the first half is compared with the second"
        )
    with embedded.resolve_dsn() as dsn:
        with database.connect(dsn) as connection:
            for family in migrations.FAMILIES:
                migrations.migrate(connection, NAMESPACE, family)
            QueueStorage(connection, NAMESPACE).set_namespace(failed_retention=FLOOR)
        try:
            soak = Soak(dsn)
            soak.run(minutes)
            soak.show(Console(width=200, soft_wrap=True))
            soak.check()
        finally:
            with database.connect(dsn) as connection:
                connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(NAMESPACE)))


if __name__ == "__main__":
    main(float(sys.argv[1]))
