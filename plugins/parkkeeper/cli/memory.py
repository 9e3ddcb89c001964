"""``parkkeeper memory ...``: turns in, memory out, and what would not form."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from parkkeeper.cli import memory_erasure, memory_upkeep
from parkkeeper.cli.lines import opened
from parkkeeper.cli.loading import load
from parkkeeper.cli.memory_upkeep import (
    Concurrency,
    ExtractorName,
    Ids,
    Model,
    OptionalScope,
    Reason,
    Scope,
    Subject,
    TurnBudget,
    extractor_of,
    show_receipt,
)
from parkkeeper.cli.options import Dsn, Json, NamespaceName, ready
from parkkeeper.cli.output import emit
from parkkeeper.cli.parsing import duration
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.turns import ON_INVALID, checked_language

app = typer.Typer(
    help="Append turns, form them into memory, see and undo what was parked, erase, recall.",
    rich_markup_mode="markdown",
)


@app.command()
def append(
    namespace: NamespaceName,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="JSON Lines; - is stdin.", show_default=False)
    ] = "-",
    on_invalid: Annotated[
        str,
        typer.Option(
            metavar="reject|replace",
            help="What to do with a content that Postgres cannot store (NUL, half a surrogate).",
        ),
    ] = "reject",
    language: Annotated[
        str | None,
        typer.Option(
            metavar="LANGUAGE",
            help="Of each turn whose line tells none: a tag such as de, or a name such as german.",
        ),
    ] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Append turns from JSON Lines, in batches.

    A line: `{"scope": "ada", "messages": [{"role": "user", "content": "hello"}], "subject": "ada",
    "occurred_at": "2026-01-31T12:00:00Z", "idempotency_key": "chat-1-7", "language": "en"}`; the last four may be left
    out.

    A bad line ends the load with a non-zero exit code; it is named by its number, and what stands before it is in.
    With an idempotency_key on each line, the same file can simply be loaded again.

    Example: `parkkeeper memory append -n support turns.jsonl`
    """
    if on_invalid not in ON_INVALID:
        raise InvalidArgument(f"on_invalid {on_invalid!r} is refused: one of {', '.join(ON_INVALID)}")
    spoken = checked_language(language, "language")
    with ready(dsn, namespace, "memory") as (connection, space), opened(file) as stream:
        loaded = load(connection, MemoryStore(connection, space), stream, on_invalid, spoken)
    emit(loaded, as_json=json)


