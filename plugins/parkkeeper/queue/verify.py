"""Asking the rows of a queue whether what is promised of them is true."""

from __future__ import annotations

from typing import Any

import psycopg

from parkkeeper import invariants
from parkkeeper.database import retried, statements, without_rows
from parkkeeper.invariants import Broken
from parkkeeper.namespace import Namespace

_SQL = statements("queue/verify")


def broken_invariants(connection: psycopg.Connection[Any], namespace: Namespace) -> list[Broken]:
    """Return which invariants do not hold; none should.

    It reads every row that the queue has, in one snapshot, and writes nothing. Nobody waits for it but prunes, which
    say ``blocked`` meanwhile. Each question is bounded by the session's ``statement_timeout``. While the counters are
    not believed they are not compared.

    Raises
    ------
    TransactionOpen
        The caller has a transaction open.
    UnknownNamespace
        The namespace has no queue.
    """

    def look() -> list[Broken]:
        with invariants.snapshot(connection, namespace, "queue", _SQL) as seen:
            return seen.all_broken(_SQL)

    with without_rows(connection, namespace, "queue", "verify"):
        return retried(connection, look)
