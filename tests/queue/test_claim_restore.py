"""After a restore into a cluster that counts its transactions from lower on: nothing is lost, nothing comes twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from parkkeeper.database import statements
from parkkeeper.queue import QueueStorage
from ringside import differences, prune_all, query

Connect = Callable[..., psycopg.Connection[Any]]
FAR = 10**9


def restore(storage: QueueStorage, ahead: int, *, noticed: bool = True) -> None:
    """Make the rows those of a dump from a cluster whose transactions were `ahead` of this one's.

    With `noticed` the table of the ring's state is another one than the dump's, as it is after any real restore.
    """
    for statement in (
        "UPDATE {ns}.ready_entries SET enqueue_xid = (enqueue_xid::text::bigint + %s)::text::xid8",
        "UPDATE {ns}.ready_tombstones SET enqueue_xid = (enqueue_xid::text::bigint + %s)::text::xid8",
        "UPDATE {ns}.done_entries SET enqueue_xid = (enqueue_xid::text::bigint + %s)::text::xid8",
        "UPDATE {ns}.lease_claim_batches SET cursor_xid = (cursor_xid::text::bigint + %s)::text::xid8,"
        " enqueue_xids = ARRAY(SELECT (x::text::bigint + %s)::text::xid8 FROM unnest(enqueue_xids) AS x),"
        " late_xids = ARRAY(SELECT (x::text::bigint + %s)::text::xid8 FROM unnest(late_xids) AS x)",
    ):
        query(storage, statement, *[ahead] * statement.count("%s"))
    if noticed:
        query(storage, "UPDATE {ns}.queue_ring_state SET table_oid = 1")


def claimed(storage: QueueStorage, limit: int = 100) -> list[int]:
    return [claim.job_id for claim in storage.claim("q", limit)]


@pytest.mark.parametrize(("ahead", "noticed"), [(FAR, True), (FAR, False), (40, True)])
def test_what_waited_and_what_comes_new_is_claimed_once_each(
    storage: QueueStorage, ahead: int, noticed: bool
) -> None:
    jobs = storage.enqueue_many("q", "k", [{"n": n} for n in range(6)])
    done, running = storage.claim("q", 2)
    assert storage.complete([done]) == 1
    assert storage.rotate().outcome == "rotated"
    jobs += storage.enqueue_many("q", "k", [{"n": n} for n in range(6, 9)])
    restore(storage, ahead, noticed=noticed)

    new = [storage.enqueue("q", "k") for _ in range(2)]  # below the cursors, as their numbers go
    for _ in range(
        2 * ahead if ahead < FAR else 0
    ):  # until nothing tells the cursors from this cluster's own
        query(storage, "SELECT pg_current_xact_id()")
    assert storage.prune_oldest().outcome == "skipped_active"
    assert sorted(claimed(storage, 3) + claimed(storage)) == sorted([*jobs[2:], *new])
    assert claimed(storage) == []

    later = storage.enqueue("q", "k")
    assert claimed(storage) == [later]
    assert storage.complete([running]) == 1
    assert differences(storage) == []


def test_claims_and_ended_jobs_keep_their_bodies(storage: QueueStorage) -> None:
    storage.enqueue_many("q", "k", [{"n": n} for n in range(4)])
    claims = storage.claim("q", 3)
    assert storage.fail(claims[0], "no", terminal=True) == "failed"
    restore(storage, FAR)
    later = storage.enqueue("q", "k")
    assert len(claimed(storage)) == 2
    assert storage.fail(claims[1], "again") == "retryable"
    assert storage.complete(claims[2:]) == 1
    assert query(storage, "SELECT args FROM {ns}.deferred_jobs") == [({"n": 1},)]
    assert query(storage, "SELECT args FROM {ns}.terminal_jobs ORDER BY job_id") == [({"n": 0},), ({"n": 2},)]
    assert storage.retry_failed_by_queue("q").retried == [claims[0].job_id]
    found = claimed(storage)
    assert claims[0].job_id in found and later not in found


def test_a_late_list_of_the_other_cluster_is_worked_off(storage: QueueStorage, connect: Connect) -> None:
    late = QueueStorage(connect(), storage.namespace)
    storage.enqueue("q", "k")  # makes the lane, so that both producers use the same
    assert storage.complete(storage.claim("q")) == 1
    with late.connection.transaction():
        waiting = late.enqueue_many("q", "k", [{}] * 3)
        storage.enqueue("q", "k")
        assert len(claimed(storage)) == 1
    assert claimed(storage, 1) == waiting[:1]
    restore(storage, FAR)
    assert claimed(storage) == waiting[1:]
    assert differences(storage) == []


def test_a_tombstone_stands_after_a_restore(storage: QueueStorage) -> None:
    first, second, third = storage.enqueue_many("q", "k", [{}] * 3)
    assert storage.cancel(second)
    restore(storage, FAR)
    assert not storage.cancel(second)
    assert storage.cancel(first)
    assert claimed(storage) == [third]
    assert storage.cancel(third)
    assert differences(storage) == []


def test_the_first_claim_sets_all_lanes_anew_and_the_ring_turns_on(storage: QueueStorage) -> None:
    for queue in ("q", "other"):
        storage.enqueue_many(queue, "k", [{}] * 2)
        assert storage.complete(storage.claim(queue)) == 1
    restore(storage, FAR)
    assert query(storage, "SELECT {ns}.queue_was_restored()") == [(True,)]
    assert storage.claim("no such queue") == []
    assert query(storage, "SELECT {ns}.queue_was_restored()") == [(False,)]
    for queue in ("q", "other"):
        assert storage.complete(storage.claim(queue, 9)) == 1
    assert storage.rotate().outcome == "rotated"
    assert [outcome.pruned_completed for outcome in prune_all(storage)] == [4]


def scans(plan: dict[str, Any], table: str) -> Iterator[str]:
    """Yield the condition of each scan of an index of the table's children."""
    if str(plan.get("Relation Name", "")).startswith(table):
        yield plan.get("Index Cond", "none")
    for inner in plan.get("Plans", []):
        yield from scans(inner, table)


@pytest.mark.parametrize("what", ["counts", "waiting"])
def test_a_tombstone_is_looked_for_by_its_key_however_many_a_restore_has_left(
    storage: QueueStorage, what: str
) -> None:
    storage.enqueue_many("q", "k", [{}] * 3_000)
    restore(storage, 0)
    claimed(storage, 1)
    with storage.connection.transaction():
        for setting in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin"):
            query(storage, f"SET LOCAL {setting} = off")
        if what == "waiting":
            statement = statements("queue/status").render("waiting", storage.namespace, slot=0)
            values = {"limit": 10_000, "per_lane": 10_000, "queue": None}
            [(plan,)] = storage.connection.execute(b"EXPLAIN (FORMAT json) " + statement, values).fetchall()
        else:
            [(plan,)] = query(storage, "EXPLAIN (FORMAT json) SELECT * FROM {ns}.queue_counted_rows")
    conditions = list(scans(plan[0]["Plan"], "ready_tombstones"))
    assert conditions and all("lane_seq" in condition for condition in conditions)
