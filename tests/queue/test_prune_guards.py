"""The brakes of a prune: a rehearsal, a limit on what may be lost, arguments that cannot be meant."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.errors import InvalidArgument, InvalidName
from parkkeeper.queue import PruneRefused, QueueStorage
from ringside import PRUNE, age, end_jobs, on_statement, query, snapshot

FLOOR = timedelta(hours=72)


def _fill(storage: QueueStorage) -> None:
    end_jobs(storage, 2)
    age(storage, end_jobs(storage, 3), FLOOR + timedelta(seconds=1))
    end_jobs(storage, 4, state="completed")
    storage.rotate()


def _pages(storage: QueueStorage) -> list[tuple[Any, ...]]:
    """Return the files of the namespace's tables: a TRUNCATE gives a table a new one."""
    return query(
        storage,
        "SELECT oid, relfilenode FROM pg_class WHERE relnamespace = %s::regnamespace ORDER BY oid",
        storage.namespace.name,
    )


def test_a_mistyped_retention_is_refused_with_the_figure_and_changes_nothing(storage: QueueStorage) -> None:
    _fill(storage)
    age(
        storage,
        [row[0] for row in query(storage, "SELECT job_id FROM {ns}.done_entries")],
        timedelta(minutes=1),
    )
    before = snapshot(storage), _pages(storage)

    with pytest.raises(
        PruneRefused, match="would drop 5 failed jobs, more than max_pruned_failed 4"
    ) as refused:
        storage.prune_oldest(timedelta(seconds=1), max_pruned_failed=4)

    assert refused.value.pruned_failed == 5
    assert (snapshot(storage), _pages(storage)) == before
    assert storage.prune_oldest(timedelta(seconds=1), max_pruned_failed=5).pruned_failed == 5


def test_a_refused_slot_is_passed_over_for_the_next(storage: QueueStorage) -> None:
    _fill(storage)
    end_jobs(storage, 1, state="completed")
    storage.rotate()

    assert storage.prune_oldest(FLOOR, max_pruned_failed=0).slot == 1
    with pytest.raises(PruneRefused) as refused:
        storage.prune_oldest(FLOOR, max_pruned_failed=0)
    assert refused.value.pruned_failed == 3


def test_a_rehearsal_says_what_the_prune_then_does(storage: QueueStorage) -> None:
    _fill(storage)
    before = snapshot(storage), _pages(storage)

    rehearsal = storage.prune_oldest(FLOOR, dry_run=True)

    assert (snapshot(storage), _pages(storage)) == before
    outcome = storage.prune_oldest(FLOOR)
    assert (outcome.carried_failed_rows, outcome.pruned_failed, outcome.pruned_completed) == (2, 3, 4)
    assert rehearsal == replace(outcome, lock_ms=0.0, truncate_ms=0.0)


def test_a_rehearsal_takes_no_lock_that_a_writer_could_feel(storage: QueueStorage) -> None:
    _fill(storage)
    modes, xids = set(), set()

    def look(name: str) -> None:
        cursor = psycopg.Cursor(storage.connection)
        modes.update(
            cursor.execute("SELECT locktype, mode FROM pg_locks WHERE pid = pg_backend_pid()").fetchall()
        )
        xids.update(cursor.execute("SELECT pg_current_xact_id_if_assigned()").fetchall())

    on_statement(storage, PRUNE, after=look)
    assert storage.prune_oldest(FLOOR, dry_run=True).outcome == "pruned"
    assert modes == {("relation", "AccessShareLock"), ("virtualxid", "ExclusiveLock")}
    assert xids == {(None,)}


def test_a_rehearsal_tells_of_a_refusal_and_of_a_pin_as_the_prune_does(storage: QueueStorage) -> None:
    _fill(storage)
    with pytest.raises(PruneRefused):
        storage.prune_oldest(FLOOR, dry_run=True, max_pruned_failed=2)
    storage.prune_oldest(FLOOR)
    storage.enqueue("q", "work")
    storage.rotate()
    assert storage.prune_oldest(FLOOR, dry_run=True).reason == "ready_rows"


