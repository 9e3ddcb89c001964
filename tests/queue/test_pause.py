"""A paused queue: nothing of it is claimed, and all else goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from parkkeeper.queue import InvalidName, QueueStorage, UnknownQueue
from ringside import differences, query


def test_no_job_of_a_paused_queue_is_claimed_until_it_is_resumed(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "k", [None] * 3)
    other = storage.enqueue("other", "k")
    [running] = storage.claim("q")
    storage.enqueue("q", "k", run_at=datetime.now(UTC) + timedelta(hours=1))
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")

    assert storage.pause("q").paused_at is not None
    assert storage.claim("q", 10) == []
    counts = storage.queue_counts("q")
    assert (counts.available, counts.running, counts.deferred) == (2, 1, 1)
    assert [claim.job_id for claim in storage.claim("other", 10)] == [other]
    assert storage.complete([running]) == 1
    storage.enqueue("q", "k")
    assert storage.claim("q", 10) == []

    assert storage.resume("q").paused_at is None
    assert len(storage.claim("q", 10)) == 4
    assert differences(storage) == []


def test_no_claim_by_sql_takes_a_job_of_a_paused_queue(storage: QueueStorage) -> None:
    storage.enqueue("q", "k")
    storage.pause("q")
    claim = "SELECT job_ids FROM {ns}.claim_jobs('q', 10, 60)"
    assert query(storage, claim) == []
    storage.resume("q")
    assert len(query(storage, claim)) == 1


def test_pausing_and_resuming_keep_the_other_settings_and_the_first_time(storage: QueueStorage) -> None:
    storage.set_queue("q", failed_retention=7)
    paused = storage.pause("q")
    assert storage.pause("q") == paused
    assert storage.set_queue("q", failed_retention=8).paused_at == paused.paused_at
    resumed = storage.resume("q")
    assert (resumed.failed_retention_seconds, resumed.paused_at) == (8, None)
    assert storage.resume("q") == resumed


def test_a_queue_that_nobody_knows_is_not_paused(storage: QueueStorage) -> None:
    for action in (storage.pause, storage.resume):
        with pytest.raises(UnknownQueue, match="queue 'q' is unknown"):
            action("q")
        with pytest.raises(InvalidName):
            action(" q")
    assert query(storage, "SELECT * FROM {ns}.queue_settings") == []
    storage.enqueue("q", "k")
    assert storage.resume("q").paused_at is None
    query(
        storage, "INSERT INTO {ns}.queue_terminal_rollups (queue, pruned_failed_count) VALUES ('pruned', 1)"
    )
    assert storage.pause("pruned").paused_at is not None
