"""Leases: extended by whoever works, and taken back from whoever is gone. See ``docs/explanation/queue.md``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import psycopg

from parkkeeper.database import refuse_open_transaction, statements
from parkkeeper.namespace import Namespace
from parkkeeper.queue.arguments import lease_seconds
from parkkeeper.queue.calls import call
from parkkeeper.queue.claim import ClaimedJob
from parkkeeper.queue.close import batches_of
from parkkeeper.queue.outcomes import RescueOutcome

#: Batches that one transaction passes, and leases that have run out of which one takes care.
WATCHED, RESCUED = 10_000, 100

_SQL = statements("queue/leases")


def extend(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    claims: Iterable[ClaimedJob],
    lease: timedelta,
) -> int:
    """Extend claims; see :meth:`QueueStorage.extend <parkkeeper.queue.storage.QueueStorage.extend>`."""
    seconds = lease_seconds(lease)
    given = batches_of(claims)
    if given is None:
        return 0
    [(extended,)] = call(connection, namespace, _SQL, "extend", given | {"lease_seconds": seconds})
    return int(extended)


def rescue(connection: psycopg.Connection[Any], namespace: Namespace) -> RescueOutcome:
    """Take back the jobs whose lease has run out, from whoever claimed them.

    Each is treated as one whose attempt has failed: it waits as long and is tried again, or is failed (a dead letter,
    if its queue keeps those) when that was its last attempt. So a job that kills its worker each time comes to an end.
    What ended meanwhile stays as it is, and a claim that another session is ending right now is left to that session.

    It works in transactions of a bounded size until no lease is left that had run out when it began. What it costs
    depends on the claims since the last rescue and on the leases that ran out, not on the history.

    Returns
    -------
    RescueOutcome

    Raises
    ------
    TransactionOpen
        The caller has a transaction open.
    UnknownNamespace
        The namespace has no queue.
    """
    refuse_open_transaction(connection, "rescue")
    passed = WATCHED
    while passed == WATCHED:
        [(passed,)] = call(connection, namespace, _SQL, "watch", {"limit": WATCHED})
    [(now,)] = call(connection, namespace, _SQL, "clock", {})
    rescued = failed = dead_lettered = last_lease = 0
    last_until: datetime | None = None
    while True:
        place = {"now": now, "after_until": last_until, "after_lease": last_lease, "limit": RESCUED}
        [(back, ended, buried, last_until, last_lease)] = call(connection, namespace, _SQL, "rescue", place)
        rescued, failed, dead_lettered = rescued + back, failed + ended, dead_lettered + buried
        if last_until is None:
            break
    taken = RESCUED
    while taken == RESCUED:
        [(back, ended, buried)] = call(
            connection, namespace, _SQL, "rescue_evacuated", {"now": now, "limit": RESCUED}
        )
        taken = back + ended + buried
        rescued, failed, dead_lettered = rescued + back, failed + ended, dead_lettered + buried
    return RescueOutcome(rescued, failed, dead_lettered)
