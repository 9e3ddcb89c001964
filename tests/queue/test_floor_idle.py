"""Kept failed jobs cost nothing: an idle namespace writes nothing, a prune does not touch what was carried before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from parkkeeper.queue import QueueStorage
from parkkeeper.queue.ring import RINGS
from ringside import differences, end_jobs, on_statement, prune_all, query, snapshot

Connect = Callable[..., psycopg.Connection[Any]]

#: What a round of maintenance says where there is nothing to do.
IDLE = {"skipped_idle", "noop"}
ROUNDS = 10
#: The server writes by itself now and then; it does not do so in each of so many spans of time.
SPANS = 20


def carried(storage: QueueStorage, count: int) -> None:
    """Let a prune carry so many failed jobs, and go on until nothing is left to do."""
    end_jobs(storage, count)
    storage.rotate()
    assert sum(outcome.carried_failed_rows for outcome in prune_all(storage)) == count
    for _ in range(3):
        maintain(storage)


def maintain(storage: QueueStorage) -> set[str]:
    """Do a round of all maintenance; return what was said."""
    storage.rescue()
    said = {storage.roll_up().outcome, storage.evacuate().outcome}
    for ring in RINGS:
        said |= {storage.rotate(ring=ring).outcome, storage.prune_oldest(ring=ring).outcome}
    storage.purge_dead_letters()
    return said


def position(storage: QueueStorage) -> tuple[Any, ...]:
    """Return how far the server's log and its transaction ids have come, and how often the catalog was changed."""
    query(storage, "SELECT pg_stat_force_next_flush()")
    return query(
        storage,
        "SELECT pg_current_wal_insert_lsn(), pg_snapshot_xmax(pg_current_snapshot()),"
        "       (SELECT n_tup_upd FROM pg_stat_all_tables WHERE relid = 'pg_class'::regclass)",
    )[0]


def test_rounds_of_maintenance_write_nothing_while_failed_jobs_are_kept(storage: QueueStorage) -> None:
    carried(storage, 10_000)
    before = snapshot(storage)
    unmoved = False
    for _ in range(SPANS):
        start = position(storage)
        for _ in range(ROUNDS):
            assert maintain(storage) <= IDLE
        unmoved = unmoved or position(storage) == start
        if unmoved:
            break

    assert unmoved, "maintenance has written to the log, taken a transaction id or changed pg_class each time"
    assert snapshot(storage) == before
    assert storage.queue_counts("q").failed == 10_000
    assert differences(storage) == []


def test_a_prune_of_a_slot_locks_nothing_of_what_was_carried_before_from_readers(
    storage: QueueStorage, connect: Connect
) -> None:
    carried(storage, 100)
    end_jobs(storage, 5)
    storage.rotate()
    watcher = connect()
    locked: list[str] = []

    def look(name: str) -> None:
        if name == "reclaimed":
            locked.extend(
                row[0]
                for row in watcher.execute(
                    "SELECT relname FROM pg_locks JOIN pg_class ON pg_class.oid = relation"
                    " WHERE pid = %s AND mode = 'AccessExclusiveLock' AND relkind IN ('r', 'p')"
                    " ORDER BY relname",
                    [storage.connection.info.backend_pid],
                )
            )

    on_statement(storage, "queue/prune", after=look)
    outcome = storage.prune_oldest()

    assert (outcome.outcome, outcome.carried_failed_rows) == ("pruned", 5)
    slot = outcome.slot
    assert [name for name in locked if not name.startswith("pg_")] == [
        f"done_entries_{slot}",
        f"queue_terminal_count_deltas_{slot}",
        f"ready_entries_{slot}",
        f"ready_tombstones_{slot}",
    ]


def test_what_was_carried_before_is_not_read_by_the_prune_of_a_slot(storage: QueueStorage) -> None:
    carried(storage, 100)
    end_jobs(storage, 5)
    storage.rotate()
    read: list[int] = []

    def look(name: str) -> None:
        found = psycopg.Cursor(storage.connection).execute(
            "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables"
            " WHERE schemaname = %s AND relname LIKE 'done\\_entries\\_floor\\_%%'",
            [storage.namespace.name],
        )
        read.extend(row[0] for row in found)

    on_statement(storage, ("queue/prune", "queue/carry"), after=look)
    assert storage.prune_oldest().carried_failed_rows == 5

    assert len(read) > 5 and len(set(read)) == 1, read