def test_a_retention_that_cannot_be_meant_is_refused_by_name(storage: QueueStorage) -> None:
    _fill(storage)
    before = snapshot(storage)
    refused: dict[str, Any] = {
        r"datetime\.timedelta\(days=-1": timedelta(seconds=-1),
        "microseconds=500000": timedelta(milliseconds=1500),
        "days=35": timedelta(days=35, seconds=1),
        "999999999": timedelta.max,
        "-1": -1,
        r"1\.5": 1.5,
        "nan": float("nan"),
        "inf": float("inf"),
        "1000000": 10**400,
        "True": True,
        "'72h'": "72h",
    }
    for shown, value in refused.items():
        rule = (
            f"^failed_retention .*{shown}.* is refused: a timedelta or a number of whole seconds, .* 35 days"
        )
        with pytest.raises(InvalidArgument, match=rule):
            storage.prune_oldest(value)
        with pytest.raises(InvalidArgument, match=rule):
            storage.set_queue("q", failed_retention=value)
    assert snapshot(storage) == before


def test_whole_seconds_may_be_given_as_a_number(storage: QueueStorage) -> None:
    _fill(storage)
    assert storage.prune_oldest(72 * 3600, dry_run=True).pruned_failed == 3  # type: ignore[arg-type]
    assert storage.prune_oldest(0, dry_run=True).pruned_failed == 5  # type: ignore[arg-type]


def test_a_stored_retention_that_cannot_be_meant_is_refused_by_name(storage: QueueStorage) -> None:
    for stored in ("-1", "72h", "1e3", "99999999999999999999", ""):
        query(storage, "UPDATE {ns}.settings SET value = %s WHERE name = 'failed_retention'", stored)
        with pytest.raises(InvalidArgument, match=r"settings\.failed_retention"):
            storage.prune_oldest()


def test_other_arguments_that_cannot_be_meant_are_refused_by_name(storage: QueueStorage) -> None:
    refused: dict[str, list[Any]] = {
        "carry_to": ["table", "", 1],
        "max_pruned_failed": [-1, 1.0, True],
        "lock_timeout": [timedelta(0), timedelta(seconds=-1), timedelta(seconds=5, microseconds=1), 1],
    }
    for argument, values in refused.items():
        for value in values:
            with pytest.raises(InvalidArgument, match=f"^{argument} .* is refused"):
                storage.prune_oldest(**{argument: value})


def test_a_destination_stored_by_a_later_release_is_refused_by_name(storage: QueueStorage) -> None:
    query(storage, "UPDATE {ns}.settings SET value = 'table' WHERE name = 'carry_to'")
    with pytest.raises(InvalidArgument, match=r"settings\.carry_to 'table'"):
        storage.prune_oldest()


def test_settings_of_a_queue_without_a_name_are_refused(storage: QueueStorage) -> None:
    for name in ("", " q", "q\n", "q" * 201, None):
        with pytest.raises(InvalidName, match="queue"):
            storage.set_queue(name)  # type: ignore[arg-type]


def test_a_prune_with_nothing_to_do_writes_nothing(storage: QueueStorage) -> None:
    end_jobs(storage)
    before = snapshot(storage), _pages(storage)
    xids = set()

    def look(name: str) -> None:
        cursor = psycopg.Cursor(storage.connection)
        xids.update(cursor.execute("SELECT pg_current_xact_id_if_assigned()").fetchall())

    on_statement(storage, PRUNE, after=look)
    outcome = storage.prune_oldest()
    assert (outcome.outcome, outcome.slot, outcome.generation) == ("noop", None, None)
    assert xids == {(None,)}
    assert (snapshot(storage), _pages(storage)) == before


def test_a_slot_without_rows_costs_no_truncate(storage: QueueStorage) -> None:
    end_jobs(storage, 1, state="completed")
    storage.rotate()
    storage.rotate()
    pages = _pages(storage)
    assert storage.prune_oldest().slot == 0
    changed = len(set(_pages(storage)) - set(pages))
    assert changed > 0
    pages = _pages(storage)

    assert storage.prune_oldest().outcome == "noop"

    assert _pages(storage) == pages
    assert query(
        storage, "SELECT slot FROM {ns}.queue_ring_slots WHERE reclaimed_at IS NOT NULL ORDER BY 1"
    ) == [
        (0,),
        (1,),
    ]


def test_only_children_that_hold_rows_are_truncated(storage: QueueStorage) -> None:
    end_jobs(storage, 1, state="completed")
    storage.rotate()
    tombstones = "SELECT relfilenode FROM pg_class WHERE oid = '{ns}.ready_tombstones_0'::regclass"
    before = query(storage, tombstones)
    assert storage.prune_oldest().outcome == "pruned"
    assert query(storage, tombstones) == before
