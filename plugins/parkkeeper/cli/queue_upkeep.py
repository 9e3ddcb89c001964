"""``parkkeeper queue ...``: commands for whoever looks after a queue: look, decide, cancel, count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from parkkeeper.cli.options import Dsn, Json, NamespaceName, OnlyQueue, ready
from parkkeeper.cli.output import emit
from parkkeeper.cli.parsing import duration_or_default
from parkkeeper.cli.queue import EnqueueShards, LockTimeout, RingName, pinned
from parkkeeper.errors import InvalidArgument
from parkkeeper.queue import QueueStorage
from parkkeeper.queue.evacuate import LIMIT
from parkkeeper.queue.outcomes import RollUpOutcome
from parkkeeper.queue.ring import LOCK_TIMEOUT
from parkkeeper.queue.status import HeldRingStatus, HeldSlotStatus, RingStatus, SlotStatus


def ring(namespace: NamespaceName, which: RingName = "queue", dsn: Dsn = None, json: Json = False) -> None:
    """Draw a ring: its slots, what stands in each, and which job pins one that is sealed.

    A slot is `current` (new jobs go there), `sealed` (it holds what is left of earlier times) or `empty`. What waits or
    runs in a sealed slot pins it: no prune reclaims it until that has ended. Of the claim and the lease ring it shows
    how many claims or leases a slot holds, and how many of these are needed still.

    Example: `parkkeeper queue ring -n jobs`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        storage = QueueStorage(connection, space)
        found = storage.ring_status() if which == "queue" else storage.held_ring_status(which)
    now = datetime.now(UTC)
    emit(
        found if json else [_row(slot, now) for slot in found.slots],
        as_json=json,
        notes=_notes(found),
    )


def _row(slot: SlotStatus | HeldSlotStatus, now: datetime) -> dict[str, Any]:
    since = slot.opened_at if slot.state == "current" else slot.sealed_at if slot.state == "sealed" else None
    if isinstance(slot, HeldSlotStatus):
        stands = {"held": slot.held, "needed": slot.needed}
    else:
        stands = {
            "waiting": slot.waiting,
            "running": slot.running,
            "ended": slot.terminal,
            "failed": slot.failed,
        }
    return {
        "slot": slot.slot,
        "generation": slot.generation,
        "state": slot.state,
        **stands,
        "MB": slot.bytes / 1_000_000,
        "for": None if since is None else str(timedelta(seconds=max(0, int((now - since).total_seconds())))),
    }


def _notes(found: RingStatus | HeldRingStatus) -> list[str]:
    if isinstance(found, HeldRingStatus):
        return [_drawn(found)]
    return [_drawn(found), *[pinned(slot) for slot in found.slots if slot.pinned_by], *_floor(found)]


def _floor(found: RingStatus) -> list[str]:
    """Say what stands outside of the ring until it passes the floor."""
    if not found.floor:
        return []
    failed, first = sum(one.failed for one in found.floor), found.floor[0].passes_at.astimezone(UTC)
    return [
        f"floor: {failed} failed jobs in {len(found.floor)} segments; the first segment passes at "
        f"{first:%Y-%m-%d %H:%M:%SZ}, see `parkkeeper queue expiring`."
    ]


def _drawn(found: RingStatus | HeldRingStatus) -> str:
    """Draw a character a slot."""
    signs = {"current": ">", "empty": "."}
    drawn = "".join(signs.get(slot.state, "#" if _in_use(slot) else "o") for slot in found.slots)
    return f"[{drawn}]  > current, # sealed and in use, o sealed and to be reclaimed, . empty"


def _in_use(slot: SlotStatus | HeldSlotStatus) -> int:
    return slot.needed if isinstance(slot, HeldSlotStatus) else slot.waiting + slot.running


