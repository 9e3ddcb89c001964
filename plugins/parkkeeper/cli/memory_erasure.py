"""An erasure in two steps, by two people: ``parkkeeper memory request-erasure`` and ``erase-requested``."""

from __future__ import annotations

from typing import Annotated

import typer

from parkkeeper.cli.memory_upkeep import Ids, OptionalScope, Reason, Subject, show_receipt
from parkkeeper.cli.options import Dsn, Json, NamespaceName, ready
from parkkeeper.cli.output import emit
from parkkeeper.memory import MemoryStore


def register(app: typer.Typer) -> None:
    """Add these commands to those of the memory."""
    app.command("request-erasure")(request_erasure)
    app.command("erase-requested")(erase_requested)
    app.command("erasure-requests")(erasure_requests)


def request_erasure(
    namespace: NamespaceName,
    reason: Reason,
    scope: OptionalScope = None,
    subject: Subject = None,
    ids: Ids = None,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Ask for an erasure, to be approved and carried out by whoever is given the request's id. Erases nothing.

    The subject is kept as a keyed hash only. `turns` is how many turns meet the conditions now.

    Example: `parkkeeper memory request-erasure -n support --subject ada --reason subject_request`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        requested = MemoryStore(connection, space).request_erasure(
            scope=scope, subject=subject, observation_ids=ids, reason=reason
        )
    emit(requested, as_json=json)


def erase_requested(
    namespace: NamespaceName,
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="What request-erasure printed.")],
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Carry out a requested erasure, for good. One that has been carried out stays as it is.

    Prints the receipt. Exit code 1 when something was left (`clean` is no): run it again.

    Example: `parkkeeper memory erase-requested -n support 0b8f4b0e-6f1c-4b0e-9a5e-2f6f4f6f6c51`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        show_receipt(MemoryStore(connection, space).erase_requested(request_id), json)


def erasure_requests(
    namespace: NamespaceName,
    limit: Annotated[int, typer.Option(metavar="REQUESTS", help="At most so many.")] = 100,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """List the requested erasures that wait to be carried out, or left something, the oldest first.

    Example: `parkkeeper memory erasure-requests -n support`
    """
    with ready(dsn, namespace, "memory") as (connection, space):
        found = MemoryStore(connection, space).erasure_requests(limit=limit)
    emit(found, as_json=json, empty="no erasure waits")
