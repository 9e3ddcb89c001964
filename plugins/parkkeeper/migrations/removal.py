"""Taking away what the migrations of a family made; nothing that they did not make goes with it."""

from __future__ import annotations

import re
from typing import Any

import psycopg

from parkkeeper.database import statements
from parkkeeper.errors import ForeignObjects
from parkkeeper.migrations.files import packaged
from parkkeeper.migrations.ledger import one
from parkkeeper.namespace import Namespace

_SQL = statements("namespace")
# A table that is made only if it is not there is shared by the families: it goes with the last of them.
_SHARED = re.compile(r"^CREATE TABLE IF NOT EXISTS (\{schema\}\.[a-z_]+)", re.MULTILINE)
_MADE = re.compile(r"^CREATE (?:OR REPLACE )?(TABLE|FUNCTION|TYPE) (\{schema\}\.[a-z_]+)", re.MULTILINE)


def remove_family(cursor: psycopg.Cursor[Any], namespace: Namespace, family: str) -> bool:
    """Drop the tables, functions and types of `family` and forget its migrations, in the caller's transaction.

    With the last family the schema goes too. Only for a family whose files name whatever they make.

    Returns
    -------
    bool
        Whether the schema was dropped.

    Raises
    ------
    ForeignObjects
        Something that is not Parkkeeper's depends on one of them, or is in the schema that is to be dropped; the
        transaction is to be undone.
    """
    try:
        return _removed(cursor, namespace, family)
    except psycopg.errors.DependentObjectsStillExist as error:
        # Its detail names objects, a line each, and nothing of any row.
        raise ForeignObjects(
            f"namespace {namespace} is not dropped, since something else depends on it: "
            f"{(error.diag.message_detail or 'see the server log').partition(chr(10))[0]}; drop or move that first"
        ) from None


def _removed(cursor: psycopg.Cursor[Any], namespace: Namespace, family: str) -> bool:
    texts = [migration.sql for migration in packaged(family)]
    made = dict.fromkeys(found for text in texts for found in _MADE.findall(text))
    for kind in ("TABLE", "FUNCTION", "TYPE"):
        _drop(cursor, namespace, kind, [name for found, name in made if found == kind])
    cursor.execute(_SQL.render("forget_family", namespace), {"family": family})
    if one(cursor, "families", namespace, {})[0]:
        return False
    _drop(cursor, namespace, "TABLE", [name for text in texts for name in _SHARED.findall(text)])
    cursor.execute(_SQL.render("drop_ledger", namespace))
    (held,) = one(cursor, "held", namespace, {"schema": namespace.name})
    if held:
        raise ForeignObjects(
            f"namespace {namespace} is not dropped, since its schema holds what is not Parkkeeper's: "
            f"{', '.join(held)}; drop or move that first"
        )
    cursor.execute(_SQL.render("drop_schema", namespace))
    return True


def _drop(cursor: psycopg.Cursor[Any], namespace: Namespace, kind: str, names: list[str]) -> None:
    if names:
        statement = f"DROP {kind} IF EXISTS {', '.join(names)}".replace("{schema}", namespace.identifier)
        cursor.execute(statement.encode())
