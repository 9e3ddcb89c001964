"""Transactions that commit late: their jobs are found, and while they are open they cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import QueueStorage
from ringside import differences, prune_all, query

Connect = Callable[..., psycopg.Connection[Any]]


@pytest.fixture(autouse=True)
def lane(storage: QueueStorage) -> None:
    """Make the lane beforehand: producers who make it in open transactions each have one of their own."""
    storage.enqueue("q", "k")
    assert storage.complete(storage.claim("q")) == 1


@pytest.fixture
def late(storage: QueueStorage, connect: Connect) -> QueueStorage:
    """The same queue in a session of its own, for a producer that takes its time."""
    return QueueStorage(connect(lock_timeout=timedelta(seconds=3)), storage.namespace)


def claimed(storage: QueueStorage, limit: int = 100) -> list[int]:
    return [claim.job_id for claim in storage.claim("q", limit)]


def late_list(storage: QueueStorage) -> list[Any]:
    return query(storage, "SELECT late_xids FROM {ns}.lease_claim_batches ORDER BY run_lease DESC LIMIT 1")[
        0
    ][0]


def reads(storage: QueueStorage) -> tuple[int, int]:
    """Return how many entries of the indexes of ready_entries, and how often a whole child of what a claim reads, this
    session has read and not yet reported; it reports between transactions only.
    """
    return query(
        storage,
        "SELECT (SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint FROM pg_index"
        " WHERE indrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = '{ns}.ready_entries'::regclass)),"
        " (SELECT sum(pg_stat_get_xact_numscans(inhrelid))::bigint FROM pg_inherits WHERE inhparent IN"
        " ('{ns}.ready_entries'::regclass, '{ns}.ready_tombstones'::regclass, '{ns}.lease_claim_batches'::regclass))",
    )[0]


@contextmanager
def read_no_more_than(storage: QueueStorage, entries: int) -> Iterator[None]:
    """Run the block in one transaction and look at what it read."""
    with storage.connection.transaction():
        entries_before, scans_before = reads(storage)
        yield
        entries_after, scans_after = reads(storage)
    assert entries_after - entries_before <= entries
    assert scans_after == scans_before


def test_a_job_is_found_whose_transaction_began_first_and_committed_last(
    storage: QueueStorage, late: QueueStorage
) -> None:
    with late.connection.transaction():
        first = late.enqueue("q", "k")
        second = storage.enqueue("q", "k")
        assert claimed(storage) == [second]
        third = storage.enqueue("q", "k")
        assert claimed(storage) == [third]
        more = late.enqueue("q", "k")
        assert claimed(storage) == []
    assert claimed(storage) == [first, more]
    assert claimed(storage) == []
    assert differences(storage) == []


def test_a_late_job_is_found_in_a_slot_that_was_rotated_away(
    storage: QueueStorage, late: QueueStorage
) -> None:
    with late.connection.transaction():
        first = late.enqueue("q", "k")
        assert storage.complete(storage.claim("q", 9)) == 0
        second = storage.enqueue("q", "k")
        assert claimed(storage) == [second]
        assert storage.rotate().outcome == "rotated"
        third = storage.enqueue("q", "k")
        assert claimed(storage) == [third]
        more = late.enqueue("q", "k")
        assert storage.rotate().outcome == "rotated"
        assert storage.prune_oldest().outcome in ("blocked", "skipped_active")
    assert claimed(storage) == [first, more]
    assert differences(storage) == []


def test_a_late_transaction_can_write_into_a_slot_that_was_pruned_and_opened_again(
    storage: QueueStorage, late: QueueStorage
) -> None:
    with late.connection.transaction():
        late.connection.execute("SELECT pg_current_xact_id()")
        for _ in range(9):
            storage.enqueue("q", "k")
            assert storage.complete(storage.claim("q", 9)) == 1
            assert storage.rotate().outcome == "rotated"
            prune_all(storage)
        job_id = late.enqueue("q", "k")
        storage.enqueue("q", "k")
        assert storage.complete(storage.claim("q", 9)) == 1
    assert claimed(storage) == [job_id]


def test_a_late_transaction_is_taken_in_parts_when_the_limit_is_small(
    storage: QueueStorage, connect: Connect
) -> None:
    sessions = [QueueStorage(connect(), storage.namespace) for _ in range(3)]
    with ExitStack() as open_transactions:
        for session in sessions:
            open_transactions.enter_context(session.connection.transaction())
        expected = {job_id for session in sessions for job_id in session.enqueue_many("q", "k", [{}] * 5)}
        expected.add(storage.enqueue("q", "k"))
        found = claimed(storage)
    while batch := claimed(storage, 2):
        assert len(batch) <= 2
        found += batch
    assert len(found) == 16 and set(found) == expected
    assert differences(storage) == []


def test_what_a_late_transaction_rolls_back_is_never_claimed(
    storage: QueueStorage, late: QueueStorage
) -> None:
    with late.connection.transaction(force_rollback=True):
        late.enqueue("q", "k")
        job_id = storage.enqueue("q", "k")
        assert claimed(storage) == [job_id]
        assert len(late_list(storage)) == 1
    assert claimed(storage) == []
    job_id = storage.enqueue("q", "k")
    assert claimed(storage) == [job_id]
    assert late_list(storage) == []


def test_savepoints_of_a_late_transaction_make_no_difference(
    storage: QueueStorage, late: QueueStorage
) -> None:
    with late.connection.transaction():
        with late.connection.transaction():
            kept = [late.enqueue("q", "k")]
        with late.connection.transaction(force_rollback=True):
            late.enqueue("q", "k")
        assert claimed(storage) == []
        other = storage.enqueue("q", "k")
        assert claimed(storage) == [other]
        with late.connection.transaction():
            kept.append(late.enqueue("q", "k"))
    assert claimed(storage) == kept


def test_a_claim_takes_nothing_of_its_own_transaction_and_passes_over_nothing_of_it(
    storage: QueueStorage, connect: Connect
) -> None:
    both = QueueStorage(connect(), storage.namespace)
    with both.connection.transaction():
        mine = [both.enqueue("q", "k")]
        assert claimed(both) == []
        theirs = storage.enqueue("q", "k")
        assert claimed(both) == [theirs]
        mine.append(both.enqueue("q", "k"))
        assert claimed(both) == []
        theirs = storage.enqueue("q", "k")
        assert claimed(both) == [theirs]
        mine.append(both.enqueue("q", "k"))
    assert claimed(storage) == mine
    assert differences(storage) == []


def test_a_claim_that_brought_in_due_jobs_may_enqueue_more_before_it_commits(
    storage: QueueStorage, connect: Connect
) -> None:
    both = QueueStorage(connect(), storage.namespace)
    due = storage.enqueue("q", "k", run_at=datetime.now(UTC) + timedelta(hours=1))
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")
    with both.connection.transaction():
        assert claimed(both) == [due]
        theirs = storage.enqueue("q", "k")
        assert claimed(both) == [theirs]
        mine = both.enqueue("q", "k")
    assert claimed(storage) == [mine]


def test_an_open_bulk_load_is_stepped_over_and_not_walked(storage: QueueStorage, late: QueueStorage) -> None:
    with late.connection.transaction():
        loaded = late.enqueue_many("q", "k", [{}] * 3000)
        with read_no_more_than(storage, 0):
            assert claimed(storage) == []
        other = storage.enqueue("q", "k")
        with read_no_more_than(storage, 5):
            assert claimed(storage) == [other]
            assert claimed(storage) == []
    assert claimed(storage, 5000) == loaded


def test_a_claim_reads_what_it_takes_however_much_was_claimed_before(
    storage: QueueStorage, late: QueueStorage
) -> None:
    """Right after a slot was opened, without statistics, and with a transaction open all the time."""
    for parent in ("ready_entries", "lease_claim_batches"):
        for slot in range(4):
            query(storage, f"ALTER TABLE {{ns}}.{parent}_{slot} SET (autovacuum_enabled = off)")
    with late.connection.transaction():
        late.connection.execute("SELECT pg_current_xact_id()")
        for _ in range(3):
            for _ in range(10):
                storage.enqueue_many("q", "k", [{}] * 200)
            for _ in range(20):
                with read_no_more_than(storage, 105):
                    assert len(claimed(storage, 100)) == 100
            assert storage.rotate().outcome == "rotated"
