"""Prune and rotate against readers, writers and each other: one does it, the other says so at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import psycopg
import pytest

from parkkeeper.errors import TransactionOpen, UnknownNamespace
from parkkeeper.queue import QueueStorage
from ringside import (
    PRUNE,
    SOON,
    Gate,
    differences,
    end_jobs,
    held,
    on_statement,
    query,
    snapshot,
    terminal,
    until,
)

Connect = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def other(storage: QueueStorage, connect: Connect, namespace: str) -> QueueStorage:
    """The same queue from another session."""
    return QueueStorage(connect(), namespace)


def test_a_rotate_cannot_move_under_a_prune(storage: QueueStorage, other: QueueStorage) -> None:
    query(storage, "UPDATE {ns}.settings SET value = 'live' WHERE name = 'carry_to'")
    [job_id] = end_jobs(storage)
    storage.rotate()
    ring = query(other, "SELECT * FROM {ns}.queue_ring_state")

    # The destination of the carry has been read by then, and nothing was carried yet.
    with held(storage.prune_oldest, Gate(storage, "queue/carry", "carry")) as prune:
        assert other.rotate().outcome == "blocked"
        assert query(other, "SELECT * FROM {ns}.queue_ring_state") == ring

    assert prune.result(SOON).carried_failed_rows == 1
    assert terminal(storage) == {job_id: ("failed", 1, True)}
    assert other.rotate().slot == 2


def test_a_second_prune_says_blocked_at_once(storage: QueueStorage, other: QueueStorage) -> None:
    end_jobs(storage)
    storage.rotate()

    with held(storage.prune_oldest, Gate(storage, "queue/carry", "census")) as prune:
        # Without the lock's timeout having anything to do with it.
        outcome = other.prune_oldest(lock_timeout=timedelta(seconds=5))
        assert (outcome.outcome, outcome.reason) == ("blocked", "prune")
        assert outcome.lock_ms < 5000

    assert prune.result(SOON).outcome == "pruned"
    assert other.prune_oldest().outcome == "noop"


def test_a_second_rotate_says_blocked_at_once(storage: QueueStorage, other: QueueStorage) -> None:
    end_jobs(storage)

    with held(storage.rotate, Gate(storage, "queue/ring", "advance")) as rotate:
        assert other.rotate(lock_timeout=timedelta(seconds=5)).outcome == "blocked"

    assert rotate.result(SOON).slot == 1


def test_a_prune_says_blocked_while_a_rotate_holds_the_ring(
    storage: QueueStorage, other: QueueStorage
) -> None:
    end_jobs(storage)
    storage.rotate()

    with held(storage.rotate, Gate(storage, "queue/ring", "advance")):
        outcome = other.prune_oldest()

    assert (outcome.outcome, outcome.reason) == ("blocked", "ring_state")


def test_two_rotates_and_two_prunes_at_once_do_each_thing_once(
    storage: QueueStorage, connect: Connect
) -> None:
    sessions = [QueueStorage(connect(), storage.namespace) for _ in range(4)]
    barrier = Barrier(4)
    total = 0

    def at_once(act: Callable[[], Any]) -> str:
        barrier.wait(SOON)
        return str(act().outcome)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(12):
            end_jobs(storage, 2)
            end_jobs(storage, 1, state="completed")
            total += 3
            actions = [
                sessions[0].rotate,
                sessions[1].rotate,
                sessions[2].prune_oldest,
                sessions[3].prune_oldest,
            ]
            outcomes = [
                future.result(SOON) for future in [pool.submit(at_once, action) for action in actions]
            ]
            assert set(outcomes[:2]) <= {"rotated", "blocked"}
            assert set(outcomes[2:]) <= {"pruned", "blocked", "noop"}
            assert differences(storage) == []
            assert storage.queue_counts("q").terminal == total
            while storage.prune_oldest().outcome == "pruned":
                pass
    assert storage.queue_counts("q").failed == 24


def test_a_reader_of_the_slot_blocks_its_prune_and_nothing_changes(
    storage: QueueStorage, connect: Connect
) -> None:
    end_jobs(storage, 3)
    storage.rotate()
    before = snapshot(storage)
    reader = QueueStorage(connect(), storage.namespace)
    begun: list[str] = []
    on_statement(storage, PRUNE, before=begun.append)
    with reader.connection.transaction():
        query(reader, "SELECT count(*) FROM {ns}.done_entries_0")

        outcome = storage.prune_oldest()

        assert begun[-1] == "probe", "work was begun that could not be finished"
        assert (outcome.outcome, outcome.slot, outcome.generation, outcome.reason) == (
            "blocked",
            0,
            0,
            "slot",
        )
        assert (outcome.carried_failed_rows, outcome.pruned_failed, outcome.pruned_completed) == (0, 0, 0)
        assert snapshot(storage) == before
    assert storage.prune_oldest().carried_failed_rows == 3


def test_a_reader_that_comes_during_the_prune_blocks_its_truncate(
    storage: QueueStorage, other: QueueStorage
) -> None:
    end_jobs(storage, 3)
    storage.rotate()
    before = snapshot(storage)

    def read(name: str) -> None:
        if name == "hold_all":
            other.connection.execute("BEGIN")
            query(other, "SELECT count(*) FROM {ns}.terminal_jobs")

    on_statement(storage, PRUNE, before=read)
    assert storage.prune_oldest().outcome == "blocked"
    other.connection.execute("COMMIT")
    assert snapshot(storage) == before


def test_a_writer_that_is_late_waits_for_the_prune_and_its_job_is_kept(
    storage: QueueStorage, other: QueueStorage
) -> None:
    end_jobs(storage, 3)
    # Such a transaction sees the ring as it was, and adds to the slot that is sealed by now.
    other.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    query(other, "SELECT current_slot FROM {ns}.queue_ring_state")
    storage.rotate()
    waited = []

    def write(name: str) -> None:
        if name in ("census", "carry", "fold", "terminal_rows", "hold_all"):
            with pytest.raises(psycopg.errors.LockNotAvailable), other.connection.transaction():
                query(other, "SET LOCAL lock_timeout = '10ms'")
                other.enqueue("q", "work")
            waited.append(name)

    on_statement(storage, PRUNE, before=write)
    assert storage.prune_oldest().outcome == "pruned"
    assert len(waited) == 5
    job_id = other.enqueue("q", "work")
    other.connection.execute("COMMIT")
    assert query(other, "SELECT ready_slot FROM {ns}.ready_entries WHERE job_id = %s", job_id) == [(0,)]
    assert [claim.job_id for claim in storage.claim("q")] == [job_id]


def test_readers_are_not_held_up_before_the_truncate(storage: QueueStorage, other: QueueStorage) -> None:
    end_jobs(storage, 3)
    storage.rotate()
    seen = []

    def read(name: str) -> None:
        if name in ("census", "carry", "fold", "terminal_rows"):
            seen.append(other.queue_counts("q").failed)

    on_statement(storage, PRUNE, after=read)
    assert storage.prune_oldest().outcome == "pruned"
    assert seen == [3, 3, 3, 3]


@pytest.mark.parametrize("prepared", [False, True])
def test_a_reader_that_waits_for_the_truncate_finds_the_rows_where_they_were_carried(
    storage: QueueStorage, other: QueueStorage, connect: Connect, prepared: bool
) -> None:
    end_jobs(storage, 3)
    storage.rotate()
    watcher = connect()
    waiting = [other.connection.info.backend_pid]
    other.connection.prepare_threshold = 0 if prepared else None
    with ThreadPoolExecutor(2) as pool:
        reads: list[Future[Any]] = []

        def read(name: str) -> None:
            if name == "reclaimed":
                statement = "SELECT count(*) FROM {ns}.terminal_jobs WHERE state = %s"
                reads.append(pool.submit(query, other, statement, "failed"))
                until(
                    lambda: (
                        watcher.execute(
                            "SELECT FROM pg_locks WHERE pid = %s AND NOT granted", waiting
                        ).rowcount
                    )
                )

        on_statement(storage, PRUNE, before=read)
        assert storage.prune_oldest().carried_failed_rows == 3
        assert reads[0].result(SOON) == [(3,)]
    assert other.queue_counts("q").failed == 3


def test_a_snapshot_older_than_the_prune_sees_carried_rows_in_neither_place(
    storage: QueueStorage, other: QueueStorage
) -> None:
    end_jobs(storage, 3)
    storage.rotate()
    other.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    query(other, "SELECT FROM {ns}.queue_settings")
    assert storage.prune_oldest().carried_failed_rows == 3
    assert query(other, "SELECT count(*) FROM {ns}.terminal_jobs") == [(0,)]
    other.connection.execute("COMMIT")
    assert query(other, "SELECT count(*) FROM {ns}.terminal_jobs") == [(3,)]


def test_autovacuum_never_stands_in_the_way_of_a_prune(storage: QueueStorage) -> None:
    # Its lock on a large child lasts for minutes. A TOAST table without options of its own does as its table does.
    vacuumed = query(
        storage,
        "SELECT child.relname, toast.reloptions FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid"
        " LEFT JOIN pg_class AS toast ON toast.oid = child.reltoastrelid"
        " WHERE child.relkind = 'r' AND child.relnamespace = %s::regnamespace AND child.relname !~ '^lease(s|_claim)_'"
        " AND (child.reloptions @> '{{autovacuum_enabled=off}}' AND toast.reloptions IS NULL) IS NOT TRUE",
        storage.namespace.name,
    )
    assert vacuumed == []


def test_a_blocked_slot_is_passed_over_for_the_next(storage: QueueStorage, other: QueueStorage) -> None:
    end_jobs(storage, 1)
    storage.rotate()
    end_jobs(storage, 2)
    storage.rotate()
    with other.connection.transaction():
        query(other, "SELECT FROM {ns}.done_entries_0")

        assert storage.prune_oldest().slot == 1
        assert storage.prune_oldest().outcome == "blocked"


def test_a_job_that_is_put_back_meanwhile_is_not_carried_too(
    storage: QueueStorage, other: QueueStorage
) -> None:
    failed = end_jobs(storage, 2)
    storage.rotate()
    with other.connection.transaction():
        query(other, "DELETE FROM {ns}.done_entries WHERE job_id = %s", failed[0])
        assert storage.prune_oldest().outcome == "blocked"
        query(other, "INSERT INTO {ns}.queue_terminal_count_deltas VALUES (0, -1, 0, 1, 'failed', 0)")

    assert storage.prune_oldest().carried_failed_rows == 1
    assert list(terminal(storage)) == failed[1:]
    assert differences(storage) == []


def test_a_session_of_repeatable_read_proves_on_what_is_committed_now(
    storage: QueueStorage, other: QueueStorage, connect: Connect
) -> None:
    producer = QueueStorage(connect(), storage.namespace)
    end_jobs(other)
    producer.connection.execute("BEGIN")
    producer.enqueue("q", "work")
    other.rotate()
    storage.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

    def commit(name: str) -> None:
        if name == "lock_state":
            producer.connection.execute("COMMIT")

    on_statement(storage, "queue/ring", before=commit)
    assert storage.prune_oldest().reason == "ready_rows"


def test_a_session_with_rows_as_dictionaries_is_served_too(storage: QueueStorage) -> None:
    storage.connection.row_factory = psycopg.rows.dict_row  # type: ignore[assignment]
    storage.set_queue("q")
    assert storage.rotate().outcome == "skipped_idle"
    assert storage.prune_oldest().outcome == "noop"
    assert storage.queue_counts("q").terminal == 0
    assert storage.retry_failed_by_queue("q").matched == 0
    storage.rebuild_terminal_counters()


def test_neither_becomes_part_of_the_caller_s_transaction(storage: QueueStorage) -> None:
    end_jobs(storage)
    actions = [storage.rotate, storage.prune_oldest, lambda: storage.prune_oldest(dry_run=True)]
    for action in [*actions, storage.rebuild_terminal_counters, lambda: storage.retry_failed_by_queue("q")]:
        with storage.connection.transaction(), pytest.raises(TransactionOpen):
            action()
    storage.connection.autocommit = False
    with pytest.raises(TransactionOpen, match="rotate is a transaction of its own"):
        storage.rotate()


def test_a_namespace_without_a_queue_is_named(connection: psycopg.Connection[Any], namespace: str) -> None:
    storage = QueueStorage(connection, namespace)
    actions = [storage.rotate, storage.prune_oldest, storage.rebuild_terminal_counters]
    for action in [*actions, lambda: storage.queue_counts("q"), lambda: storage.retry_failed_by_kind("k")]:
        with pytest.raises(UnknownNamespace, match=f"migrate --family queue --namespace {namespace}"):
            action()
