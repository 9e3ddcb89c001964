"""Ending claims: each ends once, whoever asks, and leaves what is promised."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.migrations import migrate
from parkkeeper.queue import ClaimedJob, QueueStorage
from ringside import SOON, differences, query, until

Connect = Callable[..., psycopg.Connection[Any]]


def make_due(storage: QueueStorage) -> None:
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")


def take(storage: QueueStorage, count: int = 1, **options: Any) -> list[ClaimedJob]:
    storage.enqueue_many("q", "k", [{"n": n} for n in range(count)], **options)
    return storage.claim("q", count)


def states(storage: QueueStorage) -> list[tuple[Any, ...]]:
    return query(storage, "SELECT state::text, count(*) FROM {ns}.done_entries GROUP BY state ORDER BY 1")


def test_a_job_is_completed_once(storage: QueueStorage) -> None:
    claims = take(storage, 5)
    assert storage.complete(claims[:2]) == 2
    assert storage.complete(claims) == 3
    assert storage.complete([*claims, *claims]) == 0
    assert storage.fail(claims[0], "late") is None
    assert states(storage) == [("completed", 5)]
    counts = storage.queue_counts("q")
    assert (counts.available, counts.running, counts.terminal) == (0, 0, 5)
    assert differences(storage) == []


def test_a_claim_given_twice_in_one_call_counts_once(storage: QueueStorage) -> None:
    claims = take(storage, 3)
    assert storage.complete([claims[0], claims[0]]) == 1
    failures = [(claims[1], "first"), (claims[2], "x"), (claims[1], "second")]
    assert storage.fail_many(failures, terminal=True) == ["failed", "failed", None]
    assert query(storage, "SELECT error FROM {ns}.done_entries WHERE job_id = %s", claims[1].job_id) == [
        ("first",)
    ]


def test_no_claims_ask_nothing_of_the_database(storage: QueueStorage) -> None:
    storage.connection.close()
    assert storage.complete([]) == 0
    assert storage.complete(iter(())) == 0
    assert storage.fail_many([]) == []


def test_claims_of_many_batches_end_in_one_call_in_the_order_given(storage: QueueStorage) -> None:
    claims = [claim for _ in range(4) for claim in take(storage, 2)]
    assert len({claim.run_lease for claim in claims}) == 4
    assert storage.complete([claims[6], claims[0], claims[3]]) == 3
    outcomes = storage.fail_many([(claim, "no") for claim in reversed(claims)], terminal=True)
    assert outcomes == [{6: None, 0: None, 3: None}.get(place, "failed") for place in range(7, -1, -1)]
    assert differences(storage) == []


def test_a_claim_ends_by_its_run_lease_and_by_nothing_else(
    storage: QueueStorage, connection: psycopg.Connection[Any], namespace: str, connect: Connect
) -> None:
    first, second = take(storage, 2)
    for wrong in (
        replace(first, job_id=second.job_id),
        replace(first, ordinal=second.ordinal),
        replace(first, ordinal=99),
        replace(first, run_lease=first.run_lease + 1),
        replace(first, claim_slot=first.claim_slot + 1),
    ):
        assert storage.complete([wrong]) == 0
        assert storage.fail(wrong, "no") is None
    assert states(storage) == []
    assert storage.complete([first]) == 1


def test_a_stale_worker_cannot_end_a_newer_attempt(storage: QueueStorage) -> None:
    [stale] = take(storage)
    assert storage.fail(stale, "again") == "retryable"
    make_due(storage)
    [fresh] = storage.claim("q")
    assert fresh.job_id == stale.job_id and fresh.attempt == 2 and fresh.run_lease > stale.run_lease
    assert storage.complete([stale]) == 0 and storage.fail(stale, "no") is None
    assert storage.complete([fresh]) == 1
    assert query(storage, "SELECT run_lease, attempt FROM {ns}.done_entries") == [(fresh.run_lease, 2)]


def test_a_lease_that_ran_out_is_no_hindrance_while_nobody_took_the_job(storage: QueueStorage) -> None:
    claims = take(storage, 2)
    query(storage, "UPDATE {ns}.lease_claim_batches SET lease_until = now() - interval '1 h'")
    assert storage.complete(claims[:1]) == 1
    assert storage.fail(claims[1], "no") == "retryable"


def test_finished_and_failed_from_two_sessions_has_one_winner_and_the_other_is_told(
    storage: QueueStorage, connect: Connect
) -> None:
    claims = take(storage, 2)
    other = QueueStorage(connect(), storage.namespace)
    observer = QueueStorage(connect(), storage.namespace)
    with ThreadPoolExecutor(1) as pool:
        for claim, commits in zip(claims, (True, False), strict=True):
            with storage.connection.transaction(force_rollback=not commits):
                assert storage.complete([claim]) == 1
                theirs = pool.submit(other.fail, claim, "no", terminal=True)
                until(
                    lambda: query(
                        observer,
                        "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s",
                        other.connection.info.backend_pid,
                    )[0][0]
                )
            assert theirs.result(SOON) == (None if commits else "failed")
    assert states(storage) == [("completed", 1), ("failed", 1)]
    assert differences(storage) == []


def test_batches_are_locked_by_their_lease_in_whatever_order_claims_are_given(
    storage: QueueStorage, connect: Connect
) -> None:
    [first], [second] = take(storage), take(storage)
    other = QueueStorage(connect(), storage.namespace)
    third = QueueStorage(connect(lock_timeout=timedelta(seconds=3)), storage.namespace)
    with ThreadPoolExecutor(1) as pool:
        with storage.connection.transaction():
            assert storage.complete([first]) == 1
            theirs = pool.submit(other.complete, [second, first])
            until(
                lambda: query(
                    third,
                    "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s",
                    other.connection.info.backend_pid,
                )[0][0]
            )
            # They wait for the first and do not hold the second yet. (In a transaction a wait is not tried again.)
            with third.connection.transaction():
                assert third.complete([second]) == 1
        assert theirs.result(SOON) == 0
    assert states(storage) == [("completed", 2)]


def test_a_failure_is_tried_again_until_the_attempts_are_spent(storage: QueueStorage) -> None:
    [claim] = take(storage, max_attempts=3)
    for attempt in (1, 2):
        assert claim.attempt == attempt
        assert storage.fail(claim, f"failure {attempt}") == "retryable"
        assert query(storage, "SELECT state::text, attempt, error FROM {ns}.deferred_jobs") == [
            ("retryable", attempt, f"failure {attempt}")
        ]
        query(storage, "UPDATE {ns}.deferred_jobs SET run_at = run_at + interval '1 h'")
        assert storage.claim("q") == []
        make_due(storage)
        [claim] = storage.claim("q")
    assert storage.fail(claim, "failure 3") == "failed"
    assert query(storage, "SELECT state::text, attempt, error FROM {ns}.done_entries") == [
        ("failed", 3, "failure 3")
    ]
    counts = storage.queue_counts("q")
    assert (counts.available, counts.running, counts.deferred, counts.failed) == (0, 0, 0, 1)
    assert differences(storage) == []


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1), (2, 2), (10, 512), (12, 2048), (13, 3600), (32766, 3600)]
)
def test_the_wait_doubles_up_to_an_hour_and_is_spread_by_a_tenth(
    storage: QueueStorage, attempt: int, seconds: int
) -> None:
    claims = take(storage, 60, max_attempts=32767)
    query(storage, "UPDATE {ns}.lease_claim_batches SET attempts = ARRAY[%s::smallint]", attempt)
    assert set(storage.fail_many([(claim, "no") for claim in claims])) == {"retryable"}
    waits = [
        row[0].total_seconds() / seconds
        for row in query(
            storage, "SELECT run_at - closed_at FROM {ns}.deferred_jobs, {ns}.lease_claim_closures"
        )
    ]
    assert len(waits) == 60
    assert 0.9 <= min(waits) < 0.95 and 1.05 < max(waits) <= 1.1


def test_terminal_means_no_further_attempt(storage: QueueStorage) -> None:
    [claim] = take(storage)
    assert storage.fail(claim, "no use", terminal=True) == "failed"
    assert storage.queue_counts("q").deferred == 0


def test_a_batch_may_be_in_parts_completed_retryable_and_failed(storage: QueueStorage) -> None:
    for n in range(4):
        storage.enqueue("q", "k", {"n": n}, max_attempts=1 if n == 2 else 5)
    claims = storage.claim("q", 4)
    assert storage.complete(claims[:1]) == 1
    assert storage.fail_many([(claim, "no") for claim in claims]) == [
        None,
        "retryable",
        "failed",
        "retryable",
    ]
    counts = storage.queue_counts("q")
    assert (counts.running, counts.deferred, counts.terminal, counts.failed) == (0, 2, 2, 1)
    assert differences(storage) == []


def test_a_retryable_job_keeps_all_that_it_is_without_its_old_slot(storage: QueueStorage) -> None:
    storage.enqueue("q", "k", {"text": "words"}, priority=5, max_attempts=9, unique_key="key")
    [claim] = storage.claim("q")
    created = query(storage, "SELECT created_at FROM {ns}.ready_entries")
    assert storage.fail(claim, "again") == "retryable"
    assert storage.rotate().outcome == "rotated"
    storage.prune_oldest()
    make_due(storage)
    [again] = storage.claim("q")
    assert (again.job_id, again.args, again.priority, again.max_attempts, again.attempt) == (
        claim.job_id,
        {"text": "words"},
        5,
        9,
        2,
    )
    assert query(storage, "SELECT created_at FROM {ns}.ready_entries") == created


def test_the_text_of_an_error_stands_in_the_row_alone_cleaned_and_cut(storage: QueueStorage) -> None:
    claims = take(storage, 2)
    text = "\0\x1bline one\n\tline two \ud800 " + "é" * 3000
    assert storage.fail(claims[0], text, terminal=True) == "failed"
    assert storage.fail(claims[1], text) == "retryable"
    kept = ("line one\n\tline two \N{REPLACEMENT CHARACTER} " + "é" * 3000)[:2000]
    assert query(storage, "SELECT error FROM {ns}.done_entries") == [(kept,)]
    assert query(storage, "SELECT error FROM {ns}.deferred_jobs") == [(kept,)]


def test_a_job_ends_in_the_slot_of_its_body_though_that_be_sealed(storage: QueueStorage) -> None:
    claims = take(storage, 2)
    assert storage.rotate().outcome == "rotated"
    assert storage.complete(claims[:1]) == 1
    assert storage.fail(claims[1], "no", terminal=True) == "failed"
    assert query(storage, "SELECT DISTINCT ready_slot FROM {ns}.done_entries") == [(0,)]
    assert query(storage, "SELECT args FROM {ns}.terminal_jobs ORDER BY job_id") == [({"n": 0},), ({"n": 1},)]
    assert differences(storage) == []


def test_a_body_that_is_missing_is_heard_of_and_nothing_is_closed(storage: QueueStorage) -> None:
    claims = take(storage, 2)
    query(storage, "DELETE FROM {ns}.ready_entries WHERE job_id = %s", claims[1].job_id)
    with pytest.raises(psycopg.errors.DataCorrupted):
        storage.fail_many([(claim, "no") for claim in claims])
    assert query(storage, "SELECT count(*) FROM {ns}.lease_claim_closures") == [(0,)]


def test_an_end_that_is_rolled_back_can_be_made_again(storage: QueueStorage) -> None:
    claims = take(storage, 2)
    with storage.connection.transaction(force_rollback=True):
        assert storage.complete(claims) == 2
    assert storage.complete(claims) == 2
    assert differences(storage) == []


def test_a_claim_of_another_namespace_ends_nothing_here(
    storage: QueueStorage, connection: psycopg.Connection[Any], namespace: str
) -> None:
    other_name = f"{namespace}_2"
    migrate(connection, other_name, "queue", queue_slots=4)
    try:
        other = QueueStorage(connection, other_name)
        storage.enqueue("q", "k")
        [theirs] = take(other)
        storage.enqueue("q", "k")
        claims = storage.claim("q", 2)
        assert theirs.run_lease == claims[0].run_lease
        assert storage.complete([replace(theirs, job_id=claims[1].job_id)]) == 0
        assert storage.complete(claims) == 2
        assert other.complete([theirs]) == 1
    finally:
        query(storage, f"DROP SCHEMA {other_name} CASCADE")
