"""A transaction that keeps one snapshot hears of a prune behind its back, and gets no wrong figure and no key."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import QueueStorage
from parkkeeper.queue.errors import UniqueConflict
from ringside import Gate, differences, end_jobs, held, query, until

Connect = Callable[..., psycopg.Connection[Any]]

KEEPS_WHEN_FAILED = ["scheduled", "available", "running", "retryable", "failed"]


@pytest.fixture
def keeper(storage: QueueStorage, connect: Connect) -> QueueStorage:
    """A session that keeps a snapshot in each of its transactions."""
    connection = connect()
    connection.execute("SET default_transaction_isolation = 'repeatable read'")
    return QueueStorage(connection, storage.namespace)


@pytest.fixture(params=["believed", "not believed"])
def counters(request: pytest.FixtureRequest, storage: QueueStorage) -> None:
    """What counts are made of: the ledger, or the rows."""
    if request.param == "not believed":
        query(storage, "UPDATE {ns}.queue_counter_state SET distrusted_at = now()")


@pytest.mark.usefixtures("counters")
def test_a_count_that_waits_for_a_prune_counts_what_the_prune_has_left(
    storage: QueueStorage, keeper: QueueStorage, connect: Connect
) -> None:
    end_jobs(storage, 3, state="completed")
    storage.rotate()
    pruner = QueueStorage(connect(), storage.namespace)
    waits = "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted"
    with ThreadPoolExecutor(1) as pool:
        with held(lambda: pruner.prune_oldest(0), Gate(pruner, "queue/prune", "reclaimed")) as pruned:
            counted = pool.submit(keeper.queue_counts, "q")
            until(lambda: query(storage, waits, keeper.connection.info.backend_pid) == [(1,)])
        assert pruned.result().outcome == "pruned"
        assert counted.result().terminal == 3


@pytest.mark.usefixtures("counters")
def test_a_transaction_whose_snapshot_is_older_than_a_prune_gets_no_counts(
    storage: QueueStorage, keeper: QueueStorage
) -> None:
    end_jobs(storage, 3, state="completed")
    storage.rotate()
    with keeper.connection.transaction():
        assert keeper.queue_counts("q").terminal == 3
        storage.enqueue("q", "k")
        assert keeper.queue_counts("q").available == 0
    with pytest.raises(psycopg.errors.SerializationFailure), keeper.connection.transaction():
        query(keeper, "SELECT 1")
        assert storage.prune_oldest(0).outcome == "pruned"
        keeper.queue_counts("q")
    assert keeper.queue_counts("q").terminal == 3


def test_a_snapshot_older_than_a_carry_takes_no_key_over(storage: QueueStorage, keeper: QueueStorage) -> None:
    job_id = storage.enqueue("q", "k", unique_key="only one", unique_states=KEEPS_WHEN_FAILED)
    storage.fail_many([(claim, "no such file") for claim in storage.claim("q", 1)], terminal=True)
    storage.rotate()
    with pytest.raises(psycopg.errors.SerializationFailure), keeper.connection.transaction():
        query(keeper, "SELECT 1")
        assert storage.prune_oldest(timedelta(hours=1)).carried_failed_rows == 1
        keeper.enqueue("q", "k", unique_key="only one")
    with pytest.raises(UniqueConflict) as conflict:
        keeper.enqueue("q", "k", unique_key="only one")
    assert conflict.value.holder_job_id == job_id


def test_a_kept_snapshot_takes_over_the_key_of_a_job_that_was_dropped(
    storage: QueueStorage, keeper: QueueStorage
) -> None:
    storage.enqueue("q", "k", unique_key="only one", unique_states=KEEPS_WHEN_FAILED)
    storage.fail_many([(claim, "no such file") for claim in storage.claim("q", 1)], terminal=True)
    storage.rotate()
    assert storage.prune_oldest(0).pruned_failed == 1
    job_id = keeper.enqueue("q", "k", unique_key="only one")
    assert [claim.job_id for claim in storage.claim("q", 1)] == [job_id]
    assert differences(storage) == []


def test_what_expires_is_listed_where_it_was_carried_while_the_list_waited(
    storage: QueueStorage, keeper: QueueStorage, connect: Connect
) -> None:
    end_jobs(storage, 3)
    storage.rotate()
    pruner = QueueStorage(connect(), storage.namespace)
    waits = "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted"
    with ThreadPoolExecutor(1) as pool:
        with held(pruner.prune_oldest, Gate(pruner, "queue/prune", "reclaimed")) as pruned:
            found = pool.submit(keeper.expiring, timedelta(days=3))
            until(lambda: query(storage, waits, keeper.connection.info.backend_pid) == [(1,)])
        assert pruned.result().carried_failed_rows == 3
        assert sum(row.jobs for row in found.result()) == 3


def test_a_transaction_whose_snapshot_is_older_than_a_carry_is_not_told_what_expires(
    storage: QueueStorage, keeper: QueueStorage
) -> None:
    end_jobs(storage, 3)
    storage.rotate()
    with pytest.raises(psycopg.errors.SerializationFailure), keeper.connection.transaction():
        query(keeper, "SELECT 1")
        assert storage.prune_oldest().carried_failed_rows == 3
        keeper.expiring(timedelta(days=3))
    assert sum(row.jobs for row in keeper.expiring(timedelta(days=3))) == 3


def test_a_plan_tells_of_jobs_where_they_were_carried_while_it_waited(
    storage: QueueStorage, keeper: QueueStorage, connect: Connect
) -> None:
    end_jobs(storage, 3)
    storage.rotate()
    pruner = QueueStorage(connect(), storage.namespace)
    waits = "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted"
    looks = Gate(keeper, "queue/carry", "require_whole")
    with ThreadPoolExecutor(1) as pool:
        plan = pool.submit(keeper.plan_prune)
        assert looks.reached.wait(10)
        with held(pruner.prune_oldest, Gate(pruner, "queue/prune", "reclaimed")) as pruned:
            looks.open()
            until(lambda: query(storage, waits, keeper.connection.info.backend_pid) == [(1,)])
        assert pruned.result().carried_failed_rows == 3
        assert [row.kept_failed_rows for row in plan.result().by_kind] == [3]
