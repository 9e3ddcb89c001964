"""``parkkeeper queue ...``: jobs in, jobs done, the ring turned and counted, failed jobs put back."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import psycopg
import typer

from parkkeeper.cli import dead_letters, redrive
from parkkeeper.cli.lines import batches, opened
from parkkeeper.cli.options import Dsn, Json, NamespaceName, OnlyQueue, ready, session
from parkkeeper.cli.output import emit
from parkkeeper.cli.parsing import attribute, duration, json_object, moment
from parkkeeper.cli.status import status_line
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace
from parkkeeper.queue import QueueStorage
from parkkeeper.queue.handlers import Handler
from parkkeeper.queue.jobs import STATES, list_jobs
from parkkeeper.queue.outcomes import PruneOutcome
from parkkeeper.queue.plan import PlannedRows
from parkkeeper.queue.ring import LOCK_TIMEOUT
from parkkeeper.queue.status import SlotStatus
from parkkeeper.queue.storage import LEASE
from parkkeeper.queue.worker import GRACE, Worker

app = typer.Typer(
    help="Enqueue and work jobs, turn the ring, count, put failed jobs back.", rich_markup_mode="markdown"
)
app.add_typer(dead_letters.app, name="dlq")

Queue = Annotated[str, typer.Option("--queue", "-q", metavar="QUEUE", help="The queue's name.")]
RingName = Annotated[
    str,
    typer.Option(
        "--ring",
        metavar="RING",
        help="queue (jobs and their history), lease or claim (what workers have in hand).",
    ),
]
LockTimeout = Annotated[
    timedelta,
    typer.Option(
        "--lock-timeout",
        parser=duration,
        metavar="DURATION",
        show_default=False,
        help="How long to wait for locks, at most 5s; readers wait as long. [default: 50ms]",
    ),
]


EnqueueShards = Annotated[
    int | None,
    typer.Option(
        "--enqueue-shards",
        metavar="SHARDS",
        help="Over how many lanes of each priority new jobs are spread, 1 to 64: as many workers claim at once, and "
        "jobs keep their order only roughly. [default: as it was, at first 1]",
    ),
]


@app.command()
def create(
    namespace: NamespaceName,
    queue: Queue,
    failed_retention: Annotated[
        timedelta | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="How long a failed job stays retryable: 72h, 7d, 0 for not beyond its slot; whole seconds, at most "
            "35d. [default: as it was, at first what the namespace says]",
        ),
    ] = None,
    dead_letter: Annotated[
        bool | None,
        typer.Option(
            "--dead-letter/--no-dead-letter",
            help="Whether a job that fails for good is kept as a dead letter, outside of the ring. "
            "[default: as it was, at first not]",
        ),
    ] = None,
    dead_letter_retention: Annotated[
        timedelta | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="How long a dead letter is kept before a purge may take it: 90d; whole seconds. "
            "[default: as it was, at first until purged by hand]",
        ),
    ] = None,
    enqueue_shards: EnqueueShards = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Make a queue's settings, or change them. A queue without settings is made by its first job.

    Example: `parkkeeper queue create -n jobs -q mail --failed-retention 7d`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        found = QueueStorage(connection, space).set_queue(
            queue,
            failed_retention=failed_retention,
            dead_letter=dead_letter,
            dead_letter_retention=dead_letter_retention,
            enqueue_shards=enqueue_shards,
        )
    emit(found, as_json=json)


@app.command()
def enqueue(
    namespace: NamespaceName,
    queue: Queue,
    kind: Annotated[
        str, typer.Option(metavar="KIND", help="What a worker is to do; it chooses the handler.")
    ],
    args: Annotated[
        str,
        typer.Option(
            metavar="JSON|@FILE|-",
            help="The job's arguments as a JSON object; @FILE or - (stdin): JSON Lines, one job each.",
        ),
    ] = "{}",
    priority: Annotated[int, typer.Option(help="A lower number is claimed first.")] = 2,
    run_at: Annotated[
        datetime | None,
        typer.Option(
            parser=moment,
            metavar="TIME",
            help="Not before this time, in ISO 8601 with a zone: 2026-01-31T12:00:00Z.",
        ),
    ] = None,
    max_attempts: Annotated[
        int, typer.Option(help="How many claims a job may have before it is failed.")
    ] = 25,
    unique_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Refuse the job while another that has not ended holds this key."),
    ] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Add one job, or one for each line of a file: all of them, or none.

    Example: `parkkeeper queue enqueue -n jobs -q mail --kind welcome --args '{"user": 7}'`

    Example: `parkkeeper queue enqueue -n jobs -q mail --kind welcome --args @users.jsonl`
    """
    options: dict[str, Any] = {"priority": priority, "run_at": run_at, "max_attempts": max_attempts}
    source = "-" if args == "-" else args[1:] if args.startswith("@") else None
    if source is not None and unique_key is not None:
        raise InvalidArgument("unique_key is refused: one key cannot be held by a job for each line")
    single = _args(args) if source is None else None
    with ready(dsn, namespace, "queue") as (connection, space):
        if source is None:
            job_ids = [
                QueueStorage(connection, space).enqueue(queue, kind, single, unique_key=unique_key, **options)
            ]
        else:
            job_ids = _enqueue_lines(connection, space, source, queue, kind, options)
    emit({"enqueued": len(job_ids), "job_ids": job_ids}, as_json=json)


