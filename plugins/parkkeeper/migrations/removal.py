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
    made = dict.fromkeys(found for migration in packaged(family) for found in _MADE.findall(migration.sql))
    try:
        for kind in ("TABLE", "FUNCTION", "TYPE"):
            names = ", ".join(name for found, name in made if found == kind)
            if names:
                statement = f"DROP {kind} IF EXISTS {names}".replace("{schema}", namespace.identifier)
                cursor.execute(statement.encode())
    except psycopg.errors.DependentObjectsStillExist as error:
        # Its detail names objects, a line each, and nothing of any row.
        raise ForeignObjects(
            f"namespace {namespace} is not dropped, since something else depends on it: "
            f"{(error.diag.message_detail or 'see the server log').partition(chr(10))[0]}; drop or move that first"
        ) from None
    cursor.execute(_SQL.render("forget_family", namespace), {"family": family})
    if one(cursor, "families", namespace, {})[0]:
        return False
    cursor.execute(_SQL.render("drop_ledger", namespace))
    (held,) = one(cursor, "held", namespace, {"schema": namespace.name})
    if held:
        raise ForeignObjects(
            f"namespace {namespace} is not dropped, since its schema holds what is not Parkkeeper's: "
            f"{', '.join(held)}; drop or move that first"
        )
    cursor.execute(_SQL.render("drop_schema", namespace))
    return True
