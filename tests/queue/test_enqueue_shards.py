"""Enqueue shards: claims of one queue that do not wait for one another, and miss nothing for that."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import InvalidArgument, QueueStorage
from ringside import SOON, differences, prune_all, query, until

Connect = Callable[..., psycopg.Connection[Any]]


def _lanes(storage: QueueStorage) -> list[tuple[int, int, int]]:
    return query(
        storage, "SELECT lane_id, priority::int, enqueue_shard::int FROM {ns}.queue_lanes ORDER BY lane_id"
    )


def _spread(storage: QueueStorage, shards: int = 2, jobs: int = 3) -> list[int]:
    """Have so many jobs wait in each shard; return their ids."""
    storage.set_queue("q", enqueue_shards=shards)
    ids, lanes = [], Counter[int]()
    while len(lanes) < shards or min(lanes.values()) < jobs:
        job_id = storage.enqueue("q", "k")
        [(lane_id,)] = query(storage, "SELECT lane_id FROM {ns}.ready_entries WHERE job_id = %s", job_id)
        if lanes[lane_id] == jobs:
            assert storage.cancel(job_id)
        else:
            ids.append(job_id)
            lanes[lane_id] += 1
    return ids


def _drained(storage: QueueStorage, limit: int = 100) -> list[int]:
    ids: list[int] = []
    while claims := storage.claim("q", limit):
        assert storage.complete(claims) == len(claims)
        ids += [claim.job_id for claim in claims]
    return ids


def test_one_shard_is_one_lane_in_the_order_of_age(storage: QueueStorage) -> None:
    assert storage.set_queue("q").enqueue_shards == 1
    ids = [storage.enqueue("q", "k") for _ in range(20)]
    assert len(_lanes(storage)) == 1
    assert _drained(storage, 3) == ids


def test_jobs_are_spread_over_the_lanes_of_their_priority(storage: QueueStorage) -> None:
    assert storage.set_queue("q", enqueue_shards=4).enqueue_shards == 4
    until(lambda: [storage.enqueue("q", "k", priority=p) for p in (1, 2)] and len(_lanes(storage)) == 8)
    assert sorted(lane[1:] for lane in _lanes(storage)) == [(p, s) for p in (1, 2) for s in range(4)]
    assert storage.set_queue("q", failed_retention=7).enqueue_shards == 4
    counts = storage.queue_counts("q")
    priorities = [claim.priority for claim in storage.claim("q", 100_000)]
    assert priorities == sorted(priorities) and len(priorities) == counts.available
    assert differences(storage) == []


def test_two_claims_do_not_wait_for_each_other(storage: QueueStorage, connect: Connect) -> None:
    ids = _spread(storage)
    other = QueueStorage(connect(lock_timeout=timedelta(milliseconds=1)), storage.namespace)
    with storage.connection.transaction():
        first = storage.claim("q", 3)
        second = other.claim("q", 3)
    assert sorted(claim.job_id for claim in first + second) == ids
    assert [len(first), len(second)] == [3, 3]


def test_a_claim_waits_for_a_lane_when_nobody_has_left_it_enough(
    storage: QueueStorage, connect: Connect
) -> None:
    ids = _spread(storage)
    other = QueueStorage(connect(), storage.namespace)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = %s"
    lanes = [lane_id for lane_id, _, _ in _lanes(storage)]
    with ThreadPoolExecutor(1) as pool:
        with storage.connection.transaction():
            query(storage, "SELECT {ns}.lock_lane(%s)", lanes[-1])
            claimed = pool.submit(other.claim, "q", 100)
            until(lambda: query(storage, waiting, other.connection.info.backend_pid) == [(1,)])
        assert sorted(claim.job_id for claim in claimed.result(SOON)) == ids


def test_a_lane_before_one_that_is_held_is_not_waited_for(storage: QueueStorage, connect: Connect) -> None:
    _spread(storage)
    other = QueueStorage(connect(lock_timeout=timedelta(milliseconds=1)), storage.namespace)
    with storage.connection.transaction():
        query(storage, "SELECT {ns}.lock_lane(%s)", _lanes(storage)[0][0])
        assert len(other.claim("q", 100)) == 3
    assert len(other.claim("q", 100)) == 3


def test_a_lane_without_jobs_is_let_go_of_so_that_another_can_be_waited_for(
    storage: QueueStorage, connect: Connect
) -> None:
    query(
        storage,
        "INSERT INTO {ns}.queue_lanes (queue, priority, enqueue_shard) VALUES ('q', 2, 0), ('q', 2, 1)",
    )
    job_id = storage.enqueue("q", "k")
    first, last = (lane_id for lane_id, _, _ in _lanes(storage))
    other = QueueStorage(connect(), storage.namespace)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = %s"
    with ThreadPoolExecutor(1) as pool:
        with storage.connection.transaction():
            query(storage, "SELECT {ns}.lock_lane(%s)", first)
            claimed = pool.submit(other.claim, "q", 100)
            until(
                lambda: claimed.done() or query(storage, waiting, other.connection.info.backend_pid) == [(1,)]
            )
            assert query(storage, "SELECT {ns}.try_lock_lane(%s)", last) == [(True,)]
        assert [claim.job_id for claim in claimed.result(SOON)] == [job_id]


def test_no_shard_is_starved_by_claims_that_take_less_than_comes(storage: QueueStorage) -> None:
    ids = _spread(storage, jobs=2)
    taken: set[int] = set()
    for _ in range(200):
        taken |= {claim.job_id for claim in storage.claim("q", 1)}
        for _ in range(2):
            storage.enqueue("q", "k")
        if set(ids) <= taken:
            break
    assert set(ids) <= taken


def test_lanes_that_are_left_over_are_claimed_as_before(storage: QueueStorage) -> None:
    ids = _spread(storage, shards=4)
    storage.set_queue("q", enqueue_shards=1)
    later = [storage.enqueue("q", "k") for _ in range(5)]
    [lane] = query(storage, "SELECT DISTINCT lane_id FROM {ns}.ready_entries WHERE job_id > %s", max(ids))
    assert (*lane, 2, 0) in _lanes(storage)
    assert sorted(_drained(storage, 4)) == ids + later
    assert differences(storage) == []


def test_nothing_is_lost_or_doubled_with_many_claims_at_once(storage: QueueStorage, connect: Connect) -> None:
    storage.set_queue("q", enqueue_shards=3)
    sessions = [QueueStorage(connect(), storage.namespace) for _ in range(4)]

    def work(seed: int) -> tuple[list[int], list[int]]:
        mine, chance = sessions[seed], random.Random(seed)
        enqueued: list[int] = []
        done: list[int] = []
        for _ in range(60):
            enqueued += mine.enqueue_many(
                "q", "k", [{}] * chance.choice([1, 5, 20]), priority=chance.choice([1, 2])
            )
            claims = mine.claim("q", chance.choice([1, 10, 50]))
            done += [claim.job_id for claim in claims]
            assert mine.complete(claims) == len(claims)
            if chance.random() < 0.2:
                mine.evacuate()
                mine.rotate()
                mine.prune_oldest()
        return enqueued, done

    with ThreadPoolExecutor(len(sessions)) as pool:
        results = [future.result(SOON * 6) for future in [pool.submit(work, n) for n in range(4)]]

    done = [job_id for _, ids in results for job_id in ids] + _drained(storage)
    assert Counter(done) == Counter(job_id for ids, _ in results for job_id in ids)
    assert differences(storage) == []
    storage.rotate()
    prune_all(storage)
    assert storage.queue_counts("q").terminal == len(done)


def test_a_number_of_shards_that_cannot_be_is_refused_by_name(storage: QueueStorage) -> None:
    for shards in (0, 65, -1, True, 1.5, "2"):
        with pytest.raises(InvalidArgument, match="enqueue_shards"):
            storage.set_queue("q", enqueue_shards=shards)  # type: ignore[arg-type]
    assert storage.set_queue("q", enqueue_shards=64).enqueue_shards == 64
