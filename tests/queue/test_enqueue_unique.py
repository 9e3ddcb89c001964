"""Unique keys: who holds one, until when, and what a second producer is told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import QueueStorage, UniqueConflict
from ringside import SOON, differences, prune_all, query, until

Connect = Callable[..., psycopg.Connection[Any]]
ALL_STATES = ("scheduled", "available", "running", "retryable", "completed", "failed", "cancelled")


def holder(storage: QueueStorage, key: str | bytes = "key") -> int | None:
    """Return the job that holds the key, by trying to take it; a try that succeeds is undone."""
    with storage.connection.transaction(force_rollback=True):
        try:
            storage.enqueue("other queue", "k", unique_key=key)
        except UniqueConflict as conflict:
            return conflict.holder_job_id
    return None


def test_a_second_job_with_the_key_is_refused_and_the_first_one_named(storage: QueueStorage) -> None:
    first = storage.enqueue("q", "k", unique_key="a customer's name")
    with pytest.raises(UniqueConflict, match=rf"held by job {first}: nothing was enqueued$") as conflict:
        storage.enqueue("another queue", "another kind", unique_key=b"a customer's name")
    assert conflict.value.holder_job_id == first
    assert "customer" not in str(conflict.value)
    assert storage.enqueue("q", "k", unique_key="another's name") > first
    assert storage.queue_counts("q").available == 2
    assert differences(storage) == []


def test_the_callers_transaction_stays_usable_after_a_conflict(storage: QueueStorage) -> None:
    storage.enqueue("q", "k", unique_key="key")
    with storage.connection.transaction():
        with pytest.raises(UniqueConflict):
            storage.enqueue("q", "k", unique_key="key")
        storage.enqueue("q", "k")
    assert storage.queue_counts("q").available == 2


def test_a_key_is_held_while_scheduled_available_running_and_retryable(storage: QueueStorage) -> None:
    job_id = storage.enqueue("q", "k", unique_key="key", run_at=datetime.now(UTC) + timedelta(hours=1))
    assert holder(storage) == job_id
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")
    [claim] = storage.claim("q")
    assert holder(storage) == job_id
    assert storage.fail(claim, "again") == "retryable"
    assert holder(storage) == job_id
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")
    [claim] = storage.claim("q")
    assert claim.attempt == 2 and holder(storage) == job_id
    assert storage.complete([claim]) == 1
    assert holder(storage) is None


@pytest.mark.parametrize(
    "end", ["completed", "failed", "cancelled running", "cancelled waiting", "cancelled later"]
)
def test_a_key_is_free_at_the_end_unless_its_states_say_otherwise(storage: QueueStorage, end: str) -> None:
    run_at = datetime.now(UTC) + timedelta(hours=1) if end == "cancelled later" else None
    usual = storage.enqueue("q", "k", unique_key="usual", run_at=run_at)
    kept = storage.enqueue("q", "k", unique_key="kept", run_at=run_at, unique_states=ALL_STATES)
    claims = [] if end in ("cancelled waiting", "cancelled later") else storage.claim("q", 2)
    if end == "completed":
        assert storage.complete(claims) == 2
    elif end == "failed":
        assert storage.fail_many([(claim, "no") for claim in claims], terminal=True) == ["failed"] * 2
    else:
        assert storage.cancel(usual) and storage.cancel(kept)
    assert holder(storage, "usual") is None
    assert holder(storage, "kept") == kept


def test_a_key_is_let_go_for_good_in_a_state_that_is_not_named(storage: QueueStorage) -> None:
    storage.enqueue("q", "k", unique_key="key", unique_states=("scheduled", "available"))
    other = storage.enqueue("q", "k", unique_key="other")
    claims = storage.claim("q", 2)
    assert holder(storage) is None and holder(storage, "other") == other
    second = storage.enqueue("q", "k", unique_key="key")
    assert storage.complete(claims) == 2
    assert holder(storage) == second


def test_a_key_that_is_kept_beyond_the_end_is_taken_over_when_its_job_was_pruned(
    storage: QueueStorage,
) -> None:
    done = storage.enqueue("q", "k", unique_key="done", unique_states=ALL_STATES)
    failed = storage.enqueue("q", "k", unique_key="failed", unique_states=ALL_STATES)
    claims = storage.claim("q", 2)
    assert storage.complete(claims[:1]) == 1 and storage.fail(claims[1], "no", terminal=True) == "failed"
    assert storage.rotate().outcome == "rotated"
    assert holder(storage, "done") == done
    assert prune_all(storage)[0].carried_failed_rows == 1
    # The completed one is gone, the failed one was carried to another slot.
    assert holder(storage, "done") is None
    assert holder(storage, "failed") == failed
    second = storage.enqueue("q", "k", unique_key="done")
    assert holder(storage, "done") == second
    assert storage.complete(storage.claim("q")) == 1
    assert holder(storage, "done") is None


def test_a_retried_job_holds_its_key_as_a_new_one_does(storage: QueueStorage) -> None:
    failed = storage.enqueue("q", "k", unique_key="key", unique_states=ALL_STATES)
    assert storage.fail(storage.claim("q")[0], "no", terminal=True) == "failed"
    assert storage.retry_failed_by_queue("q").retried == [failed]
    assert storage.rotate().outcome == "rotated"
    assert holder(storage) == failed
    assert storage.complete(storage.claim("q")) == 1
    assert holder(storage) == failed


def test_a_key_in_an_open_transaction_is_waited_for_and_its_end_decides(
    storage: QueueStorage, connect: Connect
) -> None:
    first, second = (QueueStorage(connect(), storage.namespace) for _ in range(2))
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s"
    for commits in (False, True):
        with ThreadPoolExecutor(1) as pool:
            with first.connection.transaction(force_rollback=not commits):
                mine = first.enqueue("q", "k", unique_key="key")
                theirs = pool.submit(second.enqueue, "q", "k", unique_key="key")
                until(lambda: query(storage, waiting, second.connection.info.backend_pid)[0][0])
            if commits:
                with pytest.raises(UniqueConflict, match=rf"job {mine}:"):
                    theirs.result(SOON)
            else:
                assert storage.cancel(theirs.result(SOON))
    assert differences(storage) == []


def test_an_old_key_is_not_in_the_way_of_a_new_job_that_waits_for_its_release(
    storage: QueueStorage, connect: Connect
) -> None:
    worker, producer = (QueueStorage(connect(), storage.namespace) for _ in range(2))
    first = storage.enqueue("q", "k", unique_key="key")
    claims = storage.claim("q")
    with ThreadPoolExecutor(1) as pool:
        with worker.connection.transaction():
            assert worker.complete(claims) == 1
            waiting = pool.submit(producer.enqueue, "q", "k", unique_key="key")
            until(
                lambda: query(
                    storage,
                    "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s",
                    producer.connection.info.backend_pid,
                )[0][0]
            )
        second = waiting.result(SOON)
    assert second > first and holder(storage) == second
