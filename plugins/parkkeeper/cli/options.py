"""The options that many commands share, and the session that they lead to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import psycopg
import typer

from parkkeeper import database, migrations
from parkkeeper.embedded import DSN_VARIABLE
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace

NamespaceName = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NAME", help="The namespace: one Postgres schema.")
]
Family = Annotated[
    str,
    typer.Option("--family", metavar="queue|memory", help="Whose migrations: the queue's or the memory's."),
]
Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        envvar=DSN_VARIABLE,
        help="The database, e.g. postgresql://user@host/database.",
    ),
]
OnlyQueue = Annotated[str | None, typer.Option("--queue", "-q", metavar="QUEUE", help="Only this queue.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


def session(dsn: str) -> psycopg.Connection[Any]:
    """Open a session, called like the program."""
    return database.connect(dsn, application_name="parkkeeper-cli")


def dsn_of(given: str | None) -> str:
    """Return the database's address; refuse to go on without one."""
    if not given:
        raise InvalidArgument(
            f"no database is named: set {DSN_VARIABLE}, or give --dsn postgresql://user@host/database"
        )
    return given


@contextmanager
def connected(dsn: str | None, namespace: str) -> Iterator[tuple[psycopg.Connection[Any], Namespace]]:
    """Open a session; the namespace's name is checked before."""
    space = Namespace.of(namespace)
    with session(dsn_of(dsn)) as connection:
        yield connection, space


@contextmanager
def ready(
    dsn: str | None, namespace: str, family: str
) -> Iterator[tuple[psycopg.Connection[Any], Namespace]]:
    """Open a session with a namespace that has exactly the migrations of `family` that this release works with."""
    with connected(dsn, namespace) as (connection, space):
        migrations.require(connection, space, family)
        yield connection, space
