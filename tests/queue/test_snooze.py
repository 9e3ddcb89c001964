"""Snooze: claimed jobs are put off, without an attempt spent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from parkkeeper.queue import ClaimedJob, InvalidArgument, QueueStorage, UniqueConflict
from ringside import differences, query

LATER = datetime.now(UTC) + timedelta(hours=3)
PAST = datetime(2020, 1, 1, tzinfo=UTC)


def take(storage: QueueStorage, count: int = 1, **options: Any) -> list[ClaimedJob]:
    storage.enqueue_many("q", "k", [{"n": n} for n in range(count)], **options)
    claims = storage.claim("q", count)
    assert len(claims) == count
    return claims


def test_a_snoozed_job_waits_until_its_time_and_has_its_attempt_back(storage: QueueStorage) -> None:
    claims = take(storage, 4, max_attempts=1)
    assert storage.snooze(claims[:2], LATER) == 2
    assert storage.claim("q") == []
    assert query(
        storage, "SELECT job_id, state::text, attempt, run_at FROM {ns}.deferred_jobs ORDER BY 1"
    ) == [(claim.job_id, "scheduled", 0, LATER) for claim in claims[:2]]
    counts = storage.queue_counts("q")
    assert (counts.running, counts.deferred) == (2, 2)
    assert differences(storage) == []

    assert storage.snooze(claims[2:], PAST) == 2
    again = storage.claim("q", 9)
    assert [(claim.job_id, claim.attempt, claim.args) for claim in again] == [
        (claim.job_id, 1, claim.args) for claim in claims[2:]
    ]
    assert storage.fail(again[0], "no") == "failed"
    assert storage.complete(again[1:]) == 1
    assert differences(storage) == []


def test_a_snoozed_job_keeps_its_key(storage: QueueStorage) -> None:
    states = ["scheduled", "available", "running"]
    job_id = storage.enqueue("q", "k", unique_key="one", unique_states=states)
    assert storage.snooze(storage.claim("q"), LATER) == 1
    with pytest.raises(UniqueConflict) as conflict:
        storage.enqueue("q", "k", unique_key="one")
    assert conflict.value.holder_job_id == job_id
    assert storage.cancel(job_id)
    assert storage.enqueue("q", "k", unique_key="one") > job_id


def test_a_stale_claim_is_not_snoozed_and_a_snoozed_one_is_stale(storage: QueueStorage) -> None:
    claims = take(storage, 3) + take(storage, 2)
    storage.complete(claims[:1])
    assert storage.snooze([*reversed(claims[:4]), claims[3]], LATER) == 3
    assert storage.snooze(claims[:4], LATER) == 0
    assert storage.complete(claims) == 1
    assert storage.snooze([], LATER) == 0
    assert differences(storage) == []


def test_a_snoozed_job_does_not_pin_its_slot(storage: QueueStorage) -> None:
    claims = take(storage, 2)
    storage.snooze(claims, LATER)
    storage.rotate()
    assert storage.prune_oldest().outcome == "pruned"
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")
    assert [claim.args for claim in storage.claim("q", 2)] == [{"n": 0}, {"n": 1}]


@pytest.mark.parametrize("until", [None, datetime(2030, 1, 1), "2030-01-01"])
def test_a_time_that_is_none_is_refused(storage: QueueStorage, until: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"until .* is refused: a datetime with a time zone"):
        storage.snooze([], until)
