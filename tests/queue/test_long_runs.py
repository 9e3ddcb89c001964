"""Jobs that run for longer than a lap: out of the ring, still their worker's, and ended like any other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from parkkeeper.queue import ClaimedJob, QueueStorage, RescueOutcome, UniqueConflict
from ringside import SOON, differences, end_jobs, prune_all, query, run_out, terminal, until

Connect = Callable[..., psycopg.Connection[Any]]

HOUR = timedelta(hours=1)


def evacuate(storage: QueueStorage, limit: int = 5_000) -> int:
    """Move what runs out of all sealed slots."""
    slots = query(
        storage, "SELECT slot FROM {ns}.queue_ring_slots WHERE sealed_at IS NOT NULL ORDER BY generation"
    )
    return sum(query(storage, "SELECT {ns}.evacuate_running(%s, %s)", slot, limit)[0][0] for (slot,) in slots)


def away(storage: QueueStorage) -> list[int]:
    return [row[0] for row in query(storage, "SELECT job_id FROM {ns}.running_evacuated ORDER BY job_id")]


def lap(storage: QueueStorage, turns: int = 4) -> None:
    """Let other jobs turn the ring of four slots once, and the claims' own ring as far, and drop all that can be."""
    for _ in range(turns):
        end_jobs(storage, 2, state="completed", queue="other")
        assert storage.rotate().outcome == "rotated"
        evacuate(storage)
        prune_all(storage)
        assert storage.rotate(ring="claim").outcome == "rotated"
        prune_all(storage, ring="claim")


def begin(storage: QueueStorage, count: int = 1, **options: Any) -> list[ClaimedJob]:
    """Claim jobs, and let their slot be pruned, and that of their claims."""
    ids = [storage.enqueue("q", "work", {"n": n}, **options) for n in range(count)]
    claims = storage.claim("q", count)
    assert [claim.job_id for claim in claims] == ids
    storage.rotate()
    assert storage.prune_oldest().reason == "open_claims"
    lap(storage)
    assert away(storage) == ids
    assert query(storage, "SELECT count(*) FROM {ns}.ready_entries") == [(0,)]
    assert query(storage, "SELECT count(*) FROM {ns}.lease_claim_closures") == [(0,)]
    assert query(storage, "SELECT count(*) FROM {ns}.lease_claim_batches WHERE job_count > 0") == [(0,)]
    assert storage.queue_counts("q").running == count
    return claims


def test_a_job_that_runs_for_three_laps_is_written_out_once_and_completed(storage: QueueStorage) -> None:
    storage.enqueue("q", "work", {"n": 1}, priority=1)
    [claim] = storage.claim("q")
    storage.rotate()
    lap(storage)
    [place] = query(storage, "SELECT ctid, xmin FROM {ns}.running_evacuated")
    for _ in range(2):
        lap(storage)
        assert storage.queue_counts("q").running == 1
        assert differences(storage) == []
    assert query(storage, "SELECT ctid, xmin FROM {ns}.running_evacuated") == [place]
    storage.rebuild_terminal_counters()
    assert storage.queue_counts("q").running == 1
    assert differences(storage) == []

    assert storage.complete([claim]) == 1

    assert away(storage) == [] and storage.complete([claim]) == 0
    assert query(
        storage,
        "SELECT job_id, queue, state::text, priority, attempt, max_attempts, args, slot = current_slot,"
        " attempted_at < finalized_at AND created_at <= attempted_at"
        " FROM {ns}.terminal_jobs, {ns}.queue_ring_state WHERE queue = 'q'",
    ) == [(claim.job_id, "q", "completed", 1, 1, 25, {"n": 1}, True, True)]
    assert terminal(storage)[claim.job_id][2], "a wide row"
    counts = storage.queue_counts("q")
    assert (counts.running, counts.terminal) == (0, 1)
    assert differences(storage) == []


