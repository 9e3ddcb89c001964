"""Enqueueing: what is stored, what it joins, and whom it never blocks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from parkkeeper.errors import UnknownNamespace
from parkkeeper.namespace import Namespace
from parkkeeper.queue import QueueStorage, enqueue
from ringside import differences, query

Connect = Callable[..., psycopg.Connection[Any]]
#: Longer than anything takes that does not wait for another session.
PATIENCE = timedelta(seconds=3)


def other(storage: QueueStorage, connect: Connect) -> QueueStorage:
    """Return the same queue in another session, which gives up when it has to wait for a lock."""
    return QueueStorage(connect(lock_timeout=PATIENCE), storage.namespace)


def test_ids_are_in_the_order_given(storage: QueueStorage) -> None:
    ids = storage.enqueue_many("q", "k", [{"n": n} for n in range(50)])
    assert ids == sorted(ids) and len(set(ids)) == 50
    assert [(job.job_id, job.args["n"]) for job in storage.claim("q", 50)] == list(
        zip(ids, range(50), strict=True)
    )


def test_nothing_to_enqueue_asks_nothing_of_the_database(storage: QueueStorage) -> None:
    assert storage.enqueue_many("q", "k", []) == []
    assert query(storage, "SELECT count(*) FROM {ns}.queue_lanes") == [(0,)]


def test_more_than_one_statement_adds_all_or_none(
    storage: QueueStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue, "CHUNK", 3)
    assert len(storage.enqueue_many("q", "k", [{"n": n} for n in range(8)])) == 8
    assert [job.args["n"] for job in storage.claim("q", 10)] == list(range(8))

    query(storage, "ALTER TABLE {ns}.ready_entries ADD CONSTRAINT not_all CHECK (lane_seq < 14)")
    with pytest.raises(psycopg.errors.CheckViolation, match=r"23514, constraint not_all$"):
        storage.enqueue_many("q", "k", [{"n": n} for n in range(8)])
    assert storage.queue_counts("q").available == 0
    assert differences(storage) == []


def test_run_at_in_the_future_waits_and_in_the_past_does_not(storage: QueueStorage) -> None:
    later = storage.enqueue("q", "k", run_at=datetime.now(UTC) + timedelta(hours=1))
    now = storage.enqueue("q", "k", run_at=datetime.now(UTC) - timedelta(hours=1))
    many = storage.enqueue_many("q", "k", [{}, {}], run_at=datetime.now(UTC) + timedelta(hours=1))
    counts = storage.queue_counts("q")
    assert (counts.available, counts.deferred) == (1, 3)
    assert [job.job_id for job in storage.claim("q", 10)] == [now]
    assert query(storage, "SELECT job_id, state::text FROM {ns}.deferred_jobs ORDER BY job_id") == [
        (job_id, "scheduled") for job_id in (later, *many)
    ]


def test_enqueue_commits_and_rolls_back_with_the_callers_transaction(
    storage: QueueStorage, connection: psycopg.Connection[Any]
) -> None:
    with pytest.raises(ZeroDivisionError), connection.transaction():
        storage.enqueue("q", "k")
        storage.enqueue_many("q", "k", [{}, {}])
        storage.enqueue("q", "later", run_at=datetime.now(UTC) + timedelta(hours=1))
        raise ZeroDivisionError
    assert query(storage, "SELECT count(*) FROM {ns}.queue_lanes") == [(0,)]
    with connection.transaction():
        kept = storage.enqueue("q", "k")
        with connection.transaction(force_rollback=True):
            storage.enqueue("q", "k")
    assert [job.job_id for job in storage.claim("q", 10)] == [kept]
    assert differences(storage) == []


def test_a_connection_that_is_not_in_autocommit_mode_is_the_callers_transaction(
    storage: QueueStorage, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = connect()
    session.autocommit = False
    theirs = QueueStorage(session, storage.namespace)
    monkeypatch.setattr(enqueue, "CHUNK", 2)
    theirs.enqueue_many("q", "k", [{}, {}, {}])
    theirs.enqueue("q", "k")
    assert storage.claim("q") == []
    session.rollback()
    assert storage.claim("q") == []
    theirs.enqueue("q", "k")
    session.commit()
    assert len(storage.claim("q", 10)) == 1


def test_the_first_job_of_a_queue_in_two_open_transactions_blocks_neither(
    storage: QueueStorage, connect: Connect
) -> None:
    first, second = other(storage, connect), other(storage, connect)
    with first.connection.transaction():
        a = first.enqueue("new queue", "k")
        with second.connection.transaction():
            b = second.enqueue("new queue", "k")
            c = storage.enqueue("new queue", "k")
    later = storage.enqueue_many("new queue", "k", [{}, {}])
    assert {job.job_id for job in storage.claim("new queue", 10)} == {a, b, c, *later}
    assert storage.queue_counts("new queue").running == 5
    assert differences(storage) == []


def test_a_lane_that_was_made_twice_is_done_with_and_not_starved(
    storage: QueueStorage, connect: Connect
) -> None:
    first = other(storage, connect)
    with first.connection.transaction():
        early = first.enqueue("q", "k")
        middle = storage.enqueue("q", "k")
    later = storage.enqueue_many("q", "k", [{}] * 3)
    # What comes later must not overtake what waits in either of the two.
    assert [job.job_id for job in storage.claim("q", 9)] == [early, middle, *later]


def test_an_open_producer_blocks_no_producer_nor_a_claim(storage: QueueStorage, connect: Connect) -> None:
    slow, quick = other(storage, connect), other(storage, connect)
    with slow.connection.transaction():
        slow.enqueue("q", "k")
        done = [quick.enqueue("q", "k"), *quick.enqueue_many("q", "k", [{}] * 3)]
        assert [job.job_id for job in quick.claim("q", 10)] == done


def test_a_transaction_that_keeps_a_snapshot_may_enqueue(storage: QueueStorage, connect: Connect) -> None:
    session = connect()
    session.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    theirs = QueueStorage(session, storage.namespace)
    with session.transaction():
        session.execute("SELECT 1")
        storage.enqueue("q", "k")
        assert storage.rotate().outcome == "rotated"
        theirs.enqueue("q", "k")  # into the slot that it sees, which is sealed
    assert len(storage.claim("q", 10)) == 2
    assert differences(storage) == []


def test_the_connections_own_factories_are_not_asked(storage: QueueStorage, connect: Connect) -> None:
    session = connect()
    session.row_factory = dict_row  # type: ignore[assignment]
    session.cursor_factory = psycopg.ClientCursor
    theirs = QueueStorage(session, storage.namespace)
    job_id = theirs.enqueue("q", "k", {"a": 1})
    [job] = theirs.claim("q")
    assert (job.job_id, job.args) == (job_id, {"a": 1})
    assert theirs.complete([job]) == 1


def test_a_namespace_without_a_queue_is_named(connection: psycopg.Connection[Any]) -> None:
    nowhere = QueueStorage(connection, Namespace("not_there"))
    for call in (
        lambda: nowhere.enqueue("q", "k"),
        lambda: nowhere.enqueue_many("q", "k", [{}]),
        lambda: nowhere.claim("q"),
        lambda: nowhere.cancel(1),
    ):
        with pytest.raises(
            UnknownNamespace, match=r"namespace not_there .*parkkeeper migrate --family queue"
        ):
            call()


def test_an_error_of_the_database_shows_no_row(storage: QueueStorage) -> None:
    query(storage, "ALTER TABLE {ns}.ready_entries ADD CONSTRAINT never CHECK (attempt > 0)")
    with pytest.raises(psycopg.errors.CheckViolation) as raised:
        storage.enqueue("q", "k", {"text": "a customer's words"})
    assert "customer" not in str(raised.value) and raised.value.__suppress_context__
    assert raised.value.diag.message_detail is None
