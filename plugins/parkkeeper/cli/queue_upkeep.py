"""``parkkeeper queue ...``: commands for whoever looks after a queue."""

from __future__ import annotations

import typer

from parkkeeper.cli.options import Dsn, Json, NamespaceName, ready
from parkkeeper.cli.output import emit
from parkkeeper.cli.queue import LockTimeout
from parkkeeper.queue import QueueStorage
from parkkeeper.queue.outcomes import RollUpOutcome
from parkkeeper.queue.ring import LOCK_TIMEOUT


def roll_up(
    namespace: NamespaceName,
    lock_timeout: LockTimeout = LOCK_TIMEOUT,
    dsn: Dsn = None,
    json: Json = False,
) -> None:
    """Fold the ledger of counts, so that counting stays cheap, and sweep unique keys of jobs that are gone.

    The outcome is a word, and exit code 0 whichever it is: `rolled_up`; `noop` (nothing to do); `blocked` (a lock was
    not had: try again); `skipped_active` (a transaction has been open for more than a minute).

    Example: `parkkeeper queue roll-up -n jobs`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        outcome = QueueStorage(connection, space).roll_up(lock_timeout=lock_timeout)
    emit(outcome, as_json=json, notes=_distrusted(outcome))


def _distrusted(outcome: RollUpOutcome) -> list[str]:
    if outcome.trusted:
        return []
    return [
        "The counters are not believed, and jobs are counted from their rows, which takes longer: "
        "run `parkkeeper queue rebuild-counters`."
    ]


def rebuild_counters(namespace: NamespaceName, dsn: Dsn = None, json: Json = False) -> None:
    """Count all jobs anew from their rows, and believe the counters again.

    It reads all that the ring holds; only rotate, prune and roll-up wait for it. What was pruned is counted apart and
    stays as it is.

    Example: `parkkeeper queue rebuild-counters -n jobs`
    """
    with ready(dsn, namespace, "queue") as (connection, space):
        QueueStorage(connection, space).rebuild_terminal_counters()
    emit({"outcome": "rebuilt"}, as_json=json)


def register(app: typer.Typer) -> None:
    """Make these commands of `app`."""
    app.command("roll-up")(roll_up)
    app.command("rebuild-counters")(rebuild_counters)
