"""The upgrade that tells dropped failures apart: additive, and honest about what was folded before it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.migrations import migrate
from parkkeeper.queue import QueueStorage
from ringside import age, differences, end_jobs, prune_all, query


@pytest.fixture
def older(connection: psycopg.Connection[Any], namespace: str) -> QueueStorage:
    """A namespace as it was before 0032, with rows that an older release has pruned."""
    migrate(connection, namespace, "queue", target=31, queue_slots=4)
    storage = QueueStorage(connection, namespace)
    query(storage, "INSERT INTO {ns}.queue_lanes (queue, priority) VALUES ('q', 2)")
    query(storage, "INSERT INTO {ns}.queue_terminal_rollups VALUES ('q', 1234), ('gone', 5)")
    return storage


def _columns(storage: QueueStorage) -> dict[tuple[str, str], tuple[Any, ...]]:
    rows = query(
        storage,
        "SELECT table_name, column_name, data_type, udt_name, is_nullable, column_default, is_generated,"
        " character_maximum_length, numeric_precision FROM information_schema.columns WHERE table_schema = %s",
        storage.namespace.name,
    )
    return {(row[0], row[1]): row[2:] for row in rows}


def test_no_column_is_renamed_retyped_or_dropped(older: QueueStorage) -> None:
    before = _columns(older)

    [applied] = migrate(older.connection, older.namespace, "queue", target=32)

    assert applied.name == "failed_terminal_retention"
    after = _columns(older)
    assert {key: after[key] for key in before} == before
    assert set(after) - set(before) == {("queue_terminal_rollups", "pruned_failed_count")}


def test_rows_folded_before_it_stay_where_they_were_counted(older: QueueStorage) -> None:
    migrate(older.connection, older.namespace, "queue")

    rollups = query(
        older,
        "SELECT queue, pruned_completed_count, pruned_failed_count FROM {ns}.queue_terminal_rollups ORDER BY queue",
    )
    assert rollups == [("gone", 5, 0), ("q", 1234, 0)]
    counts = older.queue_counts("q")
    assert (counts.terminal, counts.pruned_failed) == (1234, 0)
    # Nothing but its rollup is left of this one: what ended there is still told.
    assert older.queue_counts("gone").terminal == 5
    assert older.retry_failed_by_queue("gone").pruned_failed_count == 0


def test_totals_are_right_and_the_split_is_exact_from_then_on(older: QueueStorage) -> None:
    migrate(older.connection, older.namespace, "queue")
    end_jobs(older, 2, state="completed")
    age(older, end_jobs(older, 3), timedelta(hours=73))
    end_jobs(older, 1)
    older.rotate()
    prune_all(older)

    assert query(
        older,
        "SELECT queue, pruned_completed_count, pruned_failed_count FROM {ns}.queue_terminal_rollups WHERE queue = 'q'",
    ) == [("q", 1236, 3)]
    counts = older.queue_counts("q")
    assert (counts.terminal, counts.failed, counts.pruned_failed) == (1240, 1, 3)
    assert differences(older) == []


def test_a_release_that_does_not_know_the_new_column_can_go_on_folding(older: QueueStorage) -> None:
    migrate(older.connection, older.namespace, "queue")

    # What such a release writes: it names the columns it knows.
    for queue in ("q", "new"):
        query(
            older,
            "INSERT INTO {ns}.queue_terminal_rollups AS rollup (queue, pruned_completed_count) VALUES (%s, 10)"
            " ON CONFLICT (queue) DO UPDATE SET pruned_completed_count = rollup.pruned_completed_count + 10",
            queue,
        )

    assert query(
        older,
        "SELECT queue, pruned_completed_count, pruned_failed_count FROM {ns}.queue_terminal_rollups ORDER BY queue",
    ) == [
        ("gone", 5, 0),
        ("new", 10, 0),
        ("q", 1244, 0),
    ]
    assert older.queue_counts("q").terminal == 1244
