"""Unique keys of jobs that are gone are swept, and no key that anybody holds is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import QueueStorage, roll_up
from ringside import Gate, age, held, on_statement, prune_all, query

Connect = Callable[..., psycopg.Connection[Any]]
ALL_STATES = ("scheduled", "available", "running", "retryable", "completed", "failed", "cancelled")


def end(storage: QueueStorage, key: str, *, state: str = "completed") -> int:
    """End a job that keeps its key beyond the end."""
    job_id = storage.enqueue("q", "work", unique_key=key, unique_states=ALL_STATES)
    [claim] = storage.claim("q")
    if state == "failed":
        assert storage.fail(claim, "no such file", terminal=True) == "failed"
    else:
        assert storage.complete([claim]) == 1
    return job_id


def keys(storage: QueueStorage) -> dict[str, int]:
    return dict(query(storage, "SELECT convert_from(unique_key, 'UTF8'), job_id FROM {ns}.job_unique_claims"))


def lap(storage: QueueStorage) -> None:
    assert storage.rotate().outcome == "rotated"
    prune_all(storage)


def test_a_key_goes_when_the_row_of_its_job_has_been_pruned_and_not_before(storage: QueueStorage) -> None:
    end(storage, "ended")
    failed = end(storage, "failed", state="failed")
    waiting = storage.enqueue("q", "work", unique_key="waiting", unique_states=ALL_STATES)
    assert storage.roll_up().released_keys == 0
    query(
        storage, "UPDATE {ns}.queue_counter_state SET swept_dropped = -1"
    )  # as if something had been dropped
    assert storage.roll_up().released_keys == 0
    [claim] = storage.claim("q")
    storage.rotate()
    storage.snooze([claim], query(storage, "SELECT now() + interval '1 day'")[0][0])
    prune_all(storage)

    assert storage.roll_up().released_keys == 1
    assert keys(storage) == {"failed": failed, "waiting": waiting}  # one was carried, the other has not ended
    age(storage, [failed], timedelta(days=4))
    prune_all(storage)
    assert storage.roll_up().released_keys == 1
    assert keys(storage) == {"waiting": waiting}


def test_a_pass_over_many_keys_is_gone_on_with_by_the_next_call(
    storage: QueueStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll_up, "KEYS_STEP", 2)
    monkeypatch.setattr(roll_up, "KEYS", 4)
    for n in range(7):
        end(storage, f"a{n}", state="failed" if n % 3 == 0 else "completed")
    lap(storage)
    assert [storage.roll_up().released_keys for _ in range(3)] == [2, 2, 0]
    assert sorted(keys(storage)) == ["a0", "a3", "a6"]
    assert storage.roll_up().outcome == "noop"


def test_no_look_at_keys_unless_rows_were_dropped_since(storage: QueueStorage) -> None:
    end(storage, "failed", state="failed")
    names: list[str] = []
    on_statement(storage, "queue/roll_up", before=names.append)
    storage.roll_up()
    assert "sweep" not in names
    end(storage, "ended")
    lap(storage)
    storage.roll_up()
    assert names.count("sweep") == 1
    storage.roll_up()
    assert names.count("sweep") == 1
    assert prune_all(storage) == []  # the failed one stays where it was carried
    storage.roll_up()
    assert names.count("sweep") == 1


def test_a_key_that_a_producer_is_about_to_take_is_left_to_it(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    end(storage, "key")
    end(storage, "other")
    lap(storage)
    producer = QueueStorage(connect(), namespace)
    with producer.connection.transaction():
        job_id = producer.enqueue("q", "work", unique_key="key")
        assert storage.roll_up().released_keys == 1
    assert keys(storage) == {"key": job_id}
    assert storage.roll_up().released_keys == 0


def test_a_key_that_is_taken_while_one_sweeps_stays(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    end(storage, "key")
    lap(storage)
    gate = Gate(storage, "queue/roll_up", "sweep")
    with held(storage.roll_up, gate) as swept:
        job_id = QueueStorage(connect(), namespace).enqueue("q", "work", unique_key="key")
    assert swept.result().released_keys == 0
    assert keys(storage) == {"key": job_id}


def test_a_job_that_is_retried_while_one_sweeps_keeps_its_key(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    job_id = end(storage, "key", state="failed")
    end(storage, "other")
    lap(storage)
    retry = QueueStorage(connect(), namespace)
    with held(storage.roll_up, Gate(storage, "queue/roll_up", "sweep")) as swept:
        assert retry.retry_failed_by_queue("q").retried == [job_id]
    assert swept.result().released_keys == 1
    assert keys(storage) == {"key": job_id}


def test_a_row_that_a_prune_carries_meanwhile_is_not_taken_for_gone(
    storage: QueueStorage, connect: Connect, namespace: str
) -> None:
    job_id = end(storage, "key", state="failed")
    query(storage, "UPDATE {ns}.queue_counter_state SET swept_dropped = -1")
    storage.rotate()
    pruner = QueueStorage(connect(), namespace)
    with held(storage.roll_up, Gate(storage, "queue/roll_up", "sweep")) as swept:
        assert pruner.prune_oldest().outcome == "blocked"
    assert swept.result().released_keys == 0

    query(storage, "UPDATE {ns}.queue_counter_state SET swept_dropped = -1")
    storage.roll_up()
    query(storage, "UPDATE {ns}.queue_counter_state SET swept_dropped = -1")
    with held(pruner.prune_oldest, Gate(pruner, "queue/prune", "reclaimed")) as pruned:
        assert storage.roll_up().outcome == "blocked"
    assert pruned.result().carried_failed_rows == 1
    assert storage.roll_up().released_keys == 0
    assert keys(storage) == {"key": job_id}
