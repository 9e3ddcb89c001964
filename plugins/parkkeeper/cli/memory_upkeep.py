"""``parkkeeper memory ...``, the other half: what is done to a memory as a whole, and now and then."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from parkkeeper.cli.options import Dsn, Json, NamespaceName, ready
from parkkeeper.cli.output import emit
from parkkeeper.cli.parsing import attribute, duration
from parkkeeper.cli.status import progress_bar
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import ErasureReceipt, MemoryStore, RebuildOutcome, SweepPolicy, dropping, extractors
from parkkeeper.memory.breaker import PROVIDER_CLASSES

Scope = Annotated[
    str, typer.Option("--scope", "-s", metavar="SCOPE", help="Whose memory: a user, a tenant, a room.")
]
OptionalScope = Annotated[str | None, typer.Option("--scope", "-s", metavar="SCOPE", help="Only this scope.")]
ExtractorName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="chunks, llm, another that is installed, or module:attribute for one of your own.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="The model that llm asks. [default: PARKKEEPER_LLM_MODEL]"),
]
Reason = Annotated[
    str,
    typer.Option(metavar="CODE", help="Kept with the receipt: a code such as subject_request, no sentence."),
]
Subject = Annotated[
    str | None, typer.Option("--subject", metavar="SUBJECT", help="Only turns with this person's words.")
]
Ids = Annotated[
    list[int] | None,
    typer.Option("--id", metavar="ID", help="Only this observation_id; may be given several times."),
]
PausedExtractor = Annotated[
    str | None, typer.Option("--extractor", metavar="NAME", help="This extractor, as it names itself.")
]
TurnBudget = Annotated[
    timedelta,
    typer.Option(
        parser=duration,
        metavar="DURATION",
        show_default=False,
        help="How long one turn may take. [default: 5m]",
    ),
]
Concurrency = Annotated[int, typer.Option(metavar="TURNS", help="How many turns at once.")]


def register(app: typer.Typer) -> None:
    """Add these commands to those of the memory."""
    for command in (
        sweep,
        verify,
        rebuild,
        rebuilds,
        pause,
        resume,
        cap,
        settings,
        expire,
        drop,
        drop_namespace,
    ):
        app.command(command.__name__.replace("_", "-"))(command)


def extractor_of(name: str, model: str | None) -> extractors.Extractor:
    """Return the extractor that a command line names."""
    arguments = {} if model is None else {"model": model}
    if ":" not in name:
        return extractors.load(name, **arguments)
    return extractors.made(name, attribute("--extractor", name), **arguments)


def sweep(
    namespace: NamespaceName,
    scope: OptionalScope = None,
    error_class: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS",
            help="Unpark turns of this class of failure; may be given several times. [default: the provider's classes]",
        ),
    ] = None,
    no_unpark: Annotated[bool, typer.Option("--no-unpark", help="Unpark nothing.")] = False,
    parked_for: Annotated[
        timedelta | None,
        typer.Option(
            parser=duration, metavar="DURATION", help="Leave turns that were parked less than this ago."
        ),
    ] = None,
    unpark_limit: Annotated[int, typer.Option(metavar="TURNS", help="Unpark at most so many.")] = 10_000,
    max_park_count: Annotated[
        int, typer.Option(metavar="TIMES", help="Leave turns that were parked more often than this.")
    ] = 3,
    max_attempts: Annotated[int, typer.Option(help="Park turns with so many failed attempts.")] = 6,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")
    ] = False,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Park turns whose attempts are spent, return claims that ran out, unpark what a provider's outage parked.

    Example: `parkkeeper memory sweep -n support`
    """
    if no_unpark and error_class:
        raise InvalidArgument("--error-class and --no-unpark: give one of them")
    classes = () if no_unpark else tuple(error_class) if error_class else PROVIDER_CLASSES
    policy = SweepPolicy(
        max_attempts=max_attempts,
        unpark_classes=classes,
        max_park_count=max_park_count,
        scope=scope,
        parked_for=parked_for,
        unpark_limit=unpark_limit,
    )
    with ready(dsn, namespace, "memory") as (connection, space):
        outcome = MemoryStore(connection, space).sweep(policy, dry_run=dry_run)
    emit(outcome, as_json=json, notes=["Nothing was done."] if dry_run else [])