def test_each_way_to_end_a_job_works_outside_of_the_ring(storage: QueueStorage) -> None:
    storage.set_queue("q", dead_letter=True)
    claims = begin(storage, 6, max_attempts=2)
    completed, again, last, snoozed, cancelled, lost = claims
    assert storage.complete([completed, replace(completed, run_lease=completed.run_lease + 10**6)]) == 1
    query(storage, "UPDATE {ns}.running_evacuated SET attempt = 2 WHERE job_id = %s", last.job_id)
    assert storage.fail_many([(last, "no"), (completed, "no"), (again, "not yet")]) == [
        "dead_lettered",
        None,
        "retryable",
    ]
    assert storage.snooze([snoozed], snoozed.lease_until) == 1
    assert storage.cancel(cancelled.job_id) is True
    assert storage.complete([cancelled]) == 0 and storage.cancel(cancelled.job_id) is False
    run_out(storage)
    assert storage.rescue() == RescueOutcome(1, 0, 0)
    assert storage.rescue() == RescueOutcome(0, 0, 0)

    assert away(storage) == []
    assert query(storage, "SELECT job_id, error, attempt, args FROM {ns}.dlq_entries") == [
        (last.job_id, "no", 2, {"n": 2})
    ]
    assert query(
        storage, "SELECT job_id, state::text, attempt, args FROM {ns}.deferred_jobs ORDER BY job_id"
    ) == [
        (again.job_id, "retryable", 1, {"n": 1}),
        (snoozed.job_id, "scheduled", 0, {"n": 3}),
        (lost.job_id, "retryable", 1, {"n": 5}),
    ]
    assert {
        job_id: state
        for job_id, (state, _, _) in terminal(storage).items()
        if job_id in (completed.job_id, cancelled.job_id)
    } == {
        completed.job_id: "completed",
        cancelled.job_id: "cancelled",
    }
    assert all(storage.cancel(job_id) for job_id in (again.job_id, snoozed.job_id, lost.job_id))
    assert differences(storage) == []


def test_a_failed_job_is_kept_and_put_back_as_any(storage: QueueStorage) -> None:
    [claim] = begin(storage, max_attempts=1)
    assert storage.fail(claim, "no such file") == "failed"
    assert storage.queue_counts("q").failed == 1
    lap(storage)
    assert storage.retry_failed_by_queue("q").retried == [claim.job_id]
    [again] = storage.claim("q")
    assert (again.attempt, again.args) == (1, {"n": 0})
    assert differences(storage) == []


def test_an_extension_holds_outside_of_the_ring_and_moves_with_the_job(storage: QueueStorage) -> None:
    ids = storage.enqueue_many("q", "work", [None] * 3)
    claims = storage.claim("q", 3, lease=HOUR)
    assert storage.extend(claims[:1], 10 * HOUR) == 1
    storage.rescue()
    storage.rotate()
    assert evacuate(storage) == 3
    assert query(storage, "SELECT count(*) FROM {ns}.leases") == [(0,)]
    run_out(storage)
    assert storage.extend(claims[1:2], HOUR) == 1
    assert storage.extend(claims[:1], timedelta(microseconds=1)) == 1
    assert storage.rescue() == RescueOutcome(1, 0, 0)
    assert away(storage) == ids[:2]
    assert storage.complete(claims) == 2
    assert differences(storage) == []


def test_what_has_ended_before_stays_in_the_ring(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "work", [None] * 4)
    claims = storage.claim("q", 4)
    storage.complete(claims[:2])
    storage.rotate()
    assert evacuate(storage, limit=1) == 1
    assert differences(storage) == []
    assert storage.prune_oldest().count == 1
    assert evacuate(storage) == 1
    assert evacuate(storage) == 0
    assert storage.prune_oldest().pruned_completed == 2
    # In one call, claims of one batch that are open in the ring and outside of it.
    assert storage.complete(claims) == 2
    assert differences(storage) == []


def test_one_call_ends_claims_of_a_batch_on_both_sides(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "work", [None] * 4)
    claims = storage.claim("q", 4)
    storage.rotate()
    assert evacuate(storage, limit=2) == 2
    outside = away(storage)
    assert storage.fail_many([(claim, f"error {claim.ordinal}") for claim in claims]) == ["retryable"] * 4
    assert query(storage, "SELECT job_id, error FROM {ns}.deferred_jobs ORDER BY job_id") == [
        (claim.job_id, f"error {claim.ordinal}") for claim in claims
    ]
    assert len(outside) == 2 and away(storage) == []
    assert differences(storage) == []


