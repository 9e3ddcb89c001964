"""The commands for whoever looks after a queue."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from parkkeeper.queue import EvacuateOutcome, QueueStorage, RollUpOutcome
from parkkeeper.queue.status import HeldRingStatus, HeldSlotStatus, JobStatus, RingStatus, SlotStatus
from ringside import end_jobs, query

SECRET = "do not show"


@pytest.fixture
def storage(connection: psycopg.Connection[Any], jobs: str) -> QueueStorage:
    return QueueStorage(connection, jobs)


def names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def test_the_ring_is_drawn_and_says_what_pins_it(run, jobs: str, storage: QueueStorage) -> None:
    end_jobs(storage, 2, queue="letters")
    waiting = storage.enqueue("mail", "welcome", {"words": SECRET})
    storage.rotate()

    found = run("queue", "ring", "-n", jobs, "--json").json
    assert list(found) == names(RingStatus)
    assert list(found["slots"][0]) == names(SlotStatus)
    assert (found["current_slot"], found["slots"][0]["pinned_by"]["job_id"]) == (1, waiting)
    drawn = run("queue", "ring", "-n", jobs).out
    assert "[#>" + "." * (found["slot_count"] - 2) + "]" in drawn
    assert f"Slot 0 is pinned: job {waiting} (welcome of mail) waits since 20" in drawn

    storage.claim("mail")
    pruned = run("queue", "prune", "-n", jobs)
    assert "skipped_active" in pruned.out
    assert f"Slot 0 is pinned: job {waiting} (welcome of mail) runs since 20" in pruned.out
    assert SECRET not in drawn + pruned.out + str(found)


@pytest.mark.parametrize("ring", ["claim", "lease"])
def test_the_rings_of_what_workers_hold_are_drawn_too(
    run, jobs: str, storage: QueueStorage, ring: str
) -> None:
    storage.enqueue_many("mail", "welcome", [{"words": SECRET}] * 3)
    ended, *held = storage.claim("mail", 3)
    storage.extend(held, timedelta(hours=1))
    storage.complete([ended])
    storage.rotate(ring=ring)

    given = ("queue", "ring", "-n", jobs, "--ring", ring)
    found = run(*given, "--json").json
    assert list(found) == names(HeldRingStatus)
    assert list(found["slots"][0]) == names(HeldSlotStatus)
    drawn = run(*given).out
    assert "needed" in drawn and "[" in drawn
    assert SECRET not in drawn + str(found)
    assert "ring 'leases' is refused" in run("queue", "ring", "-n", jobs, "--ring", "leases").failed(2)


def test_a_job_is_shown_without_what_it_carries(run, jobs: str, storage: QueueStorage) -> None:
    job_id = storage.enqueue("mail", "welcome", {"words": SECRET}, unique_key=f"{SECRET} key")
    storage.fail(storage.claim("mail")[0], f"{SECRET} error", terminal=True)
    found = run("queue", "show", "-n", jobs, str(job_id), "--json")
    assert list(found.json) == names(JobStatus)
    assert (found.json["job_id"], found.json["state"]) == (job_id, "failed")
    assert SECRET not in found.out + run("queue", "show", "-n", jobs, str(job_id)).out
    assert f"job {job_id + 1} is unknown" in run("queue", "show", "-n", jobs, str(job_id + 1)).failed(1)
    run("queue", "show", "-n", jobs, "0").failed(2)


def test_jobs_are_cancelled_and_those_that_are_not_are_told(run, jobs: str, storage: QueueStorage) -> None:
    [ended] = end_jobs(storage, 1, queue="mail")
    first, second = storage.enqueue_many("mail", "welcome", [{}] * 2)
    done = run("queue", "cancel", "-n", jobs, str(first), str(ended), str(second), "999", "--json").json
    assert done == {"cancelled": [first, second], "left": [ended, 999]}


def test_retentions_are_set_for_a_queue_and_for_all(run, jobs: str, storage: QueueStorage) -> None:
    storage.set_queue("mail", failed_retention=timedelta(hours=1))
    given = ("-n", jobs, "--json", "--failed-retention")
    assert run("queue", "set", *given, "7d").json == {"failed_retention_seconds": 604800, "carry_to": "floor"}
    assert run("queue", "set", *given, "2h", "-q", "mail").json["failed_retention_seconds"] == 7200
    assert run("queue", "set", *given, "default", "-q", "mail").json["failed_retention_seconds"] is None
    assert "queue 'mial' is unknown" in run("queue", "set", *given, "2h", "-q", "mial").failed(1)
    run("queue", "set", *given, "default").failed(2)
    run("queue", "set", *given, "36d").failed(2)
    run("queue", "set", "-n", jobs, "-q", "mail").failed(2)


def test_counters_are_rolled_up_and_rebuilt_when_they_are_not_believed(
    run, jobs: str, storage: QueueStorage
) -> None:
    end_jobs(storage, 2, queue="mail")
    done = run("queue", "roll-up", "-n", jobs, "--json").json
    assert list(done) == names(RollUpOutcome)
    assert (done["outcome"], done["trusted"]) == ("rolled_up", True)
    query(storage, "UPDATE {ns}.queue_terminal_live_counts SET count = -1")
    assert "The counters are not believed" in run("queue", "roll-up", "-n", jobs).out
    assert run("queue", "counts", "-n", jobs, "-q", "mail", "--json").json["failed"] == 2
    assert run("queue", "rebuild-counters", "-n", jobs, "--json").json == {"outcome": "rebuilt"}
    assert run("queue", "roll-up", "-n", jobs, "--json").json["trusted"]


def test_jobs_are_spread_over_as_many_shards_as_a_queue_is_told(
    run, jobs: str, storage: QueueStorage
) -> None:
    made = run("queue", "create", "-n", jobs, "-q", "mail", "--enqueue-shards", "8", "--json").json
    assert made["enqueue_shards"] == 8
    assert run("queue", "set", "-n", jobs, "-q", "mail", "--enqueue-shards", "2", "--json").json == {
        **made,
        "enqueue_shards": 2,
    }
    # What is not named stays as it was.
    again = run("queue", "create", "-n", jobs, "-q", "mail", "--dead-letter", "--json").json
    assert (again["enqueue_shards"], again["dead_letter"]) == (2, True)
    assert "enqueue_shards 65 is refused" in run(
        "queue", "create", "-n", jobs, "-q", "mail", "--enqueue-shards", "65"
    ).failed(2)
    assert "give --queue" in run("queue", "set", "-n", jobs, "--enqueue-shards", "2").failed(2)


def test_old_slots_are_evacuated_by_hand(run, jobs: str, storage: QueueStorage) -> None:
    assert run("queue", "evacuate", "-n", jobs, "--json").json["outcome"] == "noop"
    end_jobs(storage, 9, queue="letters")
    waiting = storage.enqueue("mail", "welcome", {"words": SECRET})
    storage.rotate()
    done = run("queue", "evacuate", "-n", jobs, "--json").json
    assert list(done) == names(EvacuateOutcome)
    assert (done["outcome"], done["waiting"], done["slots"]) == ("evacuated", 1, [0])
    assert run("queue", "show", "-n", jobs, str(waiting), "--json").json["state"] == "available"
    assert "limit 0 is refused" in run("queue", "evacuate", "-n", jobs, "--limit", "0").failed(2)


def test_a_list_of_two_is_no_range(run, jobs: str, storage: QueueStorage) -> None:
    first, *_, last = storage.enqueue_many("mail", "welcome", [{}] * 5)
    shown = run("queue", "cancel", "-n", jobs, str(first), str(last)).out
    assert shown.split() == ["cancelled", f"{first},", str(last), "left", "-"]
