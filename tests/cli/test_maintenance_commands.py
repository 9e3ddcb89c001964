"""The commands that look after a queue: jobs of dead workers, and the rings."""

from __future__ import annotations

from datetime import timedelta

from parkkeeper.queue import QueueStorage


def test_jobs_of_a_dead_worker_are_rescued(run, jobs: str, connection) -> None:
    storage = QueueStorage(connection, jobs)
    storage.enqueue("mail", "welcome")
    storage.enqueue("mail", "welcome", max_attempts=1)
    assert run("queue", "rescue", "-n", jobs, "--json").json == {
        "rescued": 0,
        "failed": 0,
        "dead_lettered": 0,
    }
    assert len(storage.claim("mail", 2, lease=timedelta(microseconds=1))) == 2
    assert run("queue", "rescue", "-n", jobs, "--json").json == {
        "rescued": 1,
        "failed": 1,
        "dead_lettered": 0,
    }


def test_the_ring_of_claims_is_turned_when_it_is_named(run, jobs: str) -> None:
    run("queue", "enqueue", "-n", jobs, "-q", "mail", "-k", "welcome", "--args", "{}")
    assert run("queue", "rotate", "-n", jobs, "--ring", "claim", "--json").json["outcome"] == "skipped_idle"
    assert run("queue", "prune", "-n", jobs, "--ring", "lease", "--json").json["outcome"] == "noop"
    bad = run("queue", "prune", "-n", jobs, "--ring", "claim", "--failed-retention", "1h").failed(2)
    assert "there are no failed jobs in the claim ring" in bad


def test_a_ring_grows_and_says_how_large_it_is(run, jobs: str) -> None:
    grown = run("queue", "grow", "-n", jobs, "--slots", 20, "--json").json
    assert grown == {"outcome": "grown", "slots": 20}
    assert run("queue", "grow", "-n", jobs, "--slots", 20, "--json").json["outcome"] == "noop"
    assert "the ring of namespace" in run("queue", "grow", "-n", jobs, "--slots", 4).failed(2)
