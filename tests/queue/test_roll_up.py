"""Roll-up: what is folded is counted as before, at every moment and wherever it is cut off, and is in nobody's way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from parkkeeper.database import statements
from parkkeeper.errors import InvalidArgument, TransactionOpen
from parkkeeper.queue import QueueStorage, roll_up
from parkkeeper.queue.outcomes import RollUpOutcome
from ringside import Gate, differences, end_jobs, held, on_statement, query

Connect = Callable[..., psycopg.Connection[Any]]


def ledger(storage: QueueStorage) -> tuple[int, int]:
    """Return how many differences stand in the ledger, and how many folded counts."""
    [(deltas, folded)] = query(
        storage,
        "SELECT (SELECT count(*) FROM {ns}.queue_terminal_count_deltas),"
        " (SELECT count(*) FROM {ns}.queue_terminal_live_counts)",
    )
    return deltas, folded


def fill(storage: QueueStorage) -> None:
    """Append differences of every state to two slots."""
    end_jobs(storage, 3, state="completed")
    end_jobs(storage, 2)
    end_jobs(storage, 2, state="cancelled")
    storage.rotate()
    storage.enqueue_many("q", "work", [{}] * 5)
    storage.claim("q", 2)


def test_what_is_folded_is_counted_as_before(storage: QueueStorage) -> None:
    fill(storage)
    counts, (deltas, _) = storage.queue_counts("q"), ledger(storage)

    assert storage.roll_up() == RollUpOutcome("rolled_up", folded=deltas)

    assert storage.queue_counts("q") == counts
    assert differences(storage) == []
    # One a state: available and running of the current slot, the three ends of the other. Zeros are not kept.
    assert ledger(storage) == (0, 5)
    storage.complete(storage.claim("q", 3))
    assert storage.roll_up().outcome == "rolled_up"
    assert differences(storage) == []
    assert ledger(storage) == (0, 5)


def test_nothing_to_fold_writes_nothing(storage: QueueStorage) -> None:
    xids = set()

    def look(name: str) -> None:
        cursor = psycopg.Cursor(storage.connection)
        xids.update(cursor.execute("SELECT pg_current_xact_id_if_assigned()").fetchall())

    for ring in ("never used", "folded"):
        if ring == "folded":
            fill(storage)
            storage.roll_up()
        on_statement(storage, "queue/roll_up", after=look)
        xids.clear()
        assert storage.roll_up() == RollUpOutcome("noop")
        assert xids == {(None,)}


def test_a_limit_bounds_a_call_and_a_step_bounds_a_transaction(
    storage: QueueStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(storage)
    deltas, _ = ledger(storage)
    monkeypatch.setattr(roll_up, "STEP", 3)
    names: list[str] = []
    on_statement(storage, "queue/roll_up", before=names.append)

    assert storage.roll_up(limit=4).folded == 4
    assert names.count("fold") == 2
    assert ledger(storage)[0] == deltas - 4
    assert differences(storage) == []
    assert storage.roll_up().folded == deltas - 4
    assert ledger(storage)[0] == 0
    assert differences(storage) == []


@pytest.mark.parametrize("limit", [0, -1, 2**63, True, 1.5, "3"])
def test_a_limit_that_is_none_is_refused(storage: QueueStorage, limit: Any) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        storage.roll_up(limit=limit)


def test_it_is_no_part_of_the_callers_transaction(storage: QueueStorage) -> None:
    with storage.connection.transaction(), pytest.raises(TransactionOpen, match="roll_up"):
        storage.roll_up()


def test_a_crash_at_any_statement_changes_no_count(
    storage: QueueStorage, connect: Connect, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll_up, "STEP", 5)
    killer = connect()

    def append(queue: str) -> None:
        end_jobs(storage, 3, state="completed", queue=queue)
        end_jobs(storage, 2, queue=queue)
        storage.enqueue_many(queue, "work", [{}] * 3)
        storage.claim(queue, 2)

    append("q")
    names: list[str] = []
    rehearsal = QueueStorage(connect(), namespace)
    on_statement(rehearsal, "queue/roll_up", before=names.append)
    assert rehearsal.roll_up().outcome == "rolled_up"
    assert names.count("fold") > 2

    for place in range(len(names)):
        for when in ("before", "after"):
            queue = f"{when} {place}"
            append(queue)
            counts = storage.queue_counts(queue)
            victim = QueueStorage(connect(), namespace)
            seen: list[str] = []

            def crash(
                name: str, victim: QueueStorage = victim, seen: list[str] = seen, place: int = place
            ) -> None:
                if len(seen) == place:
                    pid = victim.connection.info.backend_pid
                    assert killer.execute("SELECT pg_terminate_backend(%s, 10000)", [pid]).fetchone() == (
                        True,
                    )
                seen.append(name)

            on_statement(victim, "queue/roll_up", **{when: crash})
            with pytest.raises(psycopg.OperationalError):
                victim.roll_up()

            assert seen[:place] == names[:place]
            assert storage.queue_counts(queue) == counts
            assert differences(storage) == []
            storage.roll_up()
            assert differences(storage) == []


def test_no_count_is_seen_half_folded(storage: QueueStorage, connect: Connect, namespace: str) -> None:
    fill(storage)
    counts, reader, seen = storage.queue_counts("q"), QueueStorage(connect(), namespace), []
    on_statement(storage, "queue/roll_up", after=lambda name: seen.append(reader.queue_counts("q")))
    assert storage.roll_up().outcome == "rolled_up"
    assert len(seen) > 4
    assert set(seen) == {counts}


def test_jobs_go_on_while_one_folds(storage: QueueStorage, connect: Connect, namespace: str) -> None:
    storage.enqueue_many("q", "work", [{}] * 4)
    other = QueueStorage(connect(), namespace)
    other.connection.execute("SET lock_timeout = '1s'")
    busy = Gate(storage, "queue/roll_up", "forget_zeros")
    with held(storage.roll_up, busy):
        claims = other.claim("q", 3)
        other.complete(claims[:1])
        other.fail(claims[1], "no such file", terminal=True)
        other.enqueue("q", "work")
        assert other.rotate().outcome == "rotated"
    assert differences(storage) == []
    assert storage.roll_up().outcome == "rolled_up"
    assert differences(storage) == []


def test_a_prune_is_not_waited_for_and_its_slot_is_left_to_the_next_call(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    end_jobs(storage, 3)
    storage.rotate()
    storage.enqueue("q", "work")
    other = QueueStorage(connect(), namespace)
    folding, pruning = (
        Gate(storage, "queue/roll_up", "hold_slot"),
        Gate(other, "queue/carry", "terminal_rows"),
    )
    with held(storage.roll_up, folding) as folded:
        with held(other.prune_oldest, pruning) as pruned:
            folding.open()
            assert folded.result() == RollUpOutcome("rolled_up", "slot", folded=1)
            assert storage.queue_counts("q").failed == 3
        assert pruned.result().carried_failed_rows == 3
    assert differences(storage) == []
    assert storage.roll_up().outcome == "rolled_up"
    assert differences(storage) == []


def test_a_prune_finds_a_slot_that_is_being_folded_blocked(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    end_jobs(storage, 3)
    storage.rotate()
    other = QueueStorage(connect(), namespace)
    with held(storage.roll_up, Gate(storage, "queue/roll_up", "forget_zeros")):
        assert other.prune_oldest().outcome == "blocked"
    assert other.prune_oldest().outcome == "pruned"
    assert differences(storage) == []
    assert ledger(storage)[1] == 0


def test_a_fold_reaches_the_children_of_one_slot_only(storage: QueueStorage) -> None:
    fill(storage)
    locked = set()

    def look(name: str) -> None:
        if name == "fold":
            cursor = psycopg.Cursor(storage.connection)
            cursor.execute(
                "SELECT relation::regclass::text FROM pg_locks"
                " WHERE pid = pg_backend_pid() AND relation::regclass::text LIKE '%deltas_%'"
            )
            locked.add(frozenset(row[0].rpartition("_")[2] for row in cursor))

    on_statement(storage, "queue/roll_up", after=look)
    storage.roll_up()
    assert locked == {frozenset({"0"}), frozenset({"1"})}


@pytest.mark.parametrize("which", ["roll_up", "rebuild"])
def test_one_session_folds_or_rebuilds_at_a_time(
    storage: QueueStorage, connect: Connect, namespace: str, which: str
) -> None:
    fill(storage)
    other = QueueStorage(connect(), namespace)
    if which == "roll_up":
        gate, action = Gate(storage, "queue/roll_up", "forget_zeros"), storage.roll_up
    else:
        gate, action = Gate(storage, "queue/counts", "count_rows"), storage.rebuild_terminal_counters
    with held(action, gate):
        assert other.roll_up() == RollUpOutcome("blocked", "roll_up")
    assert differences(storage) == []


def test_a_transaction_that_stays_open_keeps_it_from_folding(
    storage: QueueStorage, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(storage)
    before = ledger(storage)
    reader = connect()
    with reader.transaction():
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        assert storage.roll_up(limit=1).outcome == "rolled_up"  # not yet a minute
        _count_ages_from(monkeypatch, "0 s")
        assert storage.roll_up() == RollUpOutcome("skipped_active", "old_snapshot")
        assert ledger(storage)[0] == before[0] - 1
    with reader.transaction():
        # Idle in a transaction that has neither written nor keeps a snapshot.
        reader.execute("SELECT 1")
        assert storage.roll_up().outcome == "rolled_up"
    storage.enqueue("q", "work")
    with reader.transaction():
        reader.execute("SELECT pg_current_xact_id()")
        assert storage.roll_up() == RollUpOutcome("skipped_active", "old_snapshot")


def _count_ages_from(monkeypatch: pytest.MonkeyPatch, age: str) -> None:
    """Let a snapshot be old sooner: the stamps of sessions cannot be set back."""
    texts = dict(roll_up._SQL._texts)
    texts["old_snapshot"] = texts["old_snapshot"].replace("1 minute", age)
    monkeypatch.setattr(roll_up._SQL, "_texts", texts)
    monkeypatch.setattr(roll_up._SQL, "_rendered", {})


def impossible(storage: QueueStorage) -> None:
    """Take away more failed jobs than there ever were."""
    query(
        storage,
        "INSERT INTO {ns}.queue_terminal_count_deltas (ready_slot, ready_generation, lane_id, state, bucket, delta)"
        " SELECT 0, 0, min(lane_id), 'failed', 0, -10 FROM {ns}.queue_lanes",
    )


def test_a_sum_below_zero_is_noticed_and_rows_are_counted_until_a_rebuild(storage: QueueStorage) -> None:
    fill(storage)
    counts = storage.queue_counts("q")
    impossible(storage)
    assert storage.queue_counts("q") != counts

    for outcome in ("rolled_up", "noop"):
        found = storage.roll_up()
        assert (found.outcome, found.trusted) == (outcome, False)
        assert storage.queue_counts("q") == counts
    storage.complete(storage.claim("q", 1))
    assert storage.queue_counts("q") == replace(
        counts, available=counts.available - 1, terminal=counts.terminal + 1
    )

    counts = storage.queue_counts("q")
    storage.rebuild_terminal_counters()
    assert storage.queue_counts("q") == counts
    assert differences(storage) == []
    assert storage.roll_up().trusted


def test_figures_of_all_queues_come_from_rows_too_while_the_ledger_is_not_believed(
    storage: QueueStorage,
) -> None:
    fill(storage)
    figures = statements("figures").render("queues", storage.namespace)
    before = storage.connection.execute(figures).fetchall()
    impossible(storage)
    storage.roll_up()
    assert storage.connection.execute(figures).fetchall() == before


def test_what_came_from_a_dump_is_counted_from_rows_until_a_rebuild(storage: QueueStorage) -> None:
    fill(storage)
    counts = storage.queue_counts("q")
    # A dump without the ledger, restored into a cluster that counts its transactions from lower on.
    query(storage, "UPDATE {ns}.lease_claim_batches SET cursor_xid = '9000000000'::xid8")
    query(storage, "UPDATE {ns}.ready_entries SET enqueue_xid = '8999999999'::xid8")
    query(storage, "UPDATE {ns}.queue_ring_state SET table_oid = 1")
    query(storage, "DELETE FROM {ns}.queue_terminal_count_deltas")

    assert storage.queue_counts("q") == counts
    storage.enqueue("q", "work")
    counts = replace(counts, available=counts.available + 1)
    assert storage.queue_counts("q") == counts
    assert not storage.roll_up().trusted
    assert storage.claim("no such queue") == []  # sets all cursors anew
    assert storage.queue_counts("q") == counts
    assert not storage.roll_up().trusted
    storage.rebuild_terminal_counters()
    assert storage.roll_up().trusted
    assert storage.queue_counts("q") == counts
