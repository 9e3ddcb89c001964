"""A prune that is asked to stands down while another transaction keeps a snapshot from before it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from parkkeeper import database, embedded
from parkkeeper.migrations import migrate
from parkkeeper.queue import QueueStorage
from ringside import differences, end_jobs, on_statement, query, snapshot

Connect = Callable[..., psycopg.Connection[Any]]
PATIENCE = timedelta(milliseconds=20)


@pytest.fixture
def storage(storage: QueueStorage) -> QueueStorage:
    """A queue with a sealed slot that holds a failed job."""
    end_jobs(storage)
    storage.rotate()
    return storage


@contextmanager
def kept_snapshot(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Keep a snapshot that was taken before anything of the ring was read."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    connection.execute("SELECT 1")
    yield
    connection.execute("ROLLBACK")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_prune_stands_down_while_a_snapshot_is_kept(
    storage: QueueStorage, connect: Connect, dry_run: bool
) -> None:
    with kept_snapshot(connect()), kept_snapshot(connect()):
        before = snapshot(storage)
        outcome = storage.prune_oldest(wait_for_snapshots=True, lock_timeout=PATIENCE, dry_run=dry_run)
        assert (outcome.outcome, outcome.slot, outcome.generation) == ("skipped_active", 0, 0)
        assert (outcome.reason, outcome.count) == ("old_snapshot", 2)
        assert snapshot(storage) == before
    assert storage.prune_oldest(wait_for_snapshots=True, dry_run=dry_run).outcome == "pruned"
    assert differences(storage) == []


def test_what_the_snapshot_would_miss_is_what_is_waited_for(storage: QueueStorage, connect: Connect) -> None:
    reader = QueueStorage(connect(), storage.namespace)
    count = "SELECT count(*) FROM {ns}.done_entries"
    with kept_snapshot(reader.connection):
        assert storage.prune_oldest(wait_for_snapshots=True, lock_timeout=PATIENCE).reason == "old_snapshot"
        assert query(reader, count) == [(1,)]
    with kept_snapshot(reader.connection):
        assert storage.prune_oldest().carried_failed_rows == 1
        assert query(reader, count) == [(0,)], "a prune that does not wait is not to be missed by a snapshot"


def test_an_open_cursor_keeps_its_snapshot(storage: QueueStorage, connect: Connect) -> None:
    reader = connect()
    reader.execute("BEGIN")
    reader.execute("DECLARE many CURSOR FOR SELECT generate_series(1, 10)")
    assert storage.prune_oldest(wait_for_snapshots=True, lock_timeout=PATIENCE).reason == "old_snapshot"
    reader.execute("ROLLBACK")
    assert storage.prune_oldest(wait_for_snapshots=True).outcome == "pruned"


def test_an_open_transaction_without_a_snapshot_is_no_hindrance(
    storage: QueueStorage, connect: Connect
) -> None:
    producer = connect()
    producer.execute("BEGIN")
    QueueStorage(producer, storage.namespace).enqueue("q", "work")
    # The server lets go of what a statement with parameters has left when the next one comes.
    producer.execute("SELECT 1")
    assert storage.prune_oldest(wait_for_snapshots=True).outcome == "pruned"
    producer.execute("COMMIT")


def test_statements_that_come_and_go_are_no_hindrance(storage: QueueStorage, connect: Connect) -> None:
    reader = connect()
    reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    reader.execute("SELECT 1")
    looks = 0

    def next_one(name: str) -> None:
        # Each time that is looked there is a snapshot, and never the same.
        nonlocal looks
        if name == "open_snapshots":
            looks += 1
            reader.execute("COMMIT")
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")

    on_statement(storage, "queue/ring", after=next_one)
    outcome = storage.prune_oldest(wait_for_snapshots=True, lock_timeout=timedelta(seconds=5))
    assert (outcome.outcome, looks) == ("pruned", 2)
    reader.execute("COMMIT")


def test_a_slot_in_use_says_so_whatever_snapshots_there_are(storage: QueueStorage, connect: Connect) -> None:
    storage.prune_oldest()
    storage.enqueue("q", "work")
    storage.rotate()
    with kept_snapshot(connect()):
        assert storage.prune_oldest(wait_for_snapshots=True, lock_timeout=PATIENCE).reason == "ready_rows"


def test_the_other_rings_wait_for_snapshots_when_asked(storage: QueueStorage, connect: Connect) -> None:
    storage.rotate(ring="claim")
    with kept_snapshot(connect()):
        outcome = storage.prune_oldest(ring="claim", wait_for_snapshots=True, lock_timeout=PATIENCE)
        assert (outcome.outcome, outcome.reason, outcome.count) == ("skipped_active", "old_snapshot", 1)
    assert storage.prune_oldest(ring="claim", wait_for_snapshots=True).outcome == "pruned"


def test_a_prepared_transaction_is_waited_for() -> None:
    # A server of its own: by default none prepares transactions.
    bindir = os.environ.get("PARKKEEPER_TEST_BINDIR")
    settings = {"fsync": "off", "max_prepared_transactions": "2"}
    with (
        embedded.start(settings=settings, bindir=Path(bindir) if bindir else None) as server,
        database.connect(server.dsn) as connection,
        database.connect(server.dsn) as other,
    ):
        migrate(connection, "jobs", "queue", queue_slots=4)
        storage = QueueStorage(connection, "jobs")
        end_jobs(storage)
        storage.rotate()
        other.execute("BEGIN")
        other.execute("SELECT pg_current_xact_id()")
        other.execute("PREPARE TRANSACTION 'kept'")

        outcome = storage.prune_oldest(wait_for_snapshots=True, lock_timeout=PATIENCE)

        assert (outcome.reason, outcome.count) == ("old_snapshot", 1)
        other.execute("ROLLBACK PREPARED 'kept'")
        assert storage.prune_oldest(wait_for_snapshots=True).outcome == "pruned"
