"""What the benchmarks share: a server, a namespace that is dropped, and a table of what was measured."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from rich.console import Console
from rich.table import Table

from parkkeeper import database, embedded, migrations


class Measurements:
    """Times pieces of work by the wall clock and keeps their rates for the table."""

    def __init__(self, title: str) -> None:
        self._table = Table("work", "items", "seconds", "items a second", title=title, title_justify="left")
        for column in self._table.columns[1:]:
            column.justify = "right"

    def take(self, work: str, items: int, action: Callable[[], object]) -> None:
        """Run `action`, which does `items` pieces of `work`."""
        began = time.perf_counter()
        action()
        seconds = time.perf_counter() - began
        self._table.add_row(work, f"{items:,}", f"{seconds:.3f}", f"{items / seconds:,.0f}")

    def show(self) -> None:
        """Print the table."""
        Console().print(self._table)


@contextmanager
def bench_namespace(family: str) -> Iterator[tuple[psycopg.Connection[Any], str]]:
    """Yield a session and a namespace with the family's newest tables, on PARKKEEPER_DSN or an embedded server."""
    namespace = f"bench_{uuid.uuid4().hex[:12]}"
    with embedded.resolve_dsn() as dsn, database.connect(dsn) as connection:
        migrations.migrate(connection, namespace, family)
        try:
            yield connection, namespace
        finally:
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(namespace)))
