"""Leases: extended while the worker lives, and what they have left is rescued once they have run out."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import ClaimedJob, InvalidArgument, QueueStorage, RescueOutcome, TransactionOpen, leases
from ringside import differences, query, run_out

Connect = Callable[..., psycopg.Connection[Any]]

HOUR = timedelta(hours=1)
NOTHING = RescueOutcome(0, 0)


def take(storage: QueueStorage, count: int = 1, **options: Any) -> list[ClaimedJob]:
    storage.enqueue_many("q", "k", [None] * count, **options)
    claims = storage.claim("q", count)
    assert len(claims) == count
    return claims


def watched(storage: QueueStorage) -> int:
    return int(query(storage, "SELECT count(*) FROM {ns}.leases")[0][0])


def test_a_job_whose_lease_ran_out_waits_like_a_failed_one_and_is_tried_again(storage: QueueStorage) -> None:
    [claim] = take(storage)
    assert storage.rescue() == NOTHING
    run_out(storage)
    assert storage.rescue() == RescueOutcome(rescued=1, failed=0)
    assert storage.complete([claim]) == 0 and storage.fail(claim, "late") is None
    assert query(
        storage,
        "SELECT job_id, state::text, attempt, error LIKE 'lease ran out%',"
        " run_at BETWEEN clock_timestamp() - interval '1 min' AND clock_timestamp() + interval '1.1 s'"
        " FROM {ns}.deferred_jobs",
    ) == [(claim.job_id, "retryable", 1, True, True)]
    assert (storage.queue_counts("q").running, storage.queue_counts("q").deferred) == (0, 1)
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")
    [again] = storage.claim("q")
    assert (again.job_id, again.attempt) == (claim.job_id, 2)
    assert storage.rescue() == NOTHING
    assert storage.complete([again]) == 1
    assert differences(storage) == []


def test_a_job_that_kills_its_worker_each_time_fails_at_the_cap(storage: QueueStorage) -> None:
    job_id = storage.enqueue("q", "k", max_attempts=3, unique_key="one")
    outcomes = []
    for attempt in (1, 2, 3):
        [claim] = storage.claim("q")
        assert claim.attempt == attempt
        run_out(storage)
        outcomes.append(storage.rescue())
        query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")
    assert outcomes == [RescueOutcome(1, 0), RescueOutcome(1, 0), RescueOutcome(0, 1)]
    assert query(storage, "SELECT job_id, state::text, attempt FROM {ns}.terminal_jobs") == [
        (job_id, "failed", 3)
    ]
    assert storage.claim("q") == []
    assert storage.enqueue("q", "k", unique_key="one") > job_id
    assert storage.retry_failed_by_queue("q").conflicts == [job_id]
    assert differences(storage) == []


def test_of_a_batch_only_what_is_open_is_rescued(storage: QueueStorage) -> None:
    claims = take(storage, 5)
    storage.complete(claims[:2])
    storage.fail(claims[2], "no", terminal=True)
    run_out(storage)
    assert storage.rescue() == RescueOutcome(2, 0)
    assert storage.rescue() == NOTHING
    assert watched(storage) == 0
    assert query(storage, "SELECT array_agg(job_id ORDER BY job_id) FROM {ns}.deferred_jobs") == [
        ([claims[3].job_id, claims[4].job_id],)
    ]
    assert differences(storage) == []


@pytest.mark.parametrize("seen_before", [False, True])
def test_an_extended_claim_is_left_until_the_extension_has_run_out(
    storage: QueueStorage, seen_before: bool
) -> None:
    claims = take(storage, 4)
    if seen_before:
        assert storage.rescue() == NOTHING
    run_out(storage)
    assert storage.extend(claims[1:3], HOUR) == 2
    assert storage.rescue() == RescueOutcome(2, 0)
    assert storage.complete(claims[:2]) == 1
    assert storage.rescue() == NOTHING
    run_out(storage)
    assert storage.rescue() == RescueOutcome(1, 0)
    assert watched(storage) == 0
    assert differences(storage) == []


def test_an_extension_never_shortens_a_lease(storage: QueueStorage, connect: Connect) -> None:
    [claim] = take(storage)
    assert storage.extend([claim], timedelta(microseconds=1)) == 1
    # While another session passes new batches, the lease of this one is not in sight, but its extension is.
    other = QueueStorage(connect(), storage.namespace)
    with other.connection.transaction(force_rollback=True):
        query(other, "SELECT {ns}.watch_leases(1)")
        assert storage.rescue() == NOTHING
        assert watched(storage) == 0
    assert storage.rescue() == NOTHING
    run_out(storage)
    assert storage.rescue() == RescueOutcome(1, 0)


def test_extend_says_how_many_are_still_ours(storage: QueueStorage) -> None:
    claims = take(storage, 3) + take(storage, 2)
    storage.complete(claims[:1])
    storage.cancel(claims[4].job_id)
    assert storage.extend([*claims, *claims], HOUR) == 3
    assert storage.extend([replace(claims[1], run_lease=claims[1].run_lease + 99)], HOUR) == 0
    assert storage.extend([], HOUR) == 0
    run_out(storage)
    assert storage.extend(claims, HOUR) == 3, (
        "a lease that ran out is taken up again while nobody took the job"
    )
    assert storage.rescue() == NOTHING


@pytest.mark.parametrize("lease", [timedelta(0), timedelta(days=-1), timedelta(days=366), 5])
def test_a_lease_that_is_none_is_refused(storage: QueueStorage, lease: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"lease .* is refused"):
        storage.extend([], lease)


def test_a_job_that_another_session_is_ending_is_left_to_it(storage: QueueStorage, connect: Connect) -> None:
    ending, given_up, gone = take(storage), take(storage), take(storage)
    run_out(storage)
    other, third = (QueueStorage(connect(), storage.namespace) for _ in range(2))
    with third.connection.transaction(force_rollback=True):
        assert third.complete(given_up) == 1
        with other.connection.transaction():
            assert other.complete(ending) == 1
            assert storage.rescue() == RescueOutcome(1, 0)
        assert storage.rescue() == NOTHING
    assert storage.rescue() == RescueOutcome(1, 0)
    assert query(storage, "SELECT job_id, state::text FROM {ns}.done_entries") == [
        (ending[0].job_id, "completed")
    ]
    assert storage.complete(gone) == 0
    assert watched(storage) == 0
    assert differences(storage) == []


def test_a_claim_that_commits_late_is_rescued_though_later_ones_were_passed(
    storage: QueueStorage, connect: Connect
) -> None:
    late = QueueStorage(connect(), storage.namespace)
    storage.enqueue("slow", "k")
    with late.connection.transaction():
        [claim] = late.claim("slow", lease=timedelta(microseconds=1))
        take(storage, 2)
        run_out(storage)
        assert storage.rescue() == RescueOutcome(2, 0)
    assert storage.rescue() == RescueOutcome(1, 0)
    assert late.complete([claim]) == 0


def test_a_batch_that_has_ended_is_never_looked_at_again(storage: QueueStorage) -> None:
    for _ in range(3):
        storage.complete(take(storage, 2))
    storage.rotate()
    storage.complete(take(storage, 2))
    open_claims = take(storage)
    assert storage.rescue() == NOTHING
    assert watched(storage) == 1
    mark = query(storage, "SELECT *, xmin FROM {ns}.lease_watermarks")
    # Were it looked at, it would be found open now.
    query(storage, "DELETE FROM {ns}.lease_claim_closures")
    run_out(storage)
    storage.complete(open_claims)
    assert storage.rescue() == NOTHING
    assert query(storage, "SELECT *, xmin FROM {ns}.lease_watermarks") == mark
    assert watched(storage) == 0


def test_one_call_goes_on_until_all_that_ran_out_is_rescued(
    storage: QueueStorage, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "WATCHED", 2)
    monkeypatch.setattr(leases, "RESCUED", 2)
    for number in range(7):
        storage.enqueue_many(f"q{number % 2}", "k", [None] * 2, max_attempts=1 + number // 5)
        assert len(storage.claim(f"q{number % 2}", 2)) == 2
        if number == 3:
            storage.rotate()
    # All at the same time, so that a place in the order needs more than that.
    query(storage, "UPDATE {ns}.lease_claim_batches SET lease_until = now() - interval '1 h'")
    holder = connect()
    with holder.transaction():
        QueueStorage(holder, storage.namespace).extend(storage.claim("q0"), HOUR)
        query(
            QueueStorage(holder, storage.namespace),
            "SELECT FROM {ns}.lease_claim_batches"
            " WHERE run_lease = (SELECT min(run_lease) FROM {ns}.lease_claim_batches) FOR UPDATE",
        )
        assert storage.rescue() == RescueOutcome(rescued=4, failed=8)
    assert storage.rescue() == RescueOutcome(rescued=0, failed=2)
    assert differences(storage) == []


def test_two_rescuers_rescue_each_job_once(storage: QueueStorage, connect: Connect) -> None:
    for _ in range(20):
        take(storage, 3)
    run_out(storage)
    both = [QueueStorage(connect(), storage.namespace) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(QueueStorage.rescue, both))
    assert sum(outcome.rescued for outcome in outcomes) + storage.rescue().rescued == 60
    assert query(storage, "SELECT count(*) FROM {ns}.deferred_jobs") == [(60,)]
    assert watched(storage) == 0
    assert differences(storage) == []


def test_a_slot_that_dead_workers_pinned_is_pruned_after_the_rescue(storage: QueueStorage) -> None:
    take(storage, 2)
    storage.rotate()
    assert storage.prune_oldest().reason == "open_claims"
    run_out(storage)
    assert storage.rescue() == RescueOutcome(2, 0)
    assert storage.prune_oldest().outcome == "pruned"
    assert storage.queue_counts("q").deferred == 2


def test_rescue_is_transactions_of_its_own(storage: QueueStorage) -> None:
    with storage.connection.transaction(), pytest.raises(TransactionOpen):
        storage.rescue()