def _args(text: str) -> dict[str, Any]:
    try:
        return json_object(text)
    except ValueError as error:
        raise InvalidArgument(f"args is refused: {error}") from None


def _enqueue_lines(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    source: str,
    queue: str,
    kind: str,
    options: dict[str, Any],
) -> list[int]:
    """Enqueue a job for each line, in one transaction: a half of them could not be told from the whole."""
    storage, job_ids = QueueStorage(connection, namespace), list[int]()
    with opened(source) as stream, connection.transaction():
        for lines in batches(stream, "jobs"):
            if lines[-1].problem:
                raise InvalidArgument(f"line {lines[-1].number} is {lines[-1].problem}: nothing was enqueued")
            job_ids += storage.enqueue_many(queue, kind, [line.value for line in lines], **options)
    return job_ids


@app.command()
def work(
    namespace: NamespaceName,
    queue: Queue,
    handler: Annotated[
        list[str],
        typer.Option(
            metavar="[KIND=]MODULE:FUNCTION",
            help="What does the jobs, of one kind or of all; it is called with the claimed job (job_id, kind, args, "
            "attempt, ...), and fails it by raising. May be given once for each kind.",
        ),
    ],
    batch: Annotated[int, typer.Option(metavar="JOBS", help="How many to claim at once.")] = 10,
    lease: Annotated[
        timedelta,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            show_default=False,
            help="How soon a rescue may take jobs for abandoned after this worker has died; while it lives, they stay "
            "its own. [default: 5m]",
        ),
    ] = LEASE,
    concurrency: Annotated[
        int, typer.Option(metavar="JOBS", help="How many handlers run at once, in threads.")
    ] = 1,
    grace: Annotated[
        timedelta,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            show_default=False,
            help="How long to wait for running handlers when interrupted; 0: not at all. [default: 30s]",
        ),
    ] = GRACE,
    drain: Annotated[bool, typer.Option("--drain", help="Stop when there is nothing to claim.")] = False,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Work off a queue until interrupted (Ctrl-C or SIGTERM).

    Then running handlers are finished and recorded, and what was not begun is handed back for other workers; a second
    interrupt hands back at once. A job may be done twice when its worker dies or does not wait: handlers have to be
    idempotent. A failure is shown by its class alone; its text stands on the job.

    Example: `parkkeeper queue work -n jobs -q mail --handler tasks:handle --concurrency 8`

    Example: `parkkeeper queue work -n jobs -q mail --handler tasks:handle --drain`
    """
    handlers = _handlers(handler)
    with ready(dsn, namespace, "queue") as (connection, space):
        storage = QueueStorage(connection, space)
        storage.queue_counts(queue)  # A worker on a misspelt queue would wait for ever.
        worker = Worker(
            storage,
            queue,
            handlers,
            batch=batch,
            lease=lease,
            concurrency=concurrency,
            grace=grace,
            reconnect=lambda: session(str(dsn)),
        )
        # What a handler prints is no part of the document.
        with redirect_stdout(sys.stderr) if json else nullcontext(), status_line(lambda: _status(worker)):
            outcome = worker.run(drain=drain)
    emit(outcome, as_json=json)


def _status(worker: Worker) -> str:
    done = worker.outcome
    return (
        f"{worker.in_hand} in hand, {done.completed} completed, {done.retryable} to be tried again, "
        f"{done.failed + done.dead_lettered} failed for good"
    )


def _handlers(references: list[str]) -> dict[str, Handler] | Handler:
    """Import what does the jobs: for each kind, or for all."""
    found: dict[str, Handler] = {}
    for reference in references:
        kind, _, place = reference.rpartition("=")
        function = attribute("--handler", place)
        if not callable(function):
            raise InvalidArgument(f"handler {place!r} is refused: it cannot be called")
        if kind in found:
            raise InvalidArgument(f"handler {place!r} is refused: there is one already")
        found[kind] = function
    if "" in found and len(found) > 1:
        raise InvalidArgument("handler is refused: one for all kinds leaves nothing to the others")
    return found.get("", found)


@app.command()
def counts(namespace: NamespaceName, queue: Queue, dsn: Dsn = None, json: Json = False) -> None:
    """Count the jobs of a queue, exactly.

    `terminal` counts every job that has ended, ever; `failed` those that can be put back; `pruned_failed` those that
    were dropped past their retention and can not. `dead_lettered` counts dead letters, `purged_dead_letters` those that
    were purged, ever.

    Example: `parkkeeper queue counts -n jobs -q mail --json`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        found = QueueStorage(connection, space).queue_counts(queue)
    emit(found, as_json=json)