def verify(namespace: NamespaceName, dsn: Dsn = None, json: Json = False) -> None:
    """Compare the numbers that are kept with a count of the rows. It reads every turn, and writes nothing.

    Exit code 1 when a number is wrong, which none should be.

    Example: `parkkeeper memory verify -n support`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        found = MemoryStore(connection, space).verify()
    emit(found, as_json=json, empty="every number is what a count of the rows says")
    if found:
        raise typer.Exit(1)


def rebuild(
    namespace: NamespaceName,
    scope: Scope,
    extractor: ExtractorName = "chunks",
    model: Model = None,
    from_offset: Annotated[int, typer.Option(metavar="OFFSET", help="The first turn.")] = 0,
    to_offset: Annotated[
        int | None, typer.Option(metavar="OFFSET", help="The last turn. [default: the last there is]")
    ] = None,
    turn_budget: TurnBudget = timedelta(minutes=5),
    concurrency: Concurrency = 1,
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="End the scope's rebuild that has not ended; what it has done stays."),
    ] = False,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Form the turns of a scope again, parked ones too, with another extractor or another version of it.

    What a turn had is found until the new memory replaces it. When this is ended half-way, the same command goes on
    where it stopped. A turn that fails keeps what it had. Exit code 1 when the provider does not answer.

    Example: `parkkeeper memory rebuild -n support -s ada --from-offset 100`
    """
    if cancel:
        with ready(dsn, namespace, "memory") as (connection, space):
            emit({"cancelled": MemoryStore(connection, space).cancel_rebuild(scope)}, as_json=json)
        return
    found = extractor_of(extractor, model)
    with ready(dsn, namespace, "memory") as (connection, space):
        outcome = _rebuilt(
            MemoryStore(connection, space), scope, found, from_offset, to_offset, turn_budget, concurrency
        )
    waits = outcome.circuit == "open"
    notes = (
        ["The provider does not answer: see `parkkeeper memory circuit`, and go on later."] if waits else []
    )
    if outcome.failed:
        notes.append("Turns that failed keep what they had: see `parkkeeper memory rebuilds`.")
    emit(outcome, as_json=json, notes=notes)
    if waits:
        raise typer.Exit(1)


def _rebuilt(
    store: MemoryStore,
    scope: str,
    extractor: extractors.Extractor,
    from_offset: int,
    to_offset: int | None,
    turn_budget: timedelta,
    concurrency: int,
) -> RebuildOutcome:
    """Rebuild batch after batch, until it is done or the provider does not answer."""
    stored = store.freshness(scope).stored
    last = stored - 1 if to_offset is None else min(to_offset, stored - 1)
    with progress_bar() as progress:
        task = progress.add_task("turns", total=max(last - from_offset + 1, 0))
        while True:
            outcome = store.rebuild(
                scope,
                extractor,
                from_offset=from_offset,
                to_offset=to_offset,
                limit=max(20, concurrency),  # so that the bar moves
                turn_budget=turn_budget,
                concurrency=concurrency,
            )
            progress.update(task, completed=outcome.through_offset - from_offset + 1)
            if outcome.done or outcome.circuit == "open":
                return outcome


