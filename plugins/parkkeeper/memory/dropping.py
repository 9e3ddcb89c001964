"""Dropping the memory of a whole namespace: all of it in one transaction, with a receipt that only the caller has."""

from __future__ import annotations

from typing import Any

import psycopg

from parkkeeper import migrations
from parkkeeper.database import refuse_open_transaction, statements
from parkkeeper.memory.erasure import check_reason
from parkkeeper.memory.errors import NamespaceInUse
from parkkeeper.memory.outcomes import NamespaceReceipt
from parkkeeper.migrations.locking import Patience, blocked, locked_transaction, passes
from parkkeeper.migrations.removal import remove_family
from parkkeeper.namespace import Namespace

_SQL = statements("memory/dropping")


def drop_namespace(
    connection: psycopg.Connection[Any],
    namespace: str | Namespace,
    *,
    reason: str,
    despite_claims: bool = False,
) -> NamespaceReceipt:
    """Drop the memory family's tables from `namespace`, with all that they hold, and the schema unless it holds more.

    A queue in the same namespace stays as it is, and the schema with it. Indexes, triggers and columns that somebody
    added to the memory's own tables go with them; nothing else that Parkkeeper did not make is ever dropped.

    Parameters
    ----------
    reason
        A code such as ``offboarding``, as for an erasure.
    despite_claims
        Drop it while workers have turns in hand. Their results find no tables and are lost with the turns.

    Returns
    -------
    NamespaceReceipt
        What was there when it was dropped. It is kept nowhere: the tables of receipts are gone too.

    Raises
    ------
    NamespaceInUse
        Workers have turns or a rebuild in hand; nothing was dropped.
    ForeignObjects
        Something that is not Parkkeeper's depends on the tables or is in the schema; nothing was dropped.
    MigrationBlocked
        A lock was not had, or a migration runs; nothing was dropped.
    UnknownNamespace, DatabaseOutdated, DatabaseNewer, MigrationDrift, LedgerMissing
        The namespace is not what this release works with.
    """
    space = Namespace.of(namespace)
    check_reason(reason)
    refuse_open_transaction(connection, "drop_namespace")
    patience = Patience()
    try:
        with locked_transaction(connection, space, patience, migrations.QUEUE_SLOTS.start) as cursor:
            migrations.require(connection, space, "memory")
            cursor.execute(_SQL.render("lock", space))
            if not despite_claims:
                _refuse_in_hand(cursor, space)
            dropped = dict(cursor.execute(_SQL.render("contents", space)).fetchall())
            cursor.execute(_SQL.render("forget_settings", space))
            schema_dropped = remove_family(cursor, space, "memory")
    except psycopg.OperationalError as error:
        if not passes(error):
            raise
        where = f"namespace {space}: drop_namespace"
        raise blocked(error, where, patience, 1, "nothing was dropped") from None
    return NamespaceReceipt(space.name, reason, dropped, schema_dropped)


def _refuse_in_hand(cursor: psycopg.Cursor[Any], namespace: Namespace) -> None:
    row = cursor.execute(_SQL.render("in_hand", namespace)).fetchone()
    assert row is not None
    if any(row):
        raise NamespaceInUse(
            f"namespace {namespace} is not dropped: workers have {row[0]} turns and {row[1]} rebuilds in hand; stop "
            "them first, or say that what they have may be lost (despite_claims, --despite-claims)"
        )
