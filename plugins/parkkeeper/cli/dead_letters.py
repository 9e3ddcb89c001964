"""``parkkeeper queue dlq ...``: dead letters listed, put back, purged; never what they carry nor why they failed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import typer

from parkkeeper.cli.options import Dsn, Json, NamespaceName, OnlyQueue, ready
from parkkeeper.cli.output import emit
from parkkeeper.cli.parsing import duration, moment, numbers
from parkkeeper.queue import QueueStorage
from parkkeeper.queue.dead_letters import list_dead_letters

app = typer.Typer(help="List dead letters, put them back, purge them.", rich_markup_mode="markdown")


@app.command("list")
def list_(
    namespace: NamespaceName,
    queue: OnlyQueue = None,
    limit: Annotated[int, typer.Option(metavar="JOBS", help="At most so many.")] = 100,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """List dead letters, those that died last in front.

    Neither arguments nor error texts are shown: they are the application's data.

    Example: `parkkeeper queue dlq list -n jobs -q mail`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        found = list_dead_letters(connection, space, queue=queue, limit=limit)
    emit(found, as_json=json, empty="no dead letters")


@app.command()
def retry(
    namespace: NamespaceName,
    queue: OnlyQueue = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only this kind.")] = None,
    ids: Annotated[str | None, typer.Option(metavar="ID,ID,...", help="Only these jobs, e.g. 7,8,9.")] = None,
    dead_from: Annotated[
        datetime | None,
        typer.Option(
            parser=moment,
            metavar="TIME",
            help="Only jobs that died at or after this time, in ISO 8601 with a zone: 2026-01-31T12:00:00Z.",
        ),
    ] = None,
    dead_before: Annotated[
        datetime | None,
        typer.Option(parser=moment, metavar="TIME", help="Only jobs that died before this time."),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="JOBS", help="At most so many. [default: all]")] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Put dead letters back as new jobs, those that died first in front.

    All conditions that are given must hold; with none, every dead letter of the namespace is put back. `raced` counts
    those that were gone when their turn came; `conflicts` lists those whose unique key another job holds: they stay.

    Example: `parkkeeper queue dlq retry -n jobs -q mail --limit 10`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        outcome = QueueStorage(connection, space).retry_dead_letters(
            queue,
            kind=kind,
            ids=numbers("--ids", ids),
            dead_from=dead_from,
            dead_before=dead_before,
            limit=limit,
        )
    emit(outcome, as_json=json)


@app.command()
def purge(
    namespace: NamespaceName,
    queue: OnlyQueue = None,
    older_than: Annotated[
        timedelta | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="Letters that died so long ago or longer: 90d, 0 for all; whole seconds. [default: what each queue "
            "has decided; letters of a queue that has not are left]",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="JOBS", help="At most so many. [default: all]")] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Delete dead letters for good, those that died first in front. How many were is counted for ever.

    Example: `parkkeeper queue dlq purge -n jobs -q mail --older-than 90d`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        outcome = QueueStorage(connection, space).purge_dead_letters(
            queue, older_than=older_than, limit=limit
        )
    emit(outcome, as_json=json)
