"""What will pass the floor is listed before it does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from parkkeeper.errors import InvalidArgument
from parkkeeper.queue import QueueStorage, UnknownQueue
from parkkeeper.queue.expiring import Expiring
from ringside import age, end_jobs, query

FLOOR = timedelta(hours=72)
DAY = timedelta(hours=24)


def failed(storage: QueueStorage, kind: str, ago: timedelta, queue: str = "q") -> int:
    storage.enqueue(queue, kind, max_attempts=1)
    [claim] = storage.claim(queue)
    storage.fail(claim, "no such file")
    age(storage, [claim.job_id], ago)
    return claim.job_id


def listed(found: list[Expiring]) -> list[tuple[str, str, int, int]]:
    return [(row.queue, row.kind, row.jobs, row.past) for row in found]


def test_what_passes_the_floor_within_a_time_is_listed_by_queue_and_kind(storage: QueueStorage) -> None:
    for hours in (73, 60, 50):
        failed(storage, "mail", timedelta(hours=hours))
    failed(storage, "scan", timedelta(hours=49))
    failed(storage, "scan", timedelta(hours=47))
    end_jobs(storage, 3, state="completed")

    assert listed(storage.expiring(DAY)) == [("q", "mail", 3, 1), ("q", "scan", 1, 0)]
    assert listed(storage.expiring(timedelta(0))) == [("q", "mail", 1, 1)]


def test_it_says_when_by_the_retention_that_the_queue_has_now(storage: QueueStorage) -> None:
    failed(storage, "mail", timedelta(hours=5))
    storage.set_queue("q", failed_retention=timedelta(hours=6))

    [row] = storage.expiring(timedelta(hours=2))

    [(finalized_at,)] = query(storage, "SELECT finalized_at FROM {ns}.done_entries")
    assert row == Expiring(
        "q", "mail", 1, 0, finalized_at + timedelta(hours=6), finalized_at + timedelta(hours=6)
    )


def test_it_finds_carried_jobs_and_those_of_all_lanes(storage: QueueStorage) -> None:
    failed(storage, "mail", timedelta(hours=70))
    storage.rotate()
    assert storage.prune_oldest(FLOOR).carried_failed_rows == 1
    storage.enqueue("q", "mail", priority=0, max_attempts=1)
    [claim] = storage.claim("q")
    storage.fail(claim, "no such file")
    age(storage, [claim.job_id], timedelta(hours=71))

    assert listed(storage.expiring(DAY)) == [("q", "mail", 2, 0)]


def test_only_the_queue_that_was_asked_for_is_looked_at(storage: QueueStorage) -> None:
    failed(storage, "mail", timedelta(hours=60), queue="a")
    failed(storage, "mail", timedelta(hours=60), queue="b")

    assert listed(storage.expiring(DAY, queue="b")) == [("b", "mail", 1, 0)]
    with pytest.raises(UnknownQueue):
        storage.expiring(DAY, queue="c")


@pytest.mark.parametrize("within", [timedelta(seconds=-1), timedelta(days=36), 24, None])
def test_a_time_out_of_range_is_refused(storage: QueueStorage, within: object) -> None:
    with pytest.raises(InvalidArgument, match="within"):
        storage.expiring(within)  # type: ignore[arg-type]
