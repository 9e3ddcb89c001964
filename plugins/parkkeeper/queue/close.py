"""Ending claims: complete, fail, snooze, cancel. See ``docs/explanation/queue.md``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any

import psycopg

from parkkeeper.database import statements
from parkkeeper.error_text import kept_error
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace
from parkkeeper.queue.arguments import moment, whole_number
from parkkeeper.queue.calls import call
from parkkeeper.queue.claim import ClaimedJob

_SQL = statements("queue/close")


def complete(connection: psycopg.Connection[Any], namespace: Namespace, claims: Iterable[ClaimedJob]) -> int:
    """Complete claims; see :meth:`QueueStorage.complete <parkkeeper.queue.storage.QueueStorage.complete>`."""
    given = batches_of(claims)
    if given is None:
        return 0
    [(completed,)] = call(connection, namespace, _SQL, "complete", given)
    return int(completed)


def fail_many(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    failures: Iterable[tuple[ClaimedJob, str]],
    *,
    terminal: bool,
) -> list[str | None]:
    """Fail claims; see :meth:`QueueStorage.fail_many <parkkeeper.queue.storage.QueueStorage.fail_many>`."""
    given = list(failures)
    # A claim that is given twice fails once, for the reason given first.
    first: dict[ClaimedPlace, int] = {}
    for position, (claim, _) in enumerate(given):
        first.setdefault(_place(claim), position)
    positions = [first[place] for place in sorted(first)]
    if not positions:
        return []
    # Many jobs fail for one reason, and looking for secrets in a text costs more than all else that is done here.
    kept = cache(kept_error)
    values = _batches([given[position][0] for position in positions]) | {
        "errors": [kept(given[position][1]) for position in positions],
        "terminal": terminal,
    }
    [(states,)] = call(connection, namespace, _SQL, "fail", values)
    outcomes: list[str | None] = [None] * len(given)
    for position, state in zip(positions, states, strict=True):
        outcomes[position] = state
    return outcomes


def snooze(
    connection: psycopg.Connection[Any], namespace: Namespace, claims: Iterable[ClaimedJob], until: datetime
) -> int:
    """Put claims off; see :meth:`QueueStorage.snooze <parkkeeper.queue.storage.QueueStorage.snooze>`."""
    if moment("until", until) is None:
        raise InvalidArgument("until None is refused: a datetime with a time zone")
    given = batches_of(claims)
    if given is None:
        return 0
    [(snoozed,)] = call(connection, namespace, _SQL, "snooze", {**given, "until": until})
    return int(snoozed)


def cancel(connection: psycopg.Connection[Any], namespace: Namespace, job_id: int) -> bool:
    """Cancel a job; see :meth:`QueueStorage.cancel <parkkeeper.queue.storage.QueueStorage.cancel>`."""
    values = {"job_id": whole_number("job_id", job_id, range(1, 2**63))}
    [(cancelled,)] = call(connection, namespace, _SQL, "cancel", values)
    return bool(cancelled)


ClaimedPlace = tuple[int, int, int, int]


def _place(claim: ClaimedJob) -> ClaimedPlace:
    """Order claims as they are to be locked: by run_lease, then by their place in the batch."""
    return claim.run_lease, claim.claim_slot, claim.ordinal, claim.job_id


def batches_of(claims: Iterable[ClaimedJob]) -> dict[str, str] | None:
    """Return claims in whatever order as the functions take them; None when there are none."""
    given = sorted(claims, key=_place)
    return _batches(given) if given else None


def _batches(claims: list[ClaimedJob]) -> dict[str, str]:
    """Return claims, which are in order, as the functions take them: the batches, and one after the other their claims.

    Array literals are text, which costs a third of what the driver's own dumping of a list of numbers does.
    """
    batches = [
        (slot, lease, sum(1 for _ in claimed))
        for (lease, slot), claimed in groupby(claims, key=lambda claim: (claim.run_lease, claim.claim_slot))
    ]
    slots, leases, sizes = zip(*batches, strict=True)
    return {
        "claim_slots": _array(slots),
        "run_leases": _array(leases),
        "sizes": _array(sizes),
        "ordinals": _array(claim.ordinal for claim in claims),
        "job_ids": _array(claim.job_id for claim in claims),
    }


def _array(numbers: Iterable[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"
