"""Dead letters: kept apart for as long as their queue likes, counted, put back as new, and purged with a number."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import (
    ClaimedJob,
    InvalidArgument,
    InvalidName,
    PurgeOutcome,
    QueueStorage,
    RescueOutcome,
    RetryDeadLettersOutcome,
    TransactionOpen,
    UniqueConflict,
    UnknownQueue,
    Worker,
    dead_letters,
)
from parkkeeper.queue.dead_letters import list_dead_letters
from ringside import differences, end_jobs, prune_all, query, run_out

Connect = Callable[..., psycopg.Connection[Any]]

DAY = timedelta(days=1)


@pytest.fixture
def letters(storage: QueueStorage) -> QueueStorage:
    """A queue that keeps dead letters: q."""
    storage.set_queue("q", dead_letter=True)
    return storage


def die(
    storage: QueueStorage, count: int = 1, *, queue: str = "q", kind: str = "work", **options: Any
) -> list[int]:
    """Enqueue jobs and let each fail for good; return their ids."""
    ids = [storage.enqueue(queue, kind, {"n": n}, **options) for n in range(count)]
    claims = storage.claim(queue, count)
    assert [claim.job_id for claim in claims] == ids
    assert (
        storage.fail_many([(claim, "no such file") for claim in claims], terminal=True)
        == ["dead_lettered"] * count
    )
    return ids


def buried(storage: QueueStorage) -> list[int]:
    return [row[0] for row in query(storage, "SELECT job_id FROM {ns}.dlq_entries ORDER BY job_id")]


def grow_old(storage: QueueStorage, job_ids: list[int], by: timedelta) -> None:
    query(storage, "UPDATE {ns}.dlq_entries SET dead_at = dead_at - %s WHERE job_id = ANY (%s)", by, job_ids)


def test_a_job_that_fails_for_good_is_a_dead_letter_only_where_its_queue_wants_that(
    letters: QueueStorage,
) -> None:
    [job_id] = die(letters, priority=1)
    plain = end_jobs(letters, queue="r")
    assert query(
        letters,
        "SELECT job_id, kind, args, error, attempt, max_attempts, attempted_at <= dead_at FROM {ns}.dlq_entries",
    ) == [(job_id, "work", {"n": 0}, "no such file", 1, 25, True)]
    assert query(letters, "SELECT job_id FROM {ns}.terminal_jobs") == [(plain[0],)]
    counts = letters.queue_counts("q")
    assert (
        counts.dead_lettered,
        counts.purged_dead_letters,
        counts.running,
        counts.terminal,
        counts.failed,
    ) == (
        1,
        0,
        0,
        0,
        0,
    )
    assert letters.queue_counts("r").dead_lettered == 0
    assert differences(letters) == []


def test_a_failure_with_attempts_left_is_tried_again_before_it_is_a_dead_letter(
    letters: QueueStorage,
) -> None:
    ids = letters.enqueue_many("q", "work", [None] * 2, max_attempts=2)
    first, second = letters.claim("q", 2)
    assert letters.fail_many([(first, "no"), (second, "no")]) == ["retryable"] * 2
    query(letters, "UPDATE {ns}.deferred_jobs SET run_at = now() - interval '1 s'")
    again = letters.claim("q", 2)
    assert letters.fail_many([(claim, "no") for claim in again]) == ["dead_lettered"] * 2
    assert buried(letters) == ids
    assert letters.fail(again[0], "late") is None
    assert letters.cancel(ids[0]) is False
    assert differences(letters) == []


def test_what_one_call_fails_may_end_in_three_ways(letters: QueueStorage) -> None:
    letters.enqueue("q", "work", max_attempts=1)
    letters.enqueue("q", "work", max_attempts=2)
    letters.enqueue("r", "work", max_attempts=1)
    claims = letters.claim("q", 2) + letters.claim("r", 1)
    assert letters.fail_many([(claim, "no") for claim in reversed(claims)]) == [
        "failed",
        "retryable",
        "dead_lettered",
    ]
    assert differences(letters) == []


def test_rescue_at_the_cap_makes_dead_letters_and_says_how_many(letters: QueueStorage) -> None:
    letters.enqueue_many("q", "work", [None] * 2, max_attempts=1)
    letters.enqueue("q", "work", max_attempts=2)
    letters.enqueue("r", "work", max_attempts=1)
    assert len(letters.claim("q", 3) + letters.claim("r", 1)) == 4
    run_out(letters)
    assert letters.rescue() == RescueOutcome(rescued=1, failed=1, dead_lettered=2)
    assert letters.rescue() == RescueOutcome(0, 0, 0)
    assert differences(letters) == []


def test_a_worker_counts_what_it_left_as_dead_letters(letters: QueueStorage) -> None:
    letters.enqueue_many("q", "work", [None] * 2, max_attempts=1)

    def handle(claim: ClaimedJob) -> None:
        raise LookupError

    outcome = Worker(letters, "q", handle).run(drain=True)
    assert (outcome.dead_lettered, outcome.failed, outcome.retryable) == (2, 0, 0)


def test_the_choice_holds_from_then_on_and_each_part_of_it_is_kept(letters: QueueStorage) -> None:
    stays = die(letters)
    assert letters.set_queue("q", dead_letter_retention=DAY).dead_letter is True
    settings = letters.set_queue("q", dead_letter=False)
    assert (settings.dead_letter, settings.dead_letter_retention_seconds) == (False, 86_400)
    failed = end_jobs(letters)
    assert buried(letters) == stays
    assert letters.queue_counts("q").failed == len(failed) == 1
    assert letters.set_queue("s").dead_letter is False


def test_dead_letters_outlive_every_slot_and_stay_counted(letters: QueueStorage) -> None:
    ids = die(letters, 3)
    for _ in range(5):
        end_jobs(letters, state="completed")
        assert letters.rotate().outcome == "rotated"
        prune_all(letters, failed_retention=0)
        assert letters.queue_counts("q").dead_lettered == 3
        assert differences(letters) == []
    letters.rebuild_terminal_counters()
    assert letters.queue_counts("q").dead_lettered == 3
    assert differences(letters) == []
    letters.rotate()
    prune_all(letters)
    assert letters.retry_dead_letters().retried == ids
    assert letters.queue_counts("q").dead_lettered == 0
    assert differences(letters) == []


def test_a_letter_that_is_put_back_is_as_new_and_keeps_its_id_and_age(letters: QueueStorage) -> None:
    job_id = letters.enqueue("q", "work", {"n": 1}, priority=1, max_attempts=1)
    letters.fail(letters.claim("q")[0], "no such file")
    grow_old(letters, [job_id], DAY)
    query(
        letters,
        "UPDATE {ns}.dlq_entries SET created_at = created_at - interval '2 d', run_at = run_at - interval '2 d'",
    )
    [created] = query(letters, "SELECT created_at FROM {ns}.dlq_entries")
    letters.rotate()
    prune_all(letters)

    assert letters.retry_dead_letters("q") == RetryDeadLettersOutcome([job_id], 1, [], 0)

    assert query(
        letters,
        "SELECT attempt, max_attempts, created_at, run_at > now() - interval '1 min' FROM {ns}.ready_entries",
    ) == [(0, 1, created[0], True)]
    [claim] = letters.claim("q")
    assert (claim.job_id, claim.args, claim.attempt, claim.priority) == (job_id, {"n": 1}, 1, 1)
    assert letters.complete([claim]) == 1
    assert buried(letters) == []
    assert differences(letters) == []


def test_every_filter_that_is_given_must_hold(letters: QueueStorage) -> None:
    letters.set_queue("r", dead_letter=True)
    mail = die(letters, 2, kind="mail")
    other = die(letters, 1, queue="r", kind="mail") + die(letters, 1)
    [(now,)] = query(letters, "SELECT date_trunc('second', now())")
    for hours, job_id in enumerate(mail + other):
        query(
            letters,
            "UPDATE {ns}.dlq_entries SET dead_at = %s WHERE job_id = %s",
            now - timedelta(hours=hours),
            job_id,
        )

    assert letters.retry_dead_letters("r", kind="work").matched == 0
    assert letters.retry_dead_letters(ids=[mail[1], 10**12], kind="work").matched == 0
    assert letters.retry_dead_letters(ids=[]).matched == 0
    assert letters.retry_dead_letters(dead_from=now).retried == [mail[0]]
    assert letters.retry_dead_letters(
        dead_from=now - timedelta(hours=2), dead_before=now - timedelta(hours=1)
    ).retried == [other[0]]
    assert letters.retry_dead_letters(ids=[mail[1], mail[1], 10**12], kind="mail").retried == [mail[1]]
    assert letters.retry_dead_letters("q").retried == [other[1]]


def test_letters_go_back_in_chunks_those_that_died_first_in_front(
    letters: QueueStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "CHUNK", 2)
    ids = die(letters, 5)
    grow_old(letters, ids[3:], DAY)
    assert letters.retry_dead_letters(limit=3).retried == [*ids[3:], ids[0]]
    assert letters.retry_dead_letters().retried == ids[1:3]
    assert [claim.job_id for claim in letters.claim("q", 5)] == [*ids[3:], *ids[:3]]
    assert differences(letters) == []


def test_a_dead_letter_lets_go_of_its_key_and_a_retry_takes_it_again_or_is_a_conflict(
    letters: QueueStorage,
) -> None:
    [first] = die(letters, unique_key="one")
    second = letters.enqueue("q", "work", unique_key="one")
    assert letters.retry_dead_letters() == RetryDeadLettersOutcome([], 1, [first], 0)
    letters.complete(letters.claim("q"))
    assert letters.retry_dead_letters().retried == [first]
    with pytest.raises(UniqueConflict) as refused:
        letters.enqueue("q", "work", unique_key="one")
    assert refused.value.holder_job_id == first != second
    assert differences(letters) == []


def test_a_key_that_is_held_in_failure_is_held_by_the_letter_until_it_is_purged(
    letters: QueueStorage,
) -> None:
    states = ("scheduled", "available", "running", "retryable", "failed")
    [job_id] = die(letters, unique_key="one", unique_states=states)
    for _ in range(2):
        letters.rotate()
        prune_all(letters)
        with pytest.raises(UniqueConflict) as refused:
            letters.enqueue("q", "work", unique_key="one")
        assert refused.value.holder_job_id == job_id
    assert letters.retry_dead_letters().retried == [job_id]
    letters.fail(letters.claim("q")[0], "no", terminal=True)
    assert letters.purge_dead_letters(older_than=0) == PurgeOutcome(1)
    assert query(letters, "SELECT * FROM {ns}.job_unique_claims") == []
    assert letters.enqueue("q", "work", unique_key="one") > job_id


def test_a_letter_that_died_again_meanwhile_is_raced(letters: QueueStorage) -> None:
    ids = die(letters, 2)
    grow_old(letters, ids[:1], DAY)
    keys = [
        list(column)
        for column in zip(*query(letters, "SELECT job_id, dead_at FROM {ns}.dlq_entries"), strict=True)
    ]
    assert letters.retry_dead_letters(ids=ids[1:]).retried == ids[1:]
    letters.fail(letters.claim("q")[0], "again", terminal=True)
    assert query(letters, "SELECT * FROM {ns}.retry_dead_letters(%s, %s)", *keys) == [(ids[:1], [])]
    assert buried(letters) == ids[1:]


def test_two_sessions_put_each_letter_back_once(letters: QueueStorage, connect: Connect) -> None:
    ids = die(letters, 60)
    both = [QueueStorage(connect(), letters.namespace) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(QueueStorage.retry_dead_letters, both))
    assert sorted(job_id for outcome in outcomes for job_id in outcome.retried) == ids
    assert all(one.matched == len(one.retried) + one.raced for one in outcomes)
    assert differences(letters) == []


def test_a_purge_takes_what_each_queue_has_decided_and_nothing_of_a_queue_that_has_not(
    letters: QueueStorage,
) -> None:
    letters.set_queue("r", dead_letter=True, dead_letter_retention=DAY)
    letters.set_queue("s", dead_letter=True, dead_letter_retention=3_600)
    kept = die(letters, 2)
    old, young = die(letters, 2, queue="r"), die(letters, 1, queue="r")
    gone = die(letters, 1, queue="s")
    grow_old(letters, kept + old, DAY)
    grow_old(letters, gone, timedelta(hours=1))

    assert letters.purge_dead_letters() == PurgeOutcome(3)

    assert buried(letters) == kept + young
    assert letters.purge_dead_letters() == PurgeOutcome(0)
    counts = [letters.queue_counts(queue) for queue in "qrs"]
    assert [one.purged_dead_letters for one in counts] == [0, 2, 1]
    assert [one.dead_lettered for one in counts] == [2, 1, 0]
    assert differences(letters) == []


def test_a_purge_by_hand_takes_one_queue_by_age_and_at_most_so_many(
    letters: QueueStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PURGED", 2)
    letters.set_queue("r", dead_letter=True, dead_letter_retention=0)
    ids = die(letters, 7)
    other = die(letters, queue="r")
    grow_old(letters, ids[:4], DAY)
    assert letters.purge_dead_letters("q", older_than=DAY, limit=3) == PurgeOutcome(3)
    assert buried(letters) == ids[3:] + other
    assert letters.purge_dead_letters("q", older_than=DAY) == PurgeOutcome(1)
    assert letters.purge_dead_letters("q") == PurgeOutcome(0)
    assert letters.purge_dead_letters(older_than=0) == PurgeOutcome(4)
    assert letters.queue_counts("q").purged_dead_letters == 7
    assert letters.queue_counts("r").purged_dead_letters == 1


def test_a_letter_that_a_retry_has_in_hand_is_left_by_a_purge(
    letters: QueueStorage, connect: Connect
) -> None:
    ids = die(letters, 2)
    other = connect()
    with other.transaction():
        query(
            QueueStorage(other, letters.namespace),
            "SELECT FROM {ns}.dlq_entries WHERE job_id = %s FOR UPDATE",
            ids[0],
        )
        assert letters.purge_dead_letters(older_than=0) == PurgeOutcome(1)
    assert buried(letters) == ids[:1]


def test_a_purge_of_nothing_writes_nothing(letters: QueueStorage) -> None:
    letters.set_queue("q", dead_letter_retention=DAY)
    die(letters)
    [(before,)] = query(letters, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    assert letters.purge_dead_letters() == PurgeOutcome(0)
    [(after,)] = query(letters, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    assert after == before


def test_a_list_shows_the_newest_first_and_nothing_that_the_application_wrote(letters: QueueStorage) -> None:
    ids = die(letters, 3)
    grow_old(letters, ids[2:], DAY)
    letters.set_queue("r", dead_letter=True)
    die(letters, queue="r")
    found = list_dead_letters(letters.connection, letters.namespace, queue="q", limit=2)
    assert [letter.job_id for letter in found] == [ids[1], ids[0]]
    assert (found[0].queue, found[0].kind, found[0].attempt, found[0].max_attempts) == ("q", "work", 1, 25)
    assert "no such file" not in repr(found) and "args" not in repr(found)
    assert len(list_dead_letters(letters.connection, letters.namespace)) == 4


def test_arguments_that_cannot_be_meant_are_refused_by_name(letters: QueueStorage) -> None:
    die(letters)
    for call in (letters.retry_dead_letters, letters.purge_dead_letters):
        with pytest.raises(UnknownQueue):
            call("mail")
        with pytest.raises(InvalidName, match="queue"):
            call("")
        for limit in (0, -1, True, 2**63):
            with pytest.raises(InvalidArgument, match="limit"):
                call(limit=limit)
        with letters.connection.transaction(), pytest.raises(TransactionOpen):
            call()
    with pytest.raises(InvalidName, match="kind"):
        letters.retry_dead_letters(kind="a\x00b")
    for ids in ("12", 7, [0], ["7"], [True]):
        with pytest.raises(InvalidArgument, match="ids"):
            letters.retry_dead_letters(ids=ids)  # type: ignore[arg-type]
    for field in ("dead_from", "dead_before"):
        with pytest.raises(InvalidArgument, match=f"{field} .* with a time zone"):
            letters.retry_dead_letters(**{field: datetime(2026, 1, 1)})  # type: ignore[arg-type]
        assert letters.retry_dead_letters(ids=[1], **{field: datetime(2026, 1, 1, tzinfo=UTC)}).matched in (
            0,
            1,
        )  # type: ignore[arg-type]
    for age in (-1, 1.5, "1d", timedelta(days=36_501)):
        with pytest.raises(InvalidArgument, match="older_than"):
            letters.purge_dead_letters(older_than=age)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="dead_letter_retention"):
            letters.set_queue("q", dead_letter_retention=age)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="dead_letter 1 is refused"):
        letters.set_queue("q", dead_letter=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="limit"):
        list_dead_letters(letters.connection, letters.namespace, limit=0)
