"""The files that are shipped: what each is called, its hash, and whether it runs in a transaction."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache

from parkkeeper.database import sql_root
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace

FAMILIES: tuple[str, ...] = ("queue", "memory")
"""The families of migrations that this package ships."""

QUEUE_SLOTS: range = range(4, 257)
"""How many slots a ring of the queue can have."""

_FILE = re.compile(r"([0-9]{4})_([a-z0-9_]+)\.sql")
_COMMENT = re.compile(r"--[^\n]*")
_DIRECTIVE = re.compile(r"^-- migrate:[ \t]*(.*?)[ \t]*$", re.MULTILINE)
#: What can be repeated when it was cut off half-way: the name tells what to look for.
_CONCURRENT = re.compile(
    r"\s*(?:CREATE (?:UNIQUE )?INDEX CONCURRENTLY (?P<made>[a-z_][a-z0-9_]*) ON \{schema\}\.[^;]+"
    r"|DROP INDEX CONCURRENTLY IF EXISTS \{schema\}\.[a-z_][a-z0-9_]*\s*);\s*"
)


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: `sha256` is of its text before the schema name is put in, with LF line ends."""

    family: str
    version: int
    name: str
    sql: str
    sha256: str

    @property
    def label(self) -> str:
        """The file's name below the family's folder, as errors and tables show it."""
        return f"{self.version:04d}_{self.name}.sql"

    @property
    def path(self) -> str:
        """The file's name with the family's folder."""
        return f"{self.family}/migrations/{self.label}"

    @property
    def transaction(self) -> bool:
        """Whether it is one transaction; a file that says ``-- migrate: transaction=off`` is one statement without."""
        return _DIRECTIVE.search(self.sql) is None

    @property
    def index(self) -> str | None:
        """The index that a file without a transaction builds; None if it builds none."""
        found = None if self.transaction else _CONCURRENT.fullmatch(_COMMENT.sub("", self.sql))
        return found["made"] if found else None

    def render(self, namespace: Namespace) -> str:
        """Return its SQL for `namespace`."""
        return self.sql.replace("{schema}", namespace.identifier)


@cache
def packaged(family: str) -> tuple[Migration, ...]:
    """Return the migrations of `family` that this package ships, by version.

    Raises
    ------
    InvalidArgument
        There is no such family.
    """
    if family not in FAMILIES:
        raise InvalidArgument(f"family {family!r} is refused: one of {', '.join(FAMILIES)}")
    found = []
    for path in sorted((sql_root() / family / "migrations").glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path.name}: a migration is called NNNN_name.sql")
        # Read as text, which turns any line end into LF: a checkout with CRLF has the same hash.
        text = path.read_text(encoding="utf-8")
        digest = hashlib.sha256(text.encode()).hexdigest()
        found.append(Migration(family, int(match[1]), match[2], text, digest))
        _check_directive(found[-1])
    if len({migration.version for migration in found}) != len(found):
        raise ValueError(f"family {family}: two migrations have the same number")
    return tuple(found)


def _check_directive(migration: Migration) -> None:
    given = _DIRECTIVE.findall(migration.sql)
    if given not in ([], ["transaction=off"]):
        raise ValueError(f"{migration.label}: the one directive is -- migrate: transaction=off, once")
    if given and _CONCURRENT.fullmatch(_COMMENT.sub("", migration.sql)) is None:
        raise ValueError(
            f"{migration.label}: without a transaction a migration is one CREATE INDEX CONCURRENTLY name ON "
            "{schema}.table, or one DROP INDEX CONCURRENTLY IF EXISTS {schema}.name"
        )


def check(family: str, target: int | None, queue_slots: int = QUEUE_SLOTS.start) -> None:
    """Refuse what no call takes, before anything is sent to the database."""
    versions = [migration.version for migration in packaged(family)]
    if target is not None and (type(target) is not int or target not in versions):
        raise InvalidArgument(
            f"target {target} is refused: no such {family} migration; "
            f"there are {versions[0]} to {versions[-1]}"
        )
    if type(queue_slots) is not int or queue_slots not in QUEUE_SLOTS:
        raise InvalidArgument(
            f"queue_slots {queue_slots} is refused: {QUEUE_SLOTS.start} to {QUEUE_SLOTS.stop - 1} slots"
        )