def show(
    namespace: NamespaceName,
    job_id: Annotated[int, typer.Argument(metavar="JOB_ID", help="The job's id.")],
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Show where one job stands, but neither its arguments nor an error text: they are the application's data.

    Exit code 1 when there is no such job, or no trace of it any more.

    Example: `parkkeeper queue show -n jobs 7`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        found = QueueStorage(connection, space).job(job_id)
    emit(found, as_json=json)


def cancel(
    namespace: NamespaceName,
    job_ids: Annotated[list[int], typer.Argument(metavar="JOB_ID...", help="The jobs' ids.")],
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Cancel jobs that have not ended. The worker that may run one finds its claim stale.

    `left` lists those that were not cancelled: they have ended, or there are none of these ids.

    Example: `parkkeeper queue cancel -n jobs 7 8`
    """
    done: dict[str, list[int]] = {"cancelled": [], "left": []}
    with ready(dsn, namespace, "queue") as (connection, space):
        storage = QueueStorage(connection, space)
        for job_id in job_ids:
            done["cancelled" if storage.cancel(job_id) else "left"].append(job_id)
    emit(done, as_json=json)


def set_(
    namespace: NamespaceName,
    queue: OnlyQueue = None,
    failed_retention: Annotated[
        Any,
        typer.Option(
            parser=duration_or_default,
            metavar="DURATION|default",
            help="How long a failed job stays retryable: 72h, 7d, 0 for not beyond its slot; whole seconds, at most "
            "35d. default: the queue says nothing, and the namespace decides.",
        ),
    ] = None,
    dead_letter_retention: Annotated[
        Any,
        typer.Option(
            parser=duration_or_default,
            metavar="DURATION|default",
            help="How long a dead letter of the queue is kept. default: until somebody purges it.",
        ),
    ] = None,
    carry_to: Annotated[
        str | None,
        typer.Option(
            metavar="floor|live",
            help="Where prune carries failed jobs of the namespace: floor, once; live, once a lap.",
        ),
    ] = None,
    enqueue_shards: EnqueueShards = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Change the settings of a queue that exists; without --queue, what holds for all queues that say nothing.

    Example: `parkkeeper queue set -n jobs --failed-retention 7d`

    Example: `parkkeeper queue set -n jobs -q mail --failed-retention default`
    """
    of_queues = dead_letter_retention is not None or enqueue_shards is not None
    if failed_retention is None and not of_queues and carry_to is None:
        raise InvalidArgument(
            "nothing to set: give --failed-retention, --dead-letter-retention, --enqueue-shards or --carry-to"
        )
    if queue is not None and carry_to is not None:
        raise InvalidArgument("--carry-to is the namespace's: leave --queue out")
    if queue is None and (of_queues or failed_retention == "default"):
        raise InvalidArgument(
            "give --queue, or --failed-retention alone with a duration: that is the default itself"
        )
    with ready(dsn, namespace, "queue") as (connection, space):
        storage = QueueStorage(connection, space)
        found: Any
        if queue is None:
            found = storage.set_namespace(failed_retention=failed_retention, carry_to=carry_to)
        else:
            storage.queue_counts(queue)  # A misspelt queue would be made.
            found = storage.set_queue(
                queue,
                failed_retention=failed_retention,
                dead_letter_retention=dead_letter_retention,
                enqueue_shards=enqueue_shards,
            )
    emit(found, as_json=json)


def roll_up(
    namespace: NamespaceName,
    lock_timeout: LockTimeout = LOCK_TIMEOUT,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Fold the ledger of counts, so that counting stays cheap, and sweep unique keys of jobs that are gone.

    The outcome is a word, and exit code 0 whichever it is: `rolled_up`; `noop` (nothing to do); `blocked` (a lock was
    not had: try again); `skipped_active` (a transaction has been open for more than a minute).

    Example: `parkkeeper queue roll-up -n jobs`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        outcome = QueueStorage(connection, space).roll_up(lock_timeout=lock_timeout)
    emit(outcome, as_json=json, notes=_distrusted(outcome))


def evacuate(
    namespace: NamespaceName,
    limit: Annotated[int, typer.Option(metavar="JOBS", help="Move at most so many.")] = LIMIT,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Move jobs that wait or run in old slots out of the ring, so that these can be pruned.

    The jobs go on as they would have. The outcome is a word, and exit code 0 whichever it is: `evacuated`; `noop`
    (nothing is to be moved); `blocked` (a lock was not had: try again). `backlogs` lists slots in which too many jobs
    wait for that: only workers help. `rotate` does a step of it by itself when empty slots run short.

    Example: `parkkeeper queue evacuate -n jobs`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        outcome = QueueStorage(connection, space).evacuate(limit)
    emit(outcome, as_json=json)


def _distrusted(outcome: RollUpOutcome) -> list[str]:
    if outcome.trusted:
        return []
    return [
        "The counters are not believed, and jobs are counted from their rows, which takes longer: "
        "run `parkkeeper queue rebuild-counters`."
    ]


def rebuild_counters(namespace: NamespaceName, dsn: Dsn = None, json: Json = False) -> None:
    """Count all jobs anew from their rows, and believe the counters again.

    It reads all that the ring holds; only rotate, prune and roll-up wait for it. What was pruned is counted apart and
    stays as it is.

    Example: `parkkeeper queue rebuild-counters -n jobs`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        QueueStorage(connection, space).rebuild_terminal_counters()
    emit({"outcome": "rebuilt"}, as_json=json)


def register(app: typer.Typer) -> None:
    """Make these commands of `app`."""
    for command in (ring, show, cancel, evacuate):
        app.command()(command)
    app.command("set")(set_)
    app.command("roll-up")(roll_up)
    app.command("rebuild-counters")(rebuild_counters)