@app.command()
def pause(namespace: NamespaceName, queue: Queue, dsn: Dsn = None, json: Json = False) -> None:
    """Let no job of a queue be claimed until it is resumed; jobs that run are finished.

    Example: `parkkeeper queue pause -n jobs -q mail`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        found = QueueStorage(connection, space).pause(queue)
    emit(found, as_json=json)


@app.command()
def resume(namespace: NamespaceName, queue: Queue, dsn: Dsn = None, json: Json = False) -> None:
    """Let jobs of a paused queue be claimed again.

    Example: `parkkeeper queue resume -n jobs -q mail`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        found = QueueStorage(connection, space).resume(queue)
    emit(found, as_json=json)


@app.command()
def rescue(namespace: NamespaceName, dsn: Dsn = None, json: Json = False) -> None:
    """Take back jobs whose lease has run out, from workers that are gone.

    `rescued` counts those that will be tried again, after the wait that a failure brings; `failed` those for which it
    was the last attempt, and `dead_lettered` the same of queues that keep dead letters.

    Example: `parkkeeper queue rescue -n jobs`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        outcome = QueueStorage(connection, space).rescue()
    emit(outcome, as_json=json)


@app.command()
def rotate(
    namespace: NamespaceName,
    ring: RingName = "queue",
    lock_timeout: LockTimeout = LOCK_TIMEOUT,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Seal the current slot of a ring and open an empty one.

    The outcome is a word, and exit code 0 whichever it is: `rotated`; `skipped_idle` (nothing to seal a slot for);
    `skipped_busy` (no slot is empty: prune first); `blocked` (a lock was not had: try again).

    Example: `parkkeeper queue rotate -n jobs`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        outcome = QueueStorage(connection, space).rotate(ring=ring, lock_timeout=lock_timeout)
    emit(outcome, as_json=json)


@app.command()
def prune(
    namespace: NamespaceName,
    ring: RingName = "queue",
    failed_retention: Annotated[
        timedelta | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="Carry failed jobs that ended less than this ago: 72h, 7d, 0 for none; whole seconds, at most 35d. "
            "A queue's own setting wins. [default: what the namespace says]",
        ),
    ] = None,
    max_pruned_failed: Annotated[
        int | None,
        typer.Option(metavar="ROWS", help="Refuse (exit code 1) to drop more failed jobs than this."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show what would be done, by queue and kind; locks and writes nothing."
        ),
    ] = False,
    lock_timeout: LockTimeout = LOCK_TIMEOUT,
    wait_for_snapshots: Annotated[
        bool,
        typer.Option(
            "--wait-for-snapshots",
            help="Stand down (`skipped_active`, `old_snapshot`) while a transaction of this database keeps a snapshot "
            "from before the prune.",
        ),
    ] = False,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Reclaim what is no longer in use: a floor segment that has passed, else the oldest slot of a ring.

    Failed jobs inside their retention are carried out of a slot, to a floor segment, and stay retryable.

    The outcome is a word, and exit code 0 whichever it is: `pruned`; `noop` (nothing to reclaim); `blocked` (a lock
    was not had: try again); `skipped_active` (jobs of the sealed slots still wait or run, see reason and count).
    One call reclaims one of them. A dry run of the queue ring also says what becomes of the rows, by queue and kind.

    Example: `parkkeeper queue prune -n jobs --failed-retention 72h --dry-run`
    """
    terms: dict[str, Any] = {
        "max_pruned_failed": max_pruned_failed,
        "lock_timeout": lock_timeout,
        "wait_for_snapshots": wait_for_snapshots,
    }
    by_kind: list[PlannedRows] | None = None
    with ready(dsn, namespace, "queue") as (connection, space):
        storage = QueueStorage(connection, space)
        if dry_run and ring == "queue":
            plan = storage.plan_prune(failed_retention, **terms)
            outcome, by_kind = plan.outcome, plan.by_kind
        else:
            outcome = storage.prune_oldest(failed_retention, ring=ring, dry_run=dry_run, **terms)
        notes = _pruned(storage, outcome, dry_run) if ring == "queue" and not json else []
    if json and by_kind is not None:
        emit({**asdict(outcome), "by_kind": by_kind}, as_json=True)
        return
    emit(outcome, as_json=json, notes=notes)
    if by_kind:
        emit(by_kind, as_json=False)


