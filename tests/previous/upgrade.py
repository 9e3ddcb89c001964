"""Rows of the previous release, on its own schema, outlive an upgrade to this one. Run by make test-previous."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import newer_schema
import psycopg

from memory_kit import failing, say
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.queue import QueueStorage
from ringside import differences, end_jobs, prune_all, query, run_out


def upgrade(connection: psycopg.Connection[Any], namespace: str) -> None:
    """Migrate with this release's code, and let it compare the catalog with that of a fresh install."""
    for family in ("queue", "memory"):
        newer_schema.migrate(connection, namespace, family)
    newer_schema.verify(connection, namespace)


def test_jobs_and_turns_in_every_state_outlive_the_upgrade(
    connection: psycopg.Connection[Any], namespace: str
) -> None:
    newer_schema.previously(connection, namespace, "queue", queue_slots=4)
    newer_schema.previously(connection, namespace, "memory")
    storage, store = QueueStorage(connection, namespace), MemoryStore(connection, namespace)
    end_jobs(storage, 3, state="completed")
    failed = end_jobs(storage, 3)
    storage.rotate()
    assert prune_all(storage)
    end_jobs(storage, 2, state="cancelled")
    failed += end_jobs(storage, 2)
    storage.set_queue("letters", dead_letter=True)
    storage.enqueue("letters", "work", {})
    assert storage.fail(storage.claim("letters")[0], "no such file", terminal=True) == "dead_lettered"
    snoozed = storage.enqueue("q", "work", {})
    assert storage.snooze(storage.claim("q"), datetime.now(UTC) + timedelta(days=1)) == 1
    running = [storage.enqueue("q", "work", {}) for _ in range(2)]
    claims = storage.claim("q", 2)
    waiting = storage.enqueue("q", "work", {}, unique_key="k")
    store.append_many("s", [{"messages": say(f"word{n}"), "subject": "p1"} for n in range(4)])
    store.form_batch(failing("refusal", offsets=[1]), limit=3)
    freshness, counts = store.freshness("s"), storage.queue_counts("q")
    assert (freshness.parked, freshness.backlog, counts.failed) == (1, 1, 5)

    upgrade(connection, namespace)

    assert (store.freshness("s"), storage.queue_counts("q")) == (freshness, counts)
    assert storage.complete(claims[:1]) == 1
    [claim] = storage.claim("q", 10)
    assert (claim.job_id, storage.complete([claim])) == (waiting, 1)
    run_out(storage)
    assert storage.rescue().rescued == 1
    deferred = query(storage, "SELECT job_id FROM {ns}.deferred_jobs ORDER BY job_id")
    assert deferred == [(snoozed,), (running[1],)]
    assert len(storage.retry_dead_letters("letters").retried) == 1
    assert sorted(storage.retry_failed_by_queue("q").retried) == sorted(failed)
    again = storage.claim("q", 10) + storage.claim("letters")
    assert storage.complete(again) == len(again) >= len(failed) + 1
    storage.rotate()
    assert prune_all(storage)
    assert differences(storage) == []
    assert store.unpark(scope="s") == 1
    assert store.form_batch(Chunks()).formed == 2
    assert store.verify() == []
    assert store.erase(subject="p1", reason="subject_request").clean

    newer_schema.verify(connection, namespace)
