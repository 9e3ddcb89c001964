"""The queue's commands: what they print, and what they leave in the namespace."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from psycopg import sql

from parkkeeper.cli.lines import BATCH
from parkkeeper.queue import QueueStorage
from parkkeeper.queue.jobs import ListedJob
from parkkeeper.queue.outcomes import (
    PruneOutcome,
    QueueCounts,
    RotateOutcome,
)
from parkkeeper.queue.plan import PlannedRows


def keys(outcome: type) -> list[str]:
    return [field.name for field in fields(outcome)]


def counts(run, jobs: str) -> dict[str, int]:
    return run("queue", "counts", "-n", jobs, "-q", "mail", "--json").json


def test_a_job_goes_in_as_it_was_given(jobs: str, connection, enqueue) -> None:
    args = {"user": 7, "name": "Zoë", "list": [1.5, None, True]}
    (job_id,) = enqueue("--args", json.dumps(args), "--priority", 1, "--max-attempts", 3)
    (claim,) = QueueStorage(connection, jobs).claim("mail", 5)
    assert (claim.job_id, claim.kind, claim.args, claim.priority) == (job_id, "welcome", args, 1)
    assert (claim.attempt, claim.max_attempts) == (1, 3)


def test_a_job_without_arguments_and_one_for_later(run, jobs: str, enqueue) -> None:
    enqueue()
    later = datetime.now(UTC) + timedelta(days=1)
    enqueue("--run-at", later.isoformat())
    found = counts(run, jobs)
    assert list(found) == keys(QueueCounts)
    assert (found["available"], found["deferred"]) == (1, 1)
    (job,) = run("queue", "jobs", "-n", jobs, "--state", "scheduled", "--json").json
    assert datetime.fromisoformat(job["run_at"]) == later
    assert job["run_at"].endswith("+00:00")


@pytest.mark.parametrize("way", ["stdin", "file"])
def test_lines_become_jobs_in_their_order(jobs: str, connection, enqueue, tmp_path: Path, way: str) -> None:
    lines = "".join(json.dumps({"number": number}) + "\n" for number in range(1_203))
    if way == "stdin":
        ids = enqueue("--args", "-", stdin=lines)
    else:
        (tmp_path / "jobs.jsonl").write_text(lines)
        ids = enqueue("--args", f"@{tmp_path / 'jobs.jsonl'}")
    assert len(ids) == 1_203
    claimed = QueueStorage(connection, jobs).claim("mail", 2_000)
    assert [claim.args["number"] for claim in claimed] == list(range(1_203))
    assert [claim.job_id for claim in claimed] == ids


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ('{"rosebud": ', "not JSON ("),
        ('"rosebud"', "not a JSON object"),
        ('{"rosebud": Infinity}', "not JSON (Infinity is no number there)"),
        ('{"rosebud": 1e999}', "not storable (a number is too large)"),
        ('{"rosebud": "a\\u0000"}', "is refused"),
        ('{"rosebud": "\\ud83d"}', "is refused"),
    ],
    ids=["cut off", "string", "Infinity", "1e999", "NUL", "half a surrogate"],
)
def test_a_bad_argument_or_line_enqueues_nothing(run, jobs: str, content, bad: str, expected: str) -> None:
    before = content()
    command = ("queue", "enqueue", "-n", jobs, "-q", "mail", "--kind", "welcome", "--args")
    for line in (
        run(*command, bad).failed(2),
        run(*command, "-", stdin='{"good": 1}\n' * (BATCH + 200) + bad + "\n" + '{"good": 1}\n').failed(2),
    ):
        assert expected in line
        assert "rosebud" not in line
    after = content()
    # Numbers that were drawn are not given back; rows are.
    assert {name: value for name, value in after.items() if not name.endswith("_seq")} == {
        name: value for name, value in before.items() if not name.endswith("_seq")
    }


def test_a_bad_line_is_named_by_its_number(run, jobs: str) -> None:
    lines = '{"good": 1}\n\n[]\n'
    refused = run(
        "queue", "enqueue", "-n", jobs, "-q", "mail", "--kind", "k", "--args", "-", stdin=lines
    ).failed(2)
    assert refused == "line 3 is not a JSON object: nothing was enqueued"


def test_people_are_not_shown_a_thousand_ids(run, jobs: str) -> None:
    lines = "{}\n" * 1_000
    done = run("queue", "enqueue", "-n", jobs, "-q", "mail", "--kind", "k", "--args", "-", stdin=lines)
    assert "enqueued  1000" in done.out
    assert "... (1000 in all)" in done.out
    assert done.out.count(",") == 20


def test_a_key_that_is_held_names_its_holder_and_never_itself(run, jobs: str, enqueue) -> None:
    (holder,) = enqueue("--unique-key", "rosebud")
    line = run(
        "queue", "enqueue", "-n", jobs, "-q", "mail", "--kind", "welcome", "--unique-key", "rosebud"
    ).failed(1)
    assert str(holder) in line
    assert "rosebud" not in line
    assert counts(run, jobs)["available"] == 1


def test_counting_is_shown_as_a_table_too(run, jobs: str, failed: list[int]) -> None:
    text = run("queue", "counts", "-n", jobs, "-q", "mail").out
    assert dict(line.split() for line in text.splitlines()) == {
        "available": "0",
        "running": "0",
        "terminal": "3",
        "pruned_failed": "0",
        "deferred": "0",
        "failed": "3",
        "dead_lettered": "0",
        "purged_dead_letters": "0",
    }


def test_failed_jobs_are_listed_newest_first_without_what_they_carry(
    run, jobs: str, failed: list[int]
) -> None:
    listed = run("queue", "jobs", "-n", jobs, "--json")
    assert [list(job) for job in listed.json] == [keys(ListedJob)] * 3
    assert {job["job_id"] for job in listed.json} == set(failed)
    assert {(job["state"], job["attempt"], job["max_attempts"]) for job in listed.json} == {("failed", 1, 1)}
    times = [datetime.fromisoformat(job["finalized_at"]) for job in listed.json]
    assert times == sorted(times, reverse=True)
    assert "args" not in listed.json[0]
    text = run("queue", "jobs", "-n", jobs, "-q", "mail", "--limit", "2").out
    assert sum(kind in text for kind in ("welcome", "goodbye", "news")) == 2
    assert "rosebud" not in listed.out + text
    assert run("queue", "jobs", "-n", jobs, "--state", "completed").out == "no completed jobs\n"


@pytest.mark.parametrize("state", ["completed", "cancelled", "scheduled", "retryable"])
def test_every_state_that_can_be_listed_is(run, jobs: str, connection, enqueue, state: str) -> None:
    storage = QueueStorage(connection, jobs)
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    (job_id,) = enqueue(*(("--run-at", later) if state == "scheduled" else ()))
    if state == "cancelled":
        assert storage.cancel(job_id)
    elif state != "scheduled":
        claims = storage.claim("mail")
        assert storage.fail(claims[0], "rosebud") if state == "retryable" else storage.complete(claims)
    enqueue(kind="other")
    (job,) = run("queue", "jobs", "-n", jobs, "--state", state, "--json").json
    assert (job["job_id"], job["kind"], job["state"]) == (job_id, "welcome", state)


def backdate(connection, namespace: str, days: int) -> None:
    """Let every terminal row have ended `days` ago."""
    table = sql.Identifier(namespace, "done_entries")
    connection.execute(
        sql.SQL("UPDATE {} SET finalized_at = finalized_at - make_interval(days => %s)").format(table), [days]
    )


def test_a_queue_is_paused_and_resumed(run, jobs: str, connection) -> None:
    storage = QueueStorage(connection, jobs)
    storage.enqueue("mail", "welcome")
    assert run("queue", "pause", "-n", jobs, "-q", "mail", "--json").json["paused_at"] is not None
    assert storage.claim("mail") == []
    assert run("queue", "resume", "-n", jobs, "-q", "mail", "--json").json["paused_at"] is None
    assert len(storage.claim("mail")) == 1
    for command in ("pause", "resume"):
        assert "queue 'mial' is unknown" in run("queue", command, "-n", jobs, "-q", "mial").failed(1)


def test_rotating_and_pruning_say_their_outcome(run, jobs: str, connection, failed: list[int]) -> None:
    rotated = run("queue", "rotate", "-n", jobs, "--json").json
    assert list(rotated) == keys(RotateOutcome)
    assert rotated["outcome"] == "rotated"
    dry = run("queue", "prune", "-n", jobs, "--dry-run")
    assert "outcome" in dry.out and "pruned" in dry.out
    assert "3 failed jobs would be carried and stay retryable; 0 would be dropped" in dry.out
    pruned = run("queue", "prune", "-n", jobs, "--json").json
    assert list(pruned) == keys(PruneOutcome)
    assert (pruned["outcome"], pruned["carried_failed_rows"], pruned["pruned_failed"]) == ("pruned", 3, 0)
    assert run("queue", "prune", "-n", jobs, "--json").json["outcome"] == "noop"


def test_a_dry_run_says_what_becomes_of_the_rows_by_queue_and_kind(
    run, jobs: str, connection, content, failed: list[int]
) -> None:
    run("queue", "rotate", "-n", jobs)
    before = content()
    found = run("queue", "prune", "-n", jobs, "--dry-run", "--failed-retention", "72h", "--json").json
    assert list(found) == [*keys(PruneOutcome), "by_kind"]
    assert all(list(row) == keys(PlannedRows) for row in found["by_kind"])
    assert [(row["queue"], row["kind"], row["carried_failed_rows"]) for row in found["by_kind"]] == [
        ("mail", "goodbye", 1),
        ("mail", "news", 1),
        ("mail", "welcome", 1),
    ]
    text = run("queue", "prune", "-n", jobs, "--dry-run").out
    assert "kept_failed_rows" in text and "goodbye" in text
    assert "rosebud" not in text
    assert content() == before
    lease = run("queue", "prune", "-n", jobs, "--ring", "lease", "--dry-run", "--json").json
    assert list(lease) == keys(PruneOutcome)


@pytest.mark.parametrize("retention", ["0", "3600", "90m", "30s", "7d", "72h"])
def test_a_retention_can_be_given_in_any_unit(
    run, jobs: str, connection, failed: list[int], retention: str
) -> None:
    run("queue", "create", "-n", jobs, "-q", "mail", "--failed-retention", retention)
    run("queue", "rotate", "-n", jobs)
    pruned = run("queue", "prune", "-n", jobs, "--failed-retention", "1s", "--json").json
    assert (pruned["carried_failed_rows"], pruned["pruned_failed"]) == (
        (0, 3) if retention == "0" else (3, 0)
    )


def test_creating_a_queue_makes_it_known(run, jobs: str) -> None:
    made = run("queue", "create", "-n", jobs, "-q", "mail", "--failed-retention", "7d", "--json")
    assert made.json == {
        "queue": "mail",
        "failed_retention_seconds": 604_800,
        "dead_letter": False,
        "dead_letter_retention_seconds": None,
        "enqueue_shards": 1,
        "paused_at": None,
    }
    assert counts(run, jobs)["terminal"] == 0
    # What is left out stays as it was, and is shown as it is.
    assert run("queue", "create", "-n", jobs, "-q", "mail", "--json").json == made.json
    other = run("queue", "create", "-n", jobs, "-q", "other", "--json")
    assert other.json == {**made.json, "queue": "other", "failed_retention_seconds": None}


def test_a_prune_that_would_drop_too_much_is_refused_with_the_figure(
    run, jobs: str, connection, content, failed: list[int]
) -> None:
    run("queue", "rotate", "-n", jobs)
    before = content()
    line = run("queue", "prune", "-n", jobs, "--failed-retention", "0", "--max-pruned-failed", 2).failed(1)
    assert "3" in line
    assert content() == before


def test_outcomes_that_did_nothing_are_words_and_no_failure(
    run, jobs: str, connection, connect, enqueue
) -> None:
    assert run("queue", "rotate", "-n", jobs, "--json").json["outcome"] == "skipped_idle"
    assert run("queue", "prune", "-n", jobs, "--json").json["outcome"] == "noop"
    enqueue()
    run("queue", "rotate", "-n", jobs)
    active = run("queue", "prune", "-n", jobs, "--json").json
    assert (active["outcome"], active["reason"], active["count"]) == ("skipped_active", "ready_rows", 1)
    holder = connect()
    with holder.transaction():
        holder.execute(sql.SQL("SELECT FROM {} FOR UPDATE").format(sql.Identifier(jobs, "queue_ring_state")))
        blocked = run("queue", "rotate", "-n", jobs, "--lock-timeout", "20ms", "--json")
    assert (blocked.code, blocked.json["outcome"]) == (0, "blocked")


def test_what_was_dropped_past_its_retention_is_told_by_every_retry(
    run, jobs: str, connection, failed: list[int]
) -> None:
    backdate(connection, jobs, days=2)
    run("queue", "rotate", "-n", jobs)
    text = run("queue", "prune", "-n", jobs, "--failed-retention", "24h").out
    assert "0 failed jobs were carried and stay retryable; 3 were dropped past their retention." in text
    assert counts(run, jobs)["pruned_failed"] == 3
    text = run("queue", "retry-failed", "-n", jobs, "-q", "mail").out
    assert "3 failed jobs of this queue were pruned past their retention and are no longer retryable." in text
    assert "matched," not in text
    assert "pruned past" not in run("queue", "retry-failed", "-n", jobs, "--kind", "welcome").out