def _pruned(storage: QueueStorage, outcome: PruneOutcome, dry_run: bool) -> list[str]:
    """Say what became of the slot's failed jobs, or what pins it."""
    if outcome.outcome == "skipped_active":
        slots = storage.ring_status().slots
        return [pinned(slot) for slot in slots if slot.slot == outcome.slot and slot.pinned_by]
    if outcome.outcome != "pruned":
        return []
    tense = "would be" if dry_run else "were"
    return [
        f"{outcome.carried_failed_rows} failed jobs {tense} carried and stay retryable; "
        f"{outcome.pruned_failed} {tense} dropped past their retention."
    ]


def pinned(slot: SlotStatus) -> str:
    """Say which job has pinned a slot for longest."""
    job = slot.pinned_by
    assert job is not None
    since, doing = (job.created_at, "waits") if job.attempted_at is None else (job.attempted_at, "runs")
    return (
        f"Slot {slot.slot} is pinned: job {job.job_id} ({job.kind} of {job.queue}) {doing} since "
        f"{since.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}."
    )


@app.command()
def grow(
    namespace: NamespaceName,
    slots: Annotated[
        int, typer.Option("--slots", metavar="SLOTS", help="How many slots the ring is to have, at most 256.")
    ],
    lock_timeout: LockTimeout = LOCK_TIMEOUT,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Add slots to the queue's ring, while producers and workers go on. None is ever taken away.

    The outcome is a word, and exit code 0 whichever it is: `grown`; `noop` (there are as many); `blocked` (a lock was
    not had, because some transaction that has enqueued stays open: try again, it goes on where it was).

    Example: `parkkeeper queue grow -n jobs --slots 32`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        outcome = QueueStorage(connection, space).grow(slots, lock_timeout=lock_timeout)
    emit(outcome, as_json=json)


app.command()(redrive.expiring)
app.command("retry-failed")(redrive.retry_failed)


@app.command()
def jobs(
    namespace: NamespaceName,
    state: Annotated[str, typer.Option(metavar="STATE", help=f"{', '.join(STATES)}.")] = "failed",
    queue: OnlyQueue = None,
    limit: Annotated[int, typer.Option(metavar="JOBS", help="At most so many.")] = 100,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """List jobs of one state: ended ones newest first, deferred ones by when they are due, others the oldest first.

    Neither arguments nor error texts are shown: they are the application's data.

    Example: `parkkeeper queue jobs -n jobs --state failed --queue mail`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        found = list_jobs(connection, space, state, queue=queue, limit=limit)
    emit(found, as_json=json, empty=f"no {state} jobs")
