"""The life of many jobs in one session: ``make bench``."""

from __future__ import annotations

import sys
from datetime import timedelta

from measure import Measurements, bench_namespace

from parkkeeper.queue import QueueStorage

QUEUE = "bench"
BATCH = 500


def main(jobs: int = 100_000) -> None:
    """Enqueue, claim and finish `jobs` jobs, every tenth as failed; then prune them, carrying the failed ones."""
    measured = Measurements(f"Queue, {jobs:,} jobs, batches of {BATCH}, every tenth fails")
    with bench_namespace("queue") as (connection, namespace):
        storage = QueueStorage(connection, namespace)
        claimed = []
        per_call = min(jobs, 10_000)

        def enqueue() -> None:
            for _ in range(0, jobs, per_call):
                storage.enqueue_many(QUEUE, "bench.job", [{"n": n} for n in range(per_call)], max_attempts=1)

        def claim() -> None:
            while batch := storage.claim(QUEUE, BATCH, lease=timedelta(hours=1)):
                claimed.append(batch)

        def complete() -> None:
            for batch in claimed:
                storage.complete(batch[: -BATCH // 10])

        def fail() -> None:
            for batch in claimed:
                storage.fail_many([(job, "it was meant to fail") for job in batch[-BATCH // 10 :]])

        measured.take("enqueue_many", jobs, enqueue)
        measured.take("claim", jobs, claim)
        measured.take("complete", jobs - jobs // 10, complete)
        measured.take("fail_many", jobs // 10, fail)
        measured.take("queue_counts", 1, lambda: storage.queue_counts(QUEUE))
        storage.rotate()
        measured.take("prune_oldest, rows of the slot", jobs, storage.prune_oldest)
        counts = storage.queue_counts(QUEUE)
        assert (counts.available, counts.running, counts.terminal) == (0, 0, jobs), counts
    measured.show()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
