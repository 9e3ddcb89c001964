"""A prune that is cut off anywhere leaves the old state, and one that does not add up undoes itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import ConservationBroken, QueueStorage
from ringside import (
    PRUNE,
    CutOff,
    age,
    differences,
    end_jobs,
    on_statement,
    prune_all,
    query,
    snapshot,
    terminal,
)

pytestmark = pytest.mark.attack

Connect = Callable[..., psycopg.Connection[Any]]
FLOOR = timedelta(hours=72)


def _fill(storage: QueueStorage) -> tuple[list[int], int]:
    """Bring jobs of every kind into the current slot and seal it; return what must be carried, and how many end."""
    carried = end_jobs(storage, 3)
    old = end_jobs(storage, 2)
    age(storage, old, FLOOR + timedelta(minutes=1))
    end_jobs(storage, 4, state="completed")
    end_jobs(storage, 1, state="cancelled")
    storage.rotate()
    return carried, 10


def _statements(storage: QueueStorage) -> list[str]:
    """Return the statements of a prune of a slot that was filled, in their order."""
    names: list[str] = []
    on_statement(storage, PRUNE, before=names.append)
    assert storage.prune_oldest(FLOOR).outcome == "pruned"
    return names


def test_a_crash_at_any_statement_leaves_all_as_it_was(
    storage: QueueStorage, connect: Connect, namespace: str, carry_to: str
) -> None:
    killer = connect()
    carried, total = _fill(storage)
    names = _statements(QueueStorage(connect(), namespace))
    assert {"carry", "fold", "truncate_ready", "truncate_done", "truncate_deltas", "reclaimed"} <= set(names)

    # Before the first statement, and after each: the last one is before the commit.
    for place in range(len(names) + 1):
        more, ended = _fill(storage)
        carried, total = carried + more, total + ended
        before = snapshot(storage)
        victim = QueueStorage(connect(), namespace)
        seen = CutOff(victim, PRUNE, place, killer).seen
        with pytest.raises(psycopg.OperationalError):
            victim.prune_oldest(FLOOR)

        assert seen == names[:place]
        assert snapshot(storage) == before, f"changed by a crash after {place} statements"
        prune_all(storage, failed_retention=FLOOR)
        assert differences(storage) == []
        counts = storage.queue_counts("q")
        assert (counts.terminal, counts.failed) == (total, len(carried))
        assert sorted(terminal(storage)) == carried
        assert counts.pruned_failed == 2 * (place + 2)


def test_a_crash_at_any_statement_of_a_segment_s_prune_leaves_all_as_it_was(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    killer = connect()

    def fill() -> None:
        job_ids = end_jobs(storage, 3)
        storage.rotate()
        prune_all(storage, failed_retention=FLOOR)
        age(storage, job_ids, FLOOR)

    fill()
    names = _statements(QueueStorage(connect(), namespace))
    assert {"fold", "truncate_done", "truncate_deltas", "forget_counts", "reclaimed"} <= set(names)
    assert "truncate_ready" not in names

    for place in range(len(names) + 1):
        fill()
        before = snapshot(storage)
        victim = QueueStorage(connect(), namespace)
        seen = CutOff(victim, PRUNE, place, killer).seen
        with pytest.raises(psycopg.OperationalError):
            victim.prune_oldest(FLOOR)

        assert seen == names[:place]
        assert snapshot(storage) == before, f"changed by a crash after {place} statements"
        assert [done.pruned_failed for done in prune_all(storage, failed_retention=FLOOR)] == [3]
        assert differences(storage) == []
        assert storage.queue_counts("q").pruned_failed == 3 * (place + 2)


def _refuse(storage: QueueStorage, table: str, condition: str) -> None:
    """Make `table` swallow rows in silence, as a trigger of the site's own may."""
    query(
        storage,
        "CREATE FUNCTION {ns}.swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    )
    query(
        storage,
        f"CREATE TRIGGER swallow BEFORE INSERT ON {{ns}}.{table} FOR EACH ROW WHEN ({condition})"
        " EXECUTE FUNCTION {ns}.swallow()",
    )


@pytest.mark.parametrize(
    ("table", "condition"),
    [
        ("done_entries_1", "NEW.lane_seq % 3 = 0"),
        ("queue_terminal_rollups", "NEW.queue = 'q'"),
    ],
)
def test_rows_that_do_not_arrive_undo_the_prune(storage: QueueStorage, table: str, condition: str) -> None:
    query(storage, "UPDATE {ns}.settings SET value = 'live' WHERE name = 'carry_to'")
    _fill(storage)
    _refuse(storage, table, condition)
    before = snapshot(storage)

    with pytest.raises(
        ConservationBroken, match=r"slot 0 holds 10 terminal rows, but .* nothing was changed"
    ):
        storage.prune_oldest(FLOOR)

    assert snapshot(storage) == before
    query(storage, f"DROP TRIGGER swallow ON {{ns}}.{table}")
    assert storage.prune_oldest(FLOOR).outcome == "pruned"
    assert differences(storage) == []


def test_rows_whose_lane_is_gone_undo_the_prune(storage: QueueStorage) -> None:
    query(storage, "UPDATE {ns}.settings SET value = 'live' WHERE name = 'carry_to'")
    _fill(storage)
    end_jobs(storage, queue="r")
    storage.rotate()
    prune_all(storage, failed_retention=FLOOR)
    storage.rotate()
    query(storage, "DELETE FROM {ns}.queue_lanes WHERE queue = 'r'")
    before = snapshot(storage)

    with pytest.raises(ConservationBroken):
        storage.prune_oldest(FLOOR)

    assert snapshot(storage) == before


def test_a_failed_job_whose_body_is_gone_undoes_the_prune(storage: QueueStorage) -> None:
    _fill(storage)
    query(
        storage,
        "DELETE FROM {ns}.ready_entries WHERE lane_seq = (SELECT min(lane_seq) FROM {ns}.done_entries)",
    )
    before = snapshot(storage)

    with pytest.raises(ConservationBroken, match="but 2 were carried"):
        storage.prune_oldest(FLOOR)

    assert snapshot(storage) == before


def test_a_key_that_is_taken_in_the_live_slot_aborts_loudly_and_tells_no_content(
    storage: QueueStorage,
) -> None:
    query(storage, "UPDATE {ns}.settings SET value = 'live' WHERE name = 'carry_to'")
    carried, _ = _fill(storage)
    query(
        storage,
        "INSERT INTO {ns}.done_entries SELECT lane_seq, job_id, 1, NULL, run_lease, attempted_at, finalized_at,"
        " now(), now(), 1, lane_id, state, attempt, 1, kind, 'secret', '{{}}', NULL, NULL"
        " FROM {ns}.done_entries WHERE job_id = %s",
        carried[0],
    )
    before = snapshot(storage)

    with pytest.raises(
        ConservationBroken, match=r"constraint done_entries_1_pkey \(23505\): nothing was changed"
    ) as error:
        storage.prune_oldest(FLOOR)

    assert "secret" not in str(error.value)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__
    assert snapshot(storage) == before
