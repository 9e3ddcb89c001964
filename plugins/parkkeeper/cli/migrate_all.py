"""``parkkeeper migrate-all``: one family in many namespaces."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Annotated, Any

import psycopg
import typer

from parkkeeper import migrations
from parkkeeper.cli.failures import REFUSED
from parkkeeper.cli.migrations import (
    LOCK_TIMEOUT,
    STATEMENT_TIMEOUT,
    LockTimeout,
    Slots,
    StatementTimeout,
    Target,
    slots_of,
)
from parkkeeper.cli.options import Dsn, Family, Json, dsn_of, session
from parkkeeper.cli.output import emit
from parkkeeper.cli.status import progress_bar
from parkkeeper.errors import InvalidArgument
from parkkeeper.migrations import Course, FanOut, Patience
from parkkeeper.namespace import Namespace

_COUNTS = ("migrated", "noop", "failed", "not_tried")


def migrate_all(
    family: Family,
    namespaces: Annotated[
        str | None, typer.Option("--namespaces", metavar="NAMES", help="Names with commas between them.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern",
            metavar="PATTERN",
            help="Those that have the family and whose names are like this, e.g. 'tenant_*'.",
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            "--query",
            metavar="SQL",
            help="Those that this SELECT returns, e.g. 'SELECT schema FROM app.tenant'; it cannot write.",
        ),
    ] = None,
    canary: Annotated[
        int,
        typer.Option(
            "--canary", metavar="N", help="Do this many first, and the others only if all of them succeed."
        ),
    ] = 0,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", help="How many at once, 1 to 4.")
    ] = migrations.MOST_AT_ONCE,
    on_error: Annotated[
        str,
        typer.Option(
            "--on-error", metavar="continue|stop", help="What a failure does to the other namespaces."
        ),
    ] = "continue",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be applied; reads only.")
    ] = False,
    target: Target = None,
    queue_slots: Slots = None,
    lock_timeout: LockTimeout = LOCK_TIMEOUT,
    statement_timeout: StatementTimeout = STATEMENT_TIMEOUT,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Make or upgrade the tables of a family in many namespaces, a few at a time.

    A failure does not keep the others from being done; each is named with its reason, and the exit code is 1. Run it
    again to go on: what is done costs it a look.

    Example: `parkkeeper migrate-all --family queue --pattern 'tenant_*' --canary 2`
    """
    course = Course(parallel, canary, on_error, dry_run)
    patience = Patience(lock_timeout, statement_timeout=statement_timeout)
    slots = slots_of(family, queue_slots)
    if sum(given is not None for given in (namespaces, pattern, query)) != 1:
        raise InvalidArgument("give one of --namespaces, --pattern and --query")
    names = (
        [Namespace.of(name.strip()).name for name in namespaces.split(",")] if namespaces is not None else []
    )
    address = dsn_of(dsn)

    def connect() -> AbstractContextManager[psycopg.Connection[Any]]:
        return session(address)

    if namespaces is None:
        with connect() as connection:
            names = migrations.find_namespaces(connection, family, pattern=pattern, query=query)
    with progress_bar() as progress:
        task = progress.add_task(family, total=len(names))
        found = migrations.migrate_all(
            connect,
            names,
            family,
            target=target,
            queue_slots=slots,
            patience=patience,
            course=course,
            progress=lambda _: progress.advance(task),
        )
    _print(found, dry_run, json)
    if found.failures or found.stopped:
        raise typer.Exit(REFUSED)


def _print(found: FanOut, dry_run: bool, json: bool) -> None:
    counts = {outcome: found.count(outcome) for outcome in _COUNTS}
    if json:
        document = {"family": found.family, "dry_run": dry_run, **counts, "stopped": found.stopped}
        emit(document | {"namespaces": found.namespaces}, as_json=True)
        return
    words = {"to migrate" if dry_run and name == "migrated" else name: n for name, n in counts.items()}
    emit(words | {"stopped": found.stopped}, as_json=False)
    if found.failures:
        rows = [{"failed": one.namespace, "reason": one.reason} for one in found.failures]
        emit(rows, as_json=False)
