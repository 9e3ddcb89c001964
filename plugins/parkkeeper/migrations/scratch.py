"""A fresh install that nobody ever sees: what the migrations make, to compare with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg

from parkkeeper.database import statements
from parkkeeper.migrations.files import packaged
from parkkeeper.migrations.ledger import one
from parkkeeper.migrations.locking import Patience, configuration
from parkkeeper.namespace import Namespace

_SQL = statements("catalog")
_MAKE = statements("namespace")
_SLOTS = 16

_NEW_LABEL = re.compile(r"ALTER TYPE (\{schema\}\.\w+) ADD VALUE (?:IF NOT EXISTS )?('\w+');")


@contextmanager
def fresh(
    cursor: psycopg.Cursor[Any], namespace: Namespace, versions: Mapping[str, int], patience: Patience
) -> Iterator[Namespace]:
    """Make what `versions` make in a schema of its own, which is gone when the context is left.

    The ring gets as many slots as that of `namespace` has, which may have grown.
    """
    slots = _slots(cursor, namespace)
    scratch = Namespace(f"parkkeeper_verify_{one(cursor, 'backend', namespace, {})[0]}")
    # Not by raising Rollback: from a session that was lost meanwhile it would come out here.
    with cursor.connection.transaction(force_rollback=True):
        cursor.execute(_MAKE.render("configure", scratch), configuration(patience, slots, local=True))
        for name in ("create_schema", "create_ledger"):
            cursor.execute(_MAKE.render(name, scratch))
        for family, version in versions.items():
            for text in in_one_transaction(family, version):
                cursor.execute(text.replace("{schema}", scratch.identifier).encode())
        yield scratch


def in_one_transaction(family: str, version: int) -> list[str]:
    """Return the migrations of `family` up to `version` so that one transaction can run them all.

    A concurrent index is built like any other, on a table that nobody sees. The label that a migration adds to an enum
    is there from the beginning: Postgres lets nobody use it in the transaction that adds it.
    """
    texts = [
        migration.sql if migration.transaction else migration.sql.replace(" CONCURRENTLY", "", 1)
        for migration in packaged(family)
        if migration.version <= version
    ]
    added = [label for text in texts for label in _NEW_LABEL.findall(text)]
    texts = [_NEW_LABEL.sub("", text) for text in texts]
    for name, label in added:
        made = re.compile(rf"(CREATE TYPE {re.escape(name)} AS ENUM\s*\([^)]*?)(\s*\))")
        texts = [made.sub(rf"\g<1>, {label}\g<2>", text) for text in texts]
    return texts


def _slots(cursor: psycopg.Cursor[Any], namespace: Namespace) -> int:
    ring = {"ring": f"{namespace.identifier}.queue_ring_state"}
    exists = cursor.execute(_SQL.render("has_ring", namespace), ring).fetchone()
    found = cursor.execute(_SQL.render("slot_count", namespace)).fetchone() if exists and exists[0] else None
    return int(found[0]) if found else _SLOTS
