"""The commands that put back what failed for good."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, datetime, timedelta

from parkkeeper.queue import QueueStorage
from parkkeeper.queue.dead_letters import DeadLetter
from parkkeeper.queue.expiring import Expiring
from parkkeeper.queue.outcomes import (
    RetryDeadLettersOutcome,
    RetryFailedOutcome,
)
from parkkeeper.queue.settings import QueueSettings


def keys(outcome: type) -> list[str]:
    return [field.name for field in fields(outcome)]


def counts(run, jobs: str) -> dict[str, int]:
    return run("queue", "counts", "-n", jobs, "-q", "mail", "--json").json


def bury(storage: QueueStorage, count: int) -> list[int]:
    """Let jobs of the queue die, which keeps them as dead letters."""
    ids = storage.enqueue_many("mail", "welcome", [{"name": "rosebud"}] * count)
    claims = storage.claim("mail", count)
    storage.fail_many([(claim, "no rosebud") for claim in claims], terminal=True)
    return ids


def test_failed_jobs_that_will_pass_their_retention_are_listed(run, jobs: str, failed: list[int]) -> None:
    listed = run("queue", "expiring", "-n", jobs, "--within", "4d", "--json").json
    assert [list(row) for row in listed] == [keys(Expiring)] * 3
    assert {(row["queue"], row["kind"], row["jobs"], row["past"]) for row in listed} == {
        ("mail", kind, 1, 0) for kind in ("welcome", "goodbye", "news")
    }
    text = run("queue", "expiring", "-n", jobs, "-q", "mail").out
    assert text == "no failed job passes its retention in that time\n"
    assert run("queue", "expiring", "-n", jobs, "--within", "36d").code == 2


def test_failed_jobs_are_put_back_by_queue_or_by_kind(run, jobs: str, connection, failed: list[int]) -> None:
    by_kind = run("queue", "retry-failed", "-n", jobs, "--kind", "goodbye", "--json").json
    assert list(by_kind) == keys(RetryFailedOutcome)
    assert (by_kind["retried"], by_kind["matched"], by_kind["pruned_failed_count"]) == ([failed[1]], 1, None)
    assert (
        len(run("queue", "retry-failed", "-n", jobs, "-q", "mail", "--limit", 1, "--json").json["retried"])
        == 1
    )
    rest = run("queue", "retry-failed", "-n", jobs, "-q", "mail", "--json").json
    assert (len(rest["retried"]), rest["pruned_failed_count"]) == (1, 0)
    assert counts(run, jobs)["available"] == 3


def test_the_window_of_a_retry_is_by_when_jobs_failed(run, jobs: str, failed: list[int]) -> None:
    soon = (datetime.now(UTC) + timedelta(minutes=1)).isoformat().replace("+00:00", "Z")
    command = ("queue", "retry-failed", "-n", jobs, "-q", "mail", "--json")
    assert run(*command, "--finalized-from", soon).json["matched"] == 0
    assert run(*command, "--finalized-before", "2020-01-01T00:00:00+05:00").json["matched"] == 0
    assert (
        run(*command, "--finalized-from", "2020-01-01T00:00:00Z", "--finalized-before", soon).json["matched"]
        == 3
    )


def test_what_a_retry_could_not_put_back_is_said(run, jobs: str, connection, enqueue) -> None:
    storage = QueueStorage(connection, jobs)
    enqueue("--unique-key", "rosebud", "--max-attempts", 1)
    storage.fail(storage.claim("mail")[0], "no")
    enqueue("--unique-key", "rosebud")
    text = run("queue", "retry-failed", "-n", jobs, "-q", "mail").out
    assert "1 matched, 0 retried, 1 held back by another job's unique key, 0 raced." in text
    assert "pruned" not in text.partition("matched,")[2]


def test_dead_letters_are_listed_put_back_and_purged(run, jobs: str, connection) -> None:
    storage = QueueStorage(connection, jobs)
    created = run(
        "queue",
        "create",
        "-n",
        jobs,
        "-q",
        "mail",
        "--dead-letter",
        "--dead-letter-retention",
        "90d",
        "--json",
    ).json
    assert list(created) == keys(QueueSettings)
    assert (created["dead_letter"], created["dead_letter_retention_seconds"]) == (True, 90 * 86_400)
    ids = bury(storage, 3)

    listed = run("queue", "dlq", "list", "-n", jobs, "-q", "mail", "--json").json
    assert list(listed[0]) == keys(DeadLetter)
    assert [row["job_id"] for row in listed] == ids[::-1]
    text = run("queue", "dlq", "list", "-n", jobs)
    assert "welcome" in text.out and "rosebud" not in text.out + json.dumps(listed)

    one = run("queue", "dlq", "retry", "-n", jobs, "--ids", f"{ids[0]},{10**12}", "--json").json
    assert list(one) == keys(RetryDeadLettersOutcome)
    assert one == {"retried": [ids[0]], "matched": 1, "conflicts": [], "raced": 0}
    soon = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    assert run("queue", "dlq", "retry", "-n", jobs, "--dead-from", soon, "--json").json["matched"] == 0
    command = ("queue", "dlq", "retry", "-n", jobs, "-q", "mail", "--kind", "welcome", "--dead-before", soon)
    assert run(*command, "--limit", 1, "--json").json["retried"] == [ids[1]]

    assert run("queue", "dlq", "purge", "-n", jobs, "--json").json == {"purged": 0}
    assert run("queue", "dlq", "purge", "-n", jobs, "--older-than", 0, "--limit", 5, "--json").json == {
        "purged": 1
    }
    found = counts(run, jobs)
    assert (found["available"], found["dead_lettered"], found["purged_dead_letters"]) == (2, 0, 1)
    assert run("queue", "dlq", "list", "-n", jobs).out == "no dead letters\n"
    closed = run("queue", "create", "-n", jobs, "-q", "mail", "--no-dead-letter", "--json").json
    assert (closed["dead_letter"], closed["dead_letter_retention_seconds"]) == (False, 90 * 86_400)


def test_dead_letters_of_a_queue_that_does_not_exist_are_an_error_of_one_line(run, jobs: str) -> None:
    for command in ("list", "retry", "purge"):
        assert "queue 'mial' is unknown" in run("queue", "dlq", command, "-n", jobs, "-q", "mial").failed(1)
    assert "limit 0 is refused" in run("queue", "dlq", "purge", "-n", jobs, "--limit", 0).failed(2)


def test_failed_jobs_are_put_back_by_their_ids(run, jobs: str, failed: list[int]) -> None:
    done = run(
        "queue", "retry-failed", "-n", jobs, "--ids", f"{failed[1]}, {failed[0]},{10**12}", "--json"
    ).json
    assert list(done) == keys(RetryFailedOutcome)
    assert done == {
        "retried": failed[:2],
        "matched": 2,
        "pruned_failed_count": None,
        "conflicts": [],
        "raced": 0,
    }
    refused = "whole numbers with commas between them"
    assert refused in run("queue", "retry-failed", "-n", jobs, "--ids", "7;8").failed(2)
    assert "alone" in run("queue", "retry-failed", "-n", jobs, "--ids", "7", "--limit", 1).failed(2)
    assert "one of --queue" in run("queue", "retry-failed", "-n", jobs, "--ids", "7", "-q", "mail").failed(2)
