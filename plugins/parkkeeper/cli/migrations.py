"""``parkkeeper migrate | plan | status | verify | baseline | render | grants``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer

from parkkeeper import migrations, verification
from parkkeeper.cli.failures import NAMESPACE
from parkkeeper.cli.options import Dsn, Family, Json, NamespaceName, connected
from parkkeeper.cli.output import emit
from parkkeeper.cli.parsing import duration
from parkkeeper.errors import InvalidArgument
from parkkeeper.migrations import AppliedMigration, Migration, Patience

#: What a session of the program has.
STATEMENT_TIMEOUT = timedelta(minutes=5)
LOCK_TIMEOUT = Patience().lock_timeout

Target = Annotated[
    int | None,
    typer.Option(
        "--target", metavar="NUMBER", help="Stop after this migration, e.g. 32. [default: the newest]"
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(
        "--queue-slots",
        metavar="SLOTS",
        help="How many slots the queue's ring is made with, 4 to 256. [default: 16]",
    ),
]
LockTimeout = Annotated[
    timedelta,
    typer.Option(
        "--lock-timeout",
        metavar="DURATION",
        parser=duration,
        help="How long a statement waits for a lock, and writers behind it. [default: 2s]",
        show_default=False,
    ),
]
StatementTimeout = Annotated[
    timedelta,
    typer.Option(
        "--statement-timeout",
        metavar="DURATION",
        parser=duration,
        help="The longest a statement may take. [default: 5m]",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`, beside its groups."""
    for command in (migrate, plan, status, verify, baseline, render, grants):
        app.command()(command)