def test_the_claim_of_an_earlier_attempt_ends_nothing_outside_of_the_ring(storage: QueueStorage) -> None:
    storage.enqueue("q", "work")
    [stale] = storage.claim("q")
    run_out(storage)
    assert storage.rescue() == RescueOutcome(1, 0, 0)
    query(storage, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")
    [claim] = storage.claim("q")
    storage.rotate()
    assert evacuate(storage) == 1
    assert storage.complete([stale]) == storage.extend([stale], HOUR) == 0
    assert storage.fail(stale, "late") is None and storage.snooze([stale], stale.lease_until) == 0
    assert away(storage) == [claim.job_id]
    assert storage.complete([stale, claim]) == 1
    assert differences(storage) == []


def test_jobs_of_the_current_slot_are_left(storage: QueueStorage) -> None:
    storage.enqueue("q", "work")
    storage.claim("q")
    assert query(
        storage,
        "SELECT {ns}.evacuate_running(0, 10), {ns}.evacuate_running(3, 10), {ns}.evacuate_running(99, 10)",
    ) == [(0, 0, 0)]


def test_keys_are_held_and_let_go_as_in_the_ring(storage: QueueStorage) -> None:
    kept = ("scheduled", "available", "running", "retryable", "completed")
    first = storage.enqueue("q", "work", unique_key="one", unique_states=kept)
    second = storage.enqueue("q", "work", unique_key="two")
    claims = storage.claim("q", 2)
    storage.rotate()
    lap(storage)
    for key, holder in (("one", first), ("two", second)):
        with pytest.raises(UniqueConflict) as refused:
            storage.enqueue("q", "work", unique_key=key)
        assert refused.value.holder_job_id == holder
    assert storage.complete(claims) == 2
    assert storage.enqueue("q", "work", unique_key="two") > second
    with pytest.raises(UniqueConflict):
        storage.enqueue("q", "work", unique_key="one")
    storage.complete(storage.claim("q"))
    storage.rotate()
    lap(storage)
    # Its terminal row is gone.
    assert storage.enqueue("q", "work", unique_key="one") > second
    assert differences(storage) == []


@pytest.mark.parametrize("end", ["complete", "fail", "snooze", "extend", "cancel", "rescue"])
def test_a_move_that_is_not_committed_is_waited_for_or_left_alone(
    storage: QueueStorage, connect: Connect, end: str
) -> None:
    storage.enqueue("q", "work")
    [claim] = storage.claim("q")
    storage.rescue()
    run_out(storage)
    storage.rotate()
    mover, watcher = QueueStorage(connect(), storage.namespace), connect()
    ends: dict[str, Callable[[], Any]] = {
        "complete": lambda: storage.complete([claim]) == 1,
        "fail": lambda: storage.fail(claim, "no") == "retryable",
        "snooze": lambda: storage.snooze([claim], claim.lease_until) == 1,
        "extend": lambda: storage.extend([claim], HOUR) == 1,
        "cancel": lambda: storage.cancel(claim.job_id),
        "rescue": lambda: storage.rescue() == RescueOutcome(0, 0, 0),
    }
    pid = storage.connection.info.backend_pid
    with ThreadPoolExecutor(1) as pool:
        with mover.connection.transaction():
            assert evacuate(mover) == 1
            ended = pool.submit(ends[end])
            until(
                lambda: (
                    ended.done()
                    or watcher.execute("SELECT FROM pg_locks WHERE pid = %s AND NOT granted", [pid]).rowcount
                )
            )
            assert ended.done() == (end == "rescue")
        assert ended.result(SOON)
    if end == "rescue":
        assert storage.rescue() == RescueOutcome(1, 0, 0)
    assert away(storage) == ([claim.job_id] if end == "extend" else [])
    assert differences(storage) == []


@pytest.mark.parametrize("end", ["complete", "cancel"])
def test_a_move_leaves_what_is_ended_at_that_moment(
    storage: QueueStorage, connect: Connect, end: str
) -> None:
    storage.enqueue("q", "work")
    [claim] = storage.claim("q")
    storage.rotate()
    mover = QueueStorage(connect(), storage.namespace)
    with storage.connection.transaction():
        assert storage.complete([claim]) == 1 if end == "complete" else storage.cancel(claim.job_id)
        assert evacuate(mover) == 0
    assert evacuate(mover) == 0
    assert away(storage) == []
    assert differences(storage) == []


def test_of_two_that_end_a_job_outside_of_the_ring_one_wins(storage: QueueStorage, connect: Connect) -> None:
    claims = begin(storage, 40)
    run_out(storage)
    workers = [QueueStorage(connect(), storage.namespace) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        done = [
            pool.submit(lambda: sum(workers[0].complete([claim]) for claim in claims)),
            pool.submit(lambda: sum(workers[1].cancel(claim.job_id) for claim in reversed(claims))),
            pool.submit(lambda: workers[2].rescue().rescued),
        ]
        # A job that was rescued waits outside of the ring again, where a cancel may still find it.
        completed, cancelled, rescued = [one.result(SOON) for one in done]
    waiting = query(storage, "SELECT count(*) FROM {ns}.deferred_jobs")[0][0]
    assert completed + cancelled + waiting == 40
    assert waiting <= rescued
    assert away(storage) == []
    assert differences(storage) == []


def test_rescue_takes_more_than_a_transaction_holds(
    storage: QueueStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkkeeper.queue.leases.RESCUED", 2)
    begin(storage, 5, max_attempts=1)
    run_out(storage)
    assert storage.rescue() == RescueOutcome(0, 5, 0)
    assert storage.queue_counts("q").failed == 5
    assert differences(storage) == []


def test_an_idle_look_for_jobs_to_move_or_rescue_writes_nothing(storage: QueueStorage) -> None:
    end_jobs(storage, state="completed")
    storage.rotate()
    text = sql.SQL("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    [before] = storage.connection.execute(text).fetchall()
    assert evacuate(storage) == 0
    query(storage, "SELECT {ns}.rescue_evacuated(now(), 10)")
    assert storage.connection.execute(text).fetchall() == [before]