def rebuilds(
    namespace: NamespaceName,
    scope: OptionalScope = None,
    limit: Annotated[int, typer.Option(metavar="REBUILDS", help="At most so many.")] = 20,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Show how far each rebuild is, those that began last in front.

    Example: `parkkeeper memory rebuilds -n support`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        found = MemoryStore(connection, space).rebuilds(scope, limit=limit)
    emit(found, as_json=json, empty="no rebuilds")


def pause(
    namespace: NamespaceName,
    scope: OptionalScope = None,
    extractor: PausedExtractor = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Let formation leave a scope alone, or let it not use an extractor, until it is resumed. Appending goes on.

    Example: `parkkeeper memory pause -n support -s ada`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        MemoryStore(connection, space).pause(scope, extractor=extractor)
        emit(MemoryStore(connection, space).settings(), as_json=json)


def resume(
    namespace: NamespaceName,
    scope: OptionalScope = None,
    extractor: PausedExtractor = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Let formation go on with a scope or an extractor that is paused.

    Example: `parkkeeper memory resume -n support -s ada`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        MemoryStore(connection, space).resume(scope, extractor=extractor)
        emit(MemoryStore(connection, space).settings(), as_json=json)


def cap(
    namespace: NamespaceName,
    turns: Annotated[
        int | None, typer.Option(metavar="TURNS", help="The most turns that may wait. [default: no cap]")
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option("--scope", "-s", metavar="SCOPE", help="Of this scope. [default: all scopes together]"),
    ] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Set from which backlog on appends are refused; without a number the cap is taken away.

    Example: `parkkeeper memory cap -n support --scope ada --turns 10000`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        MemoryStore(connection, space).set_backlog_cap(turns, scope=scope)
        emit(MemoryStore(connection, space).settings(), as_json=json)


def settings(namespace: NamespaceName, dsn: Dsn = None, json: Json = False) -> None:
    """Show which scopes and extractors are paused, and which backlogs have a cap.

    Example: `parkkeeper memory settings -n support`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        emit(MemoryStore(connection, space).settings(), as_json=json)


def expire(
    namespace: NamespaceName,
    older_than: Annotated[
        timedelta,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="Turns that were stored longer ago than this, e.g. 365d; when they were said does not count.",
        ),
    ],
    reason: Reason,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Erase turns of all scopes by their age, and all that was made of them, for good.

    Prints the receipt. It goes on in steps: when it is ended half-way, the same command does the rest, under a receipt
    of its own. Exit code 1 when something was left (`clean` is no).

    Example: `parkkeeper memory expire -n support --older-than 365d --reason retention`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        show_receipt(MemoryStore(connection, space).expire(older_than, reason=reason), json)


def drop(
    namespace: NamespaceName,
    scope: Scope,
    reason: Reason,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Erase a whole scope, however large, for good: its turns, all that was made of them, what was set for it.

    Its offsets stay assigned. Prints the receipt; exit code 1 when something was appended meanwhile (`clean` is no).

    Example: `parkkeeper memory drop -n support -s ada --reason account_closed`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        show_receipt(MemoryStore(connection, space).drop(scope, reason=reason), json)


def drop_namespace(
    namespace: NamespaceName,
    reason: Reason,
    confirm: Annotated[str, typer.Option(metavar="NAMESPACE", help="The name of the namespace, once more.")],
    despite_claims: Annotated[
        bool,
        typer.Option(
            "--despite-claims", help="Although workers have turns in hand, whose results are lost then."
        ),
    ] = False,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Drop the memory of a whole namespace for good: every turn, every memory, every receipt, the tables, the schema.

    A queue in the same namespace stays, and the schema with it. Prints the receipt, which is kept nowhere else: keep
    it. Nothing is dropped when something that is not Parkkeeper's is in the way (exit code 1).

    Example: `parkkeeper memory drop-namespace -n support --reason offboarding --confirm support --json`
    """
    if confirm != namespace:
        raise InvalidArgument(
            "confirm is refused: it is not the name that --namespace gives; nothing was dropped"
        )
    with ready(dsn, namespace, "memory") as (connection, space):
        receipt = dropping.drop_namespace(connection, space, reason=reason, despite_claims=despite_claims)
    notes = [] if receipt.schema_dropped else ["The schema stays: a queue is in it."]
    emit(receipt, as_json=json, notes=notes)


def show_receipt(receipt: ErasureReceipt, as_json: bool) -> None:
    """Print what an erasure did; something left is exit code 1."""
    emit(receipt, as_json=as_json)
    if not receipt.clean:
        raise typer.Exit(1)
