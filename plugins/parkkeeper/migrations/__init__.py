"""The runner of migrations: plain ``.sql`` files, a transaction each, a ledger with the hash of each.

See ``docs/explanation/migrations.md`` for what is promised: additive only, no down migrations, drift is an
error, a database newer than the package is refused.
"""

from parkkeeper.migrations.apply import migrate
from parkkeeper.migrations.catalog import Difference, Verification, verify
from parkkeeper.migrations.fanout import (
    MOST_AT_ONCE,
    Course,
    FanOut,
    NamespaceOutcome,
    find_namespaces,
    migrate_all,
)
from parkkeeper.migrations.files import FAMILIES, QUEUE_SLOTS, Migration, packaged
from parkkeeper.migrations.ledger import AppliedMigration, Status, plan, require, status
from parkkeeper.migrations.locking import Patience
from parkkeeper.migrations.roles import grants
from parkkeeper.migrations.script import render
from parkkeeper.migrations.takeover import baseline

__all__ = [
    "FAMILIES",
    "MOST_AT_ONCE",
    "QUEUE_SLOTS",
    "AppliedMigration",
    "Course",
    "Difference",
    "FanOut",
    "Migration",
    "NamespaceOutcome",
    "Patience",
    "Status",
    "Verification",
    "baseline",
    "find_namespaces",
    "grants",
    "migrate",
    "migrate_all",
    "packaged",
    "plan",
    "render",
    "require",
    "status",
    "verify",
]
