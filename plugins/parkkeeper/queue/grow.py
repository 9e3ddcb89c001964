"""Add slots to the queue's ring. See ``docs/explanation/ring.md``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg

from parkkeeper.database import refuse_open_transaction, retried, statements, without_rows
from parkkeeper.errors import InvalidArgument
from parkkeeper.migrations import QUEUE_SLOTS
from parkkeeper.namespace import Namespace
from parkkeeper.queue import ring
from parkkeeper.queue.outcomes import GrowOutcome

_SQL = statements("queue/ring")


def grow(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    queue_slots: int,
    *,
    lock_timeout: timedelta = ring.LOCK_TIMEOUT,
) -> GrowOutcome:
    """Add slots to the queue's ring until it has `queue_slots`, while producers and workers go on.

    A slot is one short transaction. It has the parent tables to itself for the few milliseconds in which it makes four
    partitions; until it gets there, whoever wants to enqueue or to end a job waits behind it, `lock_timeout` at most,
    and it tries again. A transaction that has enqueued and stays open keeps it away.

    Parameters
    ----------
    queue_slots
        How many slots the ring is to have, 256 at most. Slots are never taken away.
    lock_timeout
        How long each lock is waited for, above zero and at most 5 s.

    Returns
    -------
    GrowOutcome

    Raises
    ------
    InvalidArgument
        An argument is out of range, or the ring has more slots.
    TransactionOpen
        The caller has a transaction open.
    UnknownNamespace
        The namespace has no queue.
    """
    timeout = ring.checked_lock_timeout(lock_timeout)
    if type(queue_slots) is not int or not 0 < queue_slots < QUEUE_SLOTS.stop:
        raise InvalidArgument(
            f"queue_slots {queue_slots!r} is refused: a whole number below {QUEUE_SLOTS.stop}"
        )
    refuse_open_transaction(connection, "grow")

    def add_slot() -> int:
        with ring.maintenance(connection, namespace, "grow", timeout) as cursor:
            slots = ring.lock_state(cursor, namespace).slot_count
            if slots < queue_slots:
                for name in ("add_slot", "register_slot", "count_slot"):
                    cursor.execute(_SQL.render(name, namespace, slot=slots))
                slots += 1
            return slots

    with without_rows(connection, namespace, "queue", "grow"):
        before = now = _slot_count(connection, namespace)
        if queue_slots < before:
            raise InvalidArgument(
                f"queue_slots {queue_slots} is refused: the ring of namespace {namespace} has {before} slots, and none "
                "is taken away"
            )
        try:
            while now < queue_slots:
                now = retried(connection, add_slot)
        except ring.LOCK_NOT_HAD:
            return GrowOutcome("blocked", _slot_count(connection, namespace))
    return GrowOutcome("grown" if now > before else "noop", now)


def _slot_count(connection: psycopg.Connection[Any], namespace: Namespace) -> int:
    row = connection.execute(_SQL.render("slot_count", namespace)).fetchone()
    assert row is not None
    return int(row[0])
