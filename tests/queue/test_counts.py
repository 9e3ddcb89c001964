"""Counts: exact at every step, known queues only, and restored from the rows when the counters are in doubt."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.errors import InvalidName
from parkkeeper.queue import QueueStorage, UnknownQueue
from parkkeeper.queue.outcomes import QueueCounts
from ringside import PRUNE, age, differences, end_jobs, on_statement, prune_all, query

Connect = Callable[..., psycopg.Connection[Any]]


def _counts(**figures: int) -> QueueCounts:
    names = ("available", "running", "terminal", "pruned_failed", "deferred", "failed")
    return QueueCounts(**{name: figures.pop(name, 0) for name in names}, **figures)


def test_every_step_of_a_job_is_counted(storage: QueueStorage) -> None:
    storage.set_queue("q")
    assert storage.queue_counts("q") == _counts()
    storage.enqueue_many("q", "work", [{}] * 5, max_attempts=2)
    assert storage.queue_counts("q") == _counts(available=5)
    done, failed, retried, dropped = storage.claim("q", 4)
    assert storage.queue_counts("q") == _counts(available=1, running=4)
    storage.complete([done])
    assert storage.queue_counts("q") == _counts(available=1, running=3, terminal=1)
    storage.fail(failed, "no such file", terminal=True)
    assert storage.queue_counts("q") == _counts(available=1, running=2, terminal=2, failed=1)
    storage.fail(retried, "no such file")
    assert storage.queue_counts("q") == _counts(available=1, running=1, terminal=2, failed=1, deferred=1)
    storage.cancel(dropped.job_id)
    assert storage.queue_counts("q") == _counts(available=1, terminal=3, failed=1, deferred=1)
    assert differences(storage) == []


def test_queues_and_priorities_are_told_apart(storage: QueueStorage) -> None:
    storage.enqueue("q", "work", priority=1)
    storage.enqueue("q", "work", priority=3)
    end_jobs(storage, 2, queue="r")
    assert storage.queue_counts("q") == _counts(available=2)
    assert storage.queue_counts("r") == _counts(terminal=2, failed=2)


def test_what_was_pruned_stays_in_the_total(storage: QueueStorage) -> None:
    end_jobs(storage, 3, state="completed")
    end_jobs(storage, 2, state="cancelled")
    age(storage, end_jobs(storage, 4), timedelta(days=4))
    storage.rotate()
    prune_all(storage)
    assert storage.queue_counts("q") == _counts(terminal=9, pruned_failed=4)


def test_a_queue_that_nobody_knows_is_named(storage: QueueStorage) -> None:
    storage.enqueue("q", "work")
    with pytest.raises(UnknownQueue, match=r"queue 'mail' is unknown in namespace test_"):
        storage.queue_counts("mail")
    with pytest.raises(InvalidName, match="queue"):
        storage.queue_counts("mail ")


def test_a_queue_whose_jobs_are_all_scheduled_is_known(storage: QueueStorage) -> None:
    [now] = query(storage, "SELECT now() + interval '1 hour'")
    storage.enqueue("q", "work", run_at=now[0])
    assert storage.queue_counts("q") == _counts(deferred=1)


def test_a_prune_that_is_open_is_counted_once(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    end_jobs(storage, 3)
    storage.rotate()
    other = QueueStorage(connect(), namespace)
    seen = {}

    def count(name: str) -> None:
        # Under the exclusive lock, which begins with hold_all, readers wait for the prune to end.
        if name in ("census", "carry", "fold", "terminal_rows", "hold_all"):
            seen[name] = other.queue_counts("q")

    on_statement(storage, PRUNE, before=count)
    assert storage.prune_oldest().carried_failed_rows == 3
    assert len(seen) == 5
    assert set(seen.values()) == {_counts(terminal=3, failed=3)} == {other.queue_counts("q")}


def test_queue_terminal_live_counts_rebuild_restores_invariant(storage: QueueStorage) -> None:
    end_jobs(storage, 3, state="completed")
    end_jobs(storage, 2)
    end_jobs(storage, 1, state="cancelled")
    storage.rotate()
    storage.enqueue_many("q", "work", [{}] * 5)
    claims = storage.claim("q", 3)
    storage.complete(claims[:1])
    storage.enqueue("r", "work")
    expected = {queue: storage.queue_counts(queue) for queue in ("q", "r")}
    assert expected["q"] == _counts(available=2, running=2, terminal=7, failed=2)

    query(storage, "UPDATE {ns}.queue_terminal_count_deltas SET delta = delta * 3 WHERE state <> 'running'")
    query(storage, "DELETE FROM {ns}.queue_terminal_count_deltas WHERE state = 'cancelled'")
    query(
        storage,
        "INSERT INTO {ns}.queue_terminal_live_counts VALUES (2, 1, 'running', 7, 41), (0, 1, 'failed', 3, -8)",
    )
    assert len(differences(storage)) >= 5
    storage.rebuild_terminal_counters()

    assert differences(storage) == []
    assert {queue: storage.queue_counts(queue) for queue in ("q", "r")} == expected


def test_counters_go_on_from_where_they_were_rebuilt(storage: QueueStorage) -> None:
    end_jobs(storage, 2)
    storage.enqueue_many("q", "work", [{}] * 3)
    query(storage, "DELETE FROM {ns}.queue_terminal_count_deltas")
    storage.rebuild_terminal_counters()
    storage.rebuild_terminal_counters()
    assert query(storage, "SELECT sum(count)::int FROM {ns}.queue_terminal_live_counts") == [(5,)]
    storage.complete(storage.claim("q", 2))
    storage.retry_failed_by_queue("q")
    assert differences(storage) == []
    storage.complete(storage.claim("q", 10))
    storage.rotate()
    prune_all(storage)
    assert differences(storage) == []
    assert storage.queue_counts("q") == _counts(terminal=5)
    assert query(storage, "SELECT count(*) FROM {ns}.queue_terminal_live_counts WHERE ready_slot = 0") == [
        (0,)
    ]


def test_counters_are_rebuilt_after_a_restore(storage: QueueStorage) -> None:
    end_jobs(storage, 2)
    storage.enqueue_many("q", "work", [{}] * 3)
    storage.claim("q", 1)
    # As after a restore into a cluster that counts its transactions from lower on.
    query(storage, "UPDATE {ns}.lease_claim_batches SET cursor_xid = '9000000000'::xid8")
    query(storage, "UPDATE {ns}.queue_ring_state SET table_oid = 1")
    query(storage, "DELETE FROM {ns}.queue_terminal_count_deltas")

    storage.rebuild_terminal_counters()

    assert storage.queue_counts("q") == _counts(available=2, running=1, terminal=2, failed=2)


def test_jobs_of_open_transactions_are_counted_when_they_commit(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    storage.enqueue("q", "work")
    producer = connect()
    with producer.transaction():
        QueueStorage(producer, namespace).enqueue_many("q", "work", [{}] * 2)
        storage.rebuild_terminal_counters()
        assert storage.queue_counts("q") == _counts(available=1)
    assert storage.queue_counts("q") == _counts(available=3)
    assert differences(storage) == []


def test_a_rebuild_does_not_wait_for_claims(storage: QueueStorage, connect: Connect) -> None:
    storage.enqueue_many("q", "work", [{}] * 3)
    other = QueueStorage(connect(), storage.namespace)
    with other.connection.transaction():
        assert len(other.claim("q", 2)) == 2  # holds its lane until it commits
        storage.rebuild_terminal_counters()
    assert storage.queue_counts("q") == _counts(available=1, running=2)
    assert differences(storage) == []