def migrate(
    family: Family,
    namespace: NamespaceName,
    target: Target = None,
    queue_slots: Slots = None,
    lock_timeout: LockTimeout = LOCK_TIMEOUT,
    statement_timeout: StatementTimeout = STATEMENT_TIMEOUT,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Make or upgrade the tables of a family in a namespace.

    Each migration is one transaction; a second run applies nothing. The schema is made if it is missing.

    Example: `parkkeeper migrate --family queue -n jobs --queue-slots 32`
    """
    slots = slots_of(family, queue_slots)
    patience = Patience(lock_timeout, statement_timeout=statement_timeout)
    with connected(dsn, namespace) as (connection, space):
        applied = migrations.migrate(
            connection, space, family, target=target, queue_slots=slots, patience=patience
        )
    notes = []
    if queue_slots is not None and not any(row.version == 1 for row in applied):
        notes.append("The ring exists already: --queue-slots counts only when it is first made.")
    emit(applied if json else _brief(applied), as_json=json, empty="nothing to apply", notes=notes)


def plan(
    family: Family, namespace: NamespaceName, target: Target = None, dsn: Dsn = None, json: Json = False
) -> None:
    """Show what `migrate` would apply; reads only.

    Example: `parkkeeper plan --family memory -n support`
    """
    with connected(dsn, namespace) as (connection, space):
        pending = migrations.plan(connection, space, family, target=target)
    emit(_plan(pending, json), as_json=json, empty="nothing to apply")


def status(family: Family, namespace: NamespaceName, dsn: Dsn = None, json: Json = False) -> None:
    """Show what a namespace has of a family, and what is still to be applied.

    Fails with exit code 4 when a file is not what was applied, or the namespace is newer than this release.

    Example: `parkkeeper status --family queue -n jobs --json`
    """
    with connected(dsn, namespace) as (connection, space):
        found = migrations.status(connection, space, family)
    if json:
        emit(
            {
                "namespace": found.namespace,
                "family": found.family,
                "applied": found.applied,
                "pending": _plan(found.pending, json),
            },
            as_json=True,
        )
    else:
        emit(_brief(found.applied), as_json=False, empty="nothing is applied")
        emit(_plan(found.pending, json), as_json=False, empty="nothing to apply")


def verify(
    namespace: NamespaceName,
    catalog: Annotated[bool, typer.Option("--catalog", help="Look at the tables only.")] = False,
    data: Annotated[bool, typer.Option("--data", help="Look at the rows only.")] = False,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Compare the tables of a namespace with a fresh install, and ask its rows what is promised of them.

    The fresh install is made in a transaction that is rolled back. Every row is read, in one snapshot a family; prunes
    wait meanwhile. Fails with exit code 4 when anything differs or is not as promised, and says what. Warns of settings
    of the server that let values into its log, or make search poorer.

    Example: `parkkeeper verify -n jobs --data`
    """
    with connected(dsn, namespace) as (connection, space):
        compared = None if data and not catalog else migrations.verify(connection, space)
        broken = None if catalog and not data else verification.broken_invariants(connection, space)
    if json:
        document = {} if compared is None else asdict(compared)
        emit(document if broken is None else document | {"broken": broken}, as_json=True)
    else:
        if compared is not None:
            versions = ", ".join(f"{family} {version:04d}" for family, version in compared.versions.items())
            notes = [f"warning: {warning}" for warning in compared.warnings]
            empty = f"as a fresh install of {versions} makes it"
            emit(compared.differences, as_json=False, empty=empty, notes=notes)
        if broken is not None:
            emit(broken, as_json=False, empty="every invariant holds")
    if broken or (compared is not None and compared.differences):
        raise typer.Exit(NAMESPACE)


def baseline(
    family: Family, namespace: NamespaceName, target: Target = None, dsn: Dsn = None, json: Json = False
) -> None:
    """Take over tables that are there already: write the ledger that they lack.

    For a schema that was restored without its ledger. The tables are compared with a fresh install first, and nothing
    is written unless they are what the migrations make.

    Example: `parkkeeper baseline --family memory -n support`
    """
    with connected(dsn, namespace) as (connection, space):
        taken = migrations.baseline(connection, space, family, target=target)
    emit(taken if json else _brief(taken), as_json=json)


def render(
    family: Family,
    namespace: NamespaceName,
    target: Target = None,
    queue_slots: Slots = None,
    json: Json = False,
) -> None:
    """Print the SQL of the migrations, for a site that applies it with a tool of its own; needs no database.

    Each migration is one transaction that also writes the ledger, so that `migrate` can go on where it ends.

    Example: `parkkeeper render --family queue -n jobs | psql -v ON_ERROR_STOP=1 "$PARKKEEPER_DSN"`
    """
    script = migrations.render(namespace, family, target=target, queue_slots=slots_of(family, queue_slots))
    if json:
        emit({"namespace": namespace, "family": family, "sql": script}, as_json=True)
    else:
        sys.stdout.write(script)


def grants(
    namespace: NamespaceName,
    migrator: Annotated[
        str, typer.Option("--migrator", metavar="ROLE", help="Runs migrations.")
    ] = "parkkeeper_migrator",
    maintainer: Annotated[
        str, typer.Option("--maintainer", metavar="ROLE", help="Rotates, prunes, sweeps, decides settings.")
    ] = "parkkeeper_maintainer",
    application: Annotated[
        str, typer.Option("--application", metavar="ROLE", help="Enqueues, works, appends, forms, reads.")
    ] = "parkkeeper_application",
    json: Json = False,
) -> None:
    """Print the SQL that gives three roles what each needs in a namespace, and no more; needs no database.

    The roles exist already. Run it again after each migration.

    Example: `parkkeeper grants -n jobs --application orders | psql -v ON_ERROR_STOP=1 "$PARKKEEPER_DSN"`
    """
    script = migrations.grants(namespace, migrator=migrator, maintainer=maintainer, application=application)
    if json:
        emit({"namespace": namespace, "sql": script}, as_json=True)
    else:
        sys.stdout.write(script)


def slots_of(family: str, given: int | None) -> int:
    """Return how many slots a ring is made with; only a queue has one."""
    if given is not None and family != "queue":
        raise InvalidArgument(f"queue_slots {given} is refused: only the queue family has a ring")
    return 16 if given is None else given


def _brief(applied: Sequence[AppliedMigration]) -> list[dict[str, Any]]:
    """Return what people want to see of what was applied."""
    return [
        {
            "applied": row.version,
            "name": row.name,
            "applied_at": row.applied_at,
            "duration_ms": row.duration_ms,
            "retries": row.retries,
        }
        for row in applied
    ]


def _plan(pending: Sequence[Migration], json: bool) -> list[dict[str, Any]]:
    """Return what is to be applied: for programs all but the text, for people the names."""
    if not json:
        return [{"to apply": migration.version, "name": migration.name} for migration in pending]
    fields = ("family", "version", "name", "sha256")
    return [{field: getattr(migration, field) for field in fields} for migration in pending]
