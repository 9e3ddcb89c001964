"""What a namespace is made of, compared with what its migrations make of an empty one."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from parkkeeper.database import statements
from parkkeeper.errors import MigrationError, UnknownNamespace
from parkkeeper.migrations.files import FAMILIES
from parkkeeper.migrations.ledger import status
from parkkeeper.migrations.locking import Patience, blocked, failed, locked_transaction, passes
from parkkeeper.migrations.scratch import fresh
from parkkeeper.namespace import Namespace

_SQL = statements("catalog")

#: Kind and name of an object, and its definition as Postgres prints it.
Objects = dict[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Difference:
    """One object that is not as the migrations make it.

    `change` is ``missing`` (they make it, and it is not there), ``extra`` (it is there, and they do not make it) or
    ``changed``. `detail` has a line for each line that differs: ``-`` as it should be, ``+`` as it is.
    """

    change: str
    kind: str
    name: str
    detail: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What was compared, the newest migration of each family (`versions`), and what differs.

    `warnings` are sentences about the server and the database: what they are set to that no migration can make good.
    """

    namespace: str
    versions: Mapping[str, int]
    differences: tuple[Difference, ...]
    warnings: tuple[str, ...] = ()


def verify(
    connection: psycopg.Connection[Any],
    namespace: str | Namespace,
    *,
    patience: Patience = Patience(),  # noqa: B008 (frozen)
) -> Verification:
    """Compare the catalog of `namespace` with a fresh install of the migrations that its ledger holds.

    The fresh install is made in a schema of its own, in a transaction that is rolled back; nothing of it is ever seen.
    What lacks migrations of this package is compared with what it has. Owners and rights are not compared, nor rows.

    Returns
    -------
    Verification
        Without differences, the namespace is what its migrations make.

    Raises
    ------
    UnknownNamespace
        It has no migrations at all.
    DatabaseNewer, MigrationDrift, LedgerMissing
        As :func:`status` raises them: a fresh install cannot be made.
    MigrationBlocked
        Another runner works on the namespace, or a lock was not had.
    MigrationError
        The role may not make a schema in this database, or the database refused something else.
    """
    space = Namespace.of(namespace)
    with (
        translated(space, "verify", patience),
        locked_transaction(connection, space, patience, 16) as cursor,
    ):
        versions = {
            family: found.applied[-1].version
            for family in FAMILIES
            if (found := status(connection, space, family)).applied
        }
        if not versions:
            raise UnknownNamespace(
                f"namespace {space} has no tables: run `parkkeeper migrate --family queue --namespace {space}`"
            )
        with fresh(cursor, space, versions, patience) as scratch:
            differences = compare(objects(cursor, scratch, named=space), objects(cursor, space))
        return Verification(space.name, versions, tuple(differences), tuple(warnings(cursor, space)))


def warnings(cursor: psycopg.Cursor[Any], namespace: Namespace) -> Iterator[str]:
    """Yield what the server or the database is set to that makes search poorer or lets values into the log."""
    encoding = cursor.connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        yield f"the database's encoding is {encoding}: text in other scripts is refused; UTF8 takes all"
    elif cursor.execute(_SQL.render("knows_letters", namespace)).fetchone() == (False,):
        yield (
            "the database's locale knows no letters but ASCII, so search tells upper case from lower in all others: "
            "make it with C.UTF-8 or an ICU locale"
        )
    for name, value in cursor.execute(_SQL.render("logged_values", namespace)).fetchall():
        yield (
            f"{name} is {value}: this server writes values of statements into its log, and so what people said, "
            "where no erasure reaches; set it to 0"
        )


@contextmanager
def translated(namespace: Namespace, action: str, patience: Patience) -> Iterator[None]:
    """Turn what a comparison meets in the database into errors that say what to do."""
    where = f"namespace {namespace}: {action}"
    try:
        yield
    except psycopg.errors.InsufficientPrivilege:
        raise MigrationError(
            f"{where} makes the tables anew in a transaction that is rolled back, and reads the namespace: it needs "
            "CREATE on the database, and USAGE and SELECT in the namespace"
        ) from None
    except psycopg.OperationalError as error:
        if not passes(error):
            raise
        raise blocked(error, where, patience, 1, "it left nothing") from None
    except psycopg.Error as error:
        raise failed(error, where, "it left nothing") from None


def objects(cursor: psycopg.Cursor[Any], schema: Namespace, *, named: Namespace | None = None) -> Objects:
    """Return the objects of `schema`, as if the schema were called `named`."""
    cursor.execute(_SQL.render("as_usual", schema))
    rows = cursor.execute(_SQL.render("objects", schema), {"schema": schema.name}).fetchall()
    found = {(kind, name): definition for kind, name, definition in rows}
    if named is None:
        return found
    printed = cursor.execute(_SQL.render("quoted", schema), {"schema": named.name}).fetchone()
    assert printed is not None
    # First as our files write it, then as Postgres prints it: a name that is a keyword keeps its quotes there.
    return {
        (kind, name.replace(schema.name, printed[0])): definition.replace(
            schema.identifier, named.identifier
        ).replace(schema.name, printed[0])
        for (kind, name), definition in found.items()
    }


def compare(expected: Objects, found: Objects) -> Iterator[Difference]:
    """Yield what differs; of a table that is missing or extra, not its columns and indexes too."""
    tables = {name for kind, name in expected.keys() ^ found.keys() if kind == "table"}
    for kind, name in sorted(expected.keys() | found.keys()):
        if name.partition(".")[0] in tables and name not in tables:
            continue
        ours, theirs = expected.get((kind, name)), found.get((kind, name))
        if theirs is None:
            yield Difference("missing", kind, name, "")
        elif ours is None:
            yield Difference("extra", kind, name, "")
        elif ours != theirs:
            yield Difference("changed", kind, name, _lines(ours, theirs))


def _lines(ours: str, theirs: str) -> str:
    changed = difflib.unified_diff(ours.splitlines(), theirs.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in changed if not line.startswith(("---", "+++", "@@")))