@app.command()
def form(
    namespace: NamespaceName,
    scope: OptionalScope = None,
    extractor: ExtractorName = "chunks",
    model: Model = None,
    limit: Annotated[int, typer.Option(metavar="TURNS", help="At most so many turns.")] = 100,
    max_attempts: Annotated[int, typer.Option(help="Park a turn when so many attempts have failed.")] = 6,
    turn_budget: TurnBudget = timedelta(minutes=5),
    concurrency: Concurrency = 1,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Form turns that are due into memory.

    A turn that fails is counted, tried again later, and parked when its attempts are spent: that is exit code 0, with
    the numbers beside it.

    Example: `parkkeeper memory form -n support --limit 500`
    """
    found = extractor_of(extractor, model)
    with ready(dsn, namespace, "memory") as (connection, space):
        outcome = MemoryStore(connection, space).form_batch(
            found,
            scope=scope,
            limit=limit,
            max_attempts=max_attempts,
            turn_budget=turn_budget,
            concurrency=concurrency,
        )
    waits = outcome.circuit == "open"
    notes = ["The provider does not answer: see `parkkeeper memory circuit`."] if waits else []
    emit(outcome, as_json=json, notes=notes)


@app.command()
def freshness(namespace: NamespaceName, scope: Scope, dsn: Dsn = None, json: Json = False) -> None:
    """Show how far the memory of a scope reaches, and what it leaves out.

    `formed` is an offset from 0: all turns up to it are in memory but the parked ones; `formed_strict` counts those
    as missing. Caught up means that `formed` is `stored` - 1.

    Example: `parkkeeper memory freshness -n support -s ada`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        found = MemoryStore(connection, space).freshness(scope)
    notes = [f"{found.parked} turns are parked: see `parkkeeper memory parked`."] if found.parked else []
    emit(found, as_json=json, notes=notes)


@app.command()
def turn(
    namespace: NamespaceName,
    scope: Scope,
    offset: Annotated[
        int, typer.Option(metavar="OFFSET", help="The turn's place in the scope's log, from 0.")
    ],
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Say what became of one turn: pending, formed, parked, erased, or unknown.

    Example: `parkkeeper memory turn -n support -s ada --offset 3`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        status = MemoryStore(connection, space).turn_status(scope, offset)
    emit({"scope": scope, "log_offset": offset, "status": status}, as_json=json)


@app.command()
def parked(
    namespace: NamespaceName,
    scope: OptionalScope = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="SCOPE:OFFSET", help="Go on after this turn, the last of the page before."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="TURNS", help="At most so many.")] = 100,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """List parked turns by scope and offset, with the class of their failure and never a word of theirs.

    Example: `parkkeeper memory parked -n support --limit 20`
    """
    place = None if after is None else _place(after)
    with ready(dsn, namespace, "memory") as (connection, space):
        found = MemoryStore(connection, space).parked(scope, after=place, limit=limit)
    emit(found, as_json=json, empty="no parked turns")


def _place(text: str) -> tuple[str, int]:
    scope, _, offset = text.rpartition(":")
    if not scope or not (offset.isascii() and offset.isdecimal()) or len(offset) > 18:
        raise InvalidArgument("after is refused: SCOPE:OFFSET, e.g. ada:17")
    return scope, int(offset)


@app.command()
def unpark(
    namespace: NamespaceName,
    ids: Ids = None,
    scope: OptionalScope = None,
    error_class: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Only this class of failure.")
    ] = None,
    older_than: Annotated[
        timedelta | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="Only turns that were parked at least this long ago, e.g. 24h.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="TURNS", help="At most so many. [default: all]")
    ] = None,
    max_park_count: Annotated[
        int | None, typer.Option(metavar="TIMES", help="Only turns that were parked at most so often.")
    ] = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Put parked turns back into the backlog, as if never tried. All conditions that are given must hold.

    Without any condition that is every parked turn of the namespace.

    Example: `parkkeeper memory unpark -n support --error-class timeout --older-than 24h`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        count = MemoryStore(connection, space).unpark(
            observation_ids=ids,
            scope=scope,
            error_class=error_class,
            older_than=older_than,
            limit=limit,
            max_park_count=max_park_count,
        )
    emit({"unparked": count}, as_json=json)


@app.command()
def circuit(
    namespace: NamespaceName,
    probe_now: Annotated[
        bool,
        typer.Option(
            "--probe-now", help="Let the next batch ask at once, whatever is left of the cool-down."
        ),
    ] = False,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Show for each extractor that ever failed whether its provider answers; while a circuit is open no turn is tried.

    `next_probe_at` is from when on the next batch asks the provider again, with a canary; `failures` is how many
    canaries in a row have failed, `error_class` how. When the provider is well again nothing is to be done.

    Example: `parkkeeper memory circuit -n support`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        store = MemoryStore(connection, space)
        if probe_now:
            store.probe_now()
        found = store.circuits()
    emit(found, as_json=json, empty="no circuit: no extractor has failed")


@app.command()
def erase(
    namespace: NamespaceName,
    reason: Reason,
    scope: OptionalScope = None,
    subject: Subject = None,
    ids: Ids = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Erase turns and all that was made of them, for good. All conditions that are given must hold; one must be.

    Prints the receipt. Exit code 1 when something was left (`clean` is no): run it again.

    Example: `parkkeeper memory erase -n support --subject ada --reason subject_request`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        receipt = MemoryStore(connection, space).erase(
            scope=scope, subject=subject, observation_ids=ids, reason=reason
        )
    show_receipt(receipt, json)


@app.command()
def recall(
    namespace: NamespaceName,
    scope: Scope,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words, any of which may match.")],
    limit: Annotated[int, typer.Option(metavar="MEMORIES", help="At most so many.")] = 10,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Find what a scope's memory holds about some words, best first, and say how far that memory reaches.

    The output is personal data.

    Example: `parkkeeper memory recall -n support -s ada "broken invoice"`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        found = MemoryStore(connection, space).recall(scope, query, limit=limit)
    if json:
        emit(found, as_json=True)
        return
    shown = [
        {
            "offset": memory.log_offset,
            "occurred_at": memory.occurred_at,
            "kind": memory.kind,
            "text": memory.text,
        }
        for memory in found.memories
    ]
    reach = found.freshness
    notes = [
        f"Formed up to offset {reach.formed}, {reach.stored} turns stored, {reach.backlog} to be formed."
    ]
    if reach.parked:
        notes.append(f"{reach.parked} turns are parked and not in this memory.")
    emit(shown, as_json=False, empty="nothing found", notes=notes)


memory_upkeep.register(app)
memory_erasure.register(app)
