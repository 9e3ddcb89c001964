"""The queue's commands: what they print, and what they leave in the namespace."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from parkkeeper.cli.lines import BATCH
from parkkeeper.queue import QueueStorage
from parkkeeper.queue.dead_letters import DeadLetter
from parkkeeper.queue.jobs import ListedJob
from parkkeeper.queue.outcomes import (
    PruneOutcome,
    QueueCounts,
    RetryDeadLettersOutcome,
    RetryFailedOutcome,
    RotateOutcome,
    WorkerOutcome,
)
from parkkeeper.queue.settings import QueueSettings

#: Handlers of one's own; the failing ones say a word that must be seen nowhere.
HANDLERS = """
import pathlib
import threading

def handle(job):
    print("handling", job.kind)
    if job.args.get("fail"):
        raise ValueError("rosebud")

def wait(job):
    pathlib.Path(job.args["started"]).touch()
    while not pathlib.Path(job.args["go"]).exists():
        threading.Event().wait(0.01)

nothing = None
"""


def keys(outcome: type) -> list[str]:
    return [field.name for field in fields(outcome)]


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of handlers beside the working directory."""
    (tmp_path / "handlers_of_ones_own.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    return "handlers_of_ones_own"


@pytest.fixture
def enqueue(run, jobs: str):
    """Enqueue with the command, and return the ids."""

    def add(*arguments: object, kind: str = "welcome", **options: Any) -> list[int]:
        done = run(
            "queue", "enqueue", "-n", jobs, "-q", "mail", "--kind", kind, *arguments, "--json", **options
        )
        assert done.code == 0, done.err
        assert list(done.json) == ["enqueued", "job_ids"]
        assert done.json["enqueued"] == len(done.json["job_ids"])
        return done.json["job_ids"]

    return add


@pytest.fixture
def failed(jobs: str, connection, enqueue) -> list[int]:
    """Three failed jobs of queue mail, one of each of three kinds."""
    storage = QueueStorage(connection, jobs)
    ids = [enqueue("--max-attempts", 1, kind=kind)[0] for kind in ("welcome", "goodbye", "news")]
    for claim in storage.claim("mail", 10):
        assert storage.fail(claim, "rosebud") == "failed"
    return ids


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


def test_working_a_queue_off_tells_what_came_of_it(run, jobs: str, enqueue, handlers: str) -> None:
    enqueue(kind="welcome")
    enqueue("--args", '{"fail": true}', "--max-attempts", 1, kind="welcome")
    enqueue("--args", '{"fail": true}', kind="goodbye")
    worked = run(
        "queue", "work", "-n", jobs, "-q", "mail", "--handler", f"{handlers}:handle", "--drain", "--json"
    )
    assert worked.code == 0
    assert list(worked.json) == keys(WorkerOutcome)
    assert worked.json == {
        "completed": 1,
        "retryable": 1,
        "failed": 1,
        "dead_lettered": 0,
        "stale": 0,
        "handed_back": 0,
    }
    assert "handling welcome" in worked.err
    assert "rosebud" not in worked.out + worked.err
    found = counts(run, jobs)
    assert (found["terminal"], found["deferred"], found["failed"]) == (2, 1, 1)


def test_each_kind_can_have_a_handler_of_its_own(run, jobs: str, enqueue, handlers: str) -> None:
    for kind in ("welcome", "good=bye", "unknown"):
        enqueue("--max-attempts", 1, kind=kind)
    one, two = f"welcome={handlers}:handle", f"good=bye={handlers}:handle"
    worked = run(
        "queue", "work", "-n", jobs, "-q", "mail", "--handler", one, "--handler", two, "--drain", "--batch", 2,
        "--lease", "30s", "--json",
    )  # fmt: skip
    assert worked.json == {
        "completed": 2,
        "retryable": 0,
        "failed": 1,
        "dead_lettered": 0,
        "stale": 0,
        "handed_back": 0,
    }


@pytest.mark.parametrize(
    "given",
    [
        ["{}"],
        ["{}:"],
        [":handle"],
        ["{}:nonsense"],
        ["{}:nothing"],
        ["no_such_module:handle"],
        ["{}:handle", "welcome={}:handle"],
        ["welcome={}:handle", "welcome={}:handle"],
        ["{}:handle", "{}:handle"],
    ],
    ids=" ".join,
)
def test_a_handler_that_cannot_be_had_is_refused_before_any_job_is_claimed(
    run, jobs: str, enqueue, handlers: str, given: list[str]
) -> None:
    enqueue()
    options = [part for reference in given for part in ("--handler", reference.format(handlers))]
    run("queue", "work", "-n", jobs, "-q", "mail", "--drain", *options).failed(2)
    assert counts(run, jobs)["available"] == 1


@pytest.mark.parametrize(("interrupts", "completed"), [(1, 1), (2, 0)])
def test_an_interrupted_worker_finishes_what_runs_and_hands_back_the_rest_and_at_once_when_interrupted_twice(
    run,
    jobs: str,
    enqueue,
    handlers: str,
    spawn,
    finish,
    until,
    tmp_path: Path,
    interrupts: int,
    completed: int,
) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    for _ in range(3):
        enqueue("--args", json.dumps({"started": str(started), "go": str(go)}))
    process = spawn("queue", "work", "-n", jobs, "-q", "mail", "--handler", f"{handlers}:wait", "--json")
    until(lambda: started.exists() or process.poll() is not None)
    assert process.poll() is None, finish(process)
    process.send_signal(signal.SIGINT)
    until(lambda: counts(run, jobs)["deferred"] == 2)
    if interrupts == 2:
        process.send_signal(signal.SIGINT)
    else:
        go.touch()
    done = finish(process)
    assert done.code == 0
    assert (done.json["completed"], done.json["handed_back"]) == (completed, 3 - completed)
    found = counts(run, jobs)
    assert (found["running"], found["deferred"]) == (0, 3 - completed)


def test_concurrency_and_grace_are_checked_before_any_job_is_claimed(
    run, jobs: str, enqueue, handlers: str
) -> None:
    enqueue()
    work = ("queue", "work", "-n", jobs, "-q", "mail", "--handler", f"{handlers}:handle", "--drain")
    assert "concurrency" in run(*work, "--concurrency", 0).failed(2)
    run(*work, "--grace", "-1s").failed(2)
    assert counts(run, jobs)["available"] == 1
    assert run(*work, "--concurrency", 3, "--grace", 0, "--json").json["completed"] == 1


def test_a_terminal_shows_how_the_work_is_getting_on(
    jobs: str, enqueue, handlers: str, spawn, until, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    started, go = tmp_path / "started", tmp_path / "go"
    enqueue()
    enqueue("--args", json.dumps({"started": str(started), "go": str(go)}), kind="waits")
    screen, terminal = os.openpty()
    os.set_blocking(screen, False)
    one, two = f"welcome={handlers}:handle", f"waits={handlers}:wait"
    process = spawn(
        "queue", "work", "-n", jobs, "-q", "mail", "--handler", one, "--handler", two, "--drain", stderr=terminal
    )  # fmt: skip
    os.close(terminal)
    shown = b""

    def read() -> bytes:
        nonlocal shown
        with suppress(OSError):  # nothing there, or the program has ended
            shown += os.read(screen, 65_536)
        return shown

    until(lambda: b"1 in hand, 1 completed, 0 to be tried again, 0 failed" in read())
    go.touch()
    out, _ = process.communicate(timeout=30)
    os.close(screen)
    assert process.returncode == 0
    assert b"handling welcome" in out, "what a handler prints goes where it did"


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


def bury(storage: QueueStorage, count: int) -> list[int]:
    """Let jobs of the queue die, which keeps them as dead letters."""
    ids = storage.enqueue_many("mail", "welcome", [{"name": "rosebud"}] * count)
    claims = storage.claim("mail", count)
    storage.fail_many([(claim, "no rosebud") for claim in claims], terminal=True)
    return ids


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
