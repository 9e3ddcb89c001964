"""A family of migrations of the test's own, in real files, and what the catalog holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from parkkeeper import migrations
from parkkeeper.migrations import files

Connection = psycopg.Connection[Any]

_CATALOG = """
    SELECT 'relation' AS sort, n.nspname, c.relname, c.relkind::text,
           coalesce(pg_get_expr(c.relpartbound, c.oid), '')
           || coalesce(obj_description(c.oid, 'pg_class'), '')
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname !~ '^pg_(toast|temp)'
    UNION ALL
    SELECT 'column', n.nspname, c.relname || '.' || a.attname,
           format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END,
           coalesce(pg_get_expr(d.adbin, d.adrelid), '') || coalesce(col_description(c.oid, a.attnum), '')
      FROM pg_attribute AS a
      JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
      LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE a.attnum > 0 AND NOT a.attisdropped AND n.nspname !~ '^(pg_|information_schema)'
    UNION ALL
    SELECT 'constraint', n.nspname, c.relname || '.' || k.conname, k.contype::text,
           pg_get_constraintdef(k.oid)
      FROM pg_constraint AS k
      JOIN pg_class AS c ON c.oid = k.conrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname !~ '^(pg_|information_schema)'
    UNION ALL
    SELECT 'index', schemaname, indexname, tablename, indexdef
      FROM pg_indexes
     WHERE schemaname !~ '^(pg_|information_schema)'
    UNION ALL
    SELECT 'function', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid), md5(p.prosrc)
      FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
    UNION ALL
    SELECT 'type', n.nspname, t.typname, t.typtype::text,
           coalesce((SELECT string_agg(e.enumlabel, ',' ORDER BY e.enumsortorder)
                       FROM pg_enum AS e WHERE e.enumtypid = t.oid), '')
      FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace
     WHERE n.nspname !~ '^pg_(toast|temp)'
"""


@pytest.fixture
def catalog(connection: Connection) -> Callable[..., set[tuple[str, ...]]]:
    """Every object of the database; with `namespace` those inside it, with `outside` all others."""

    def read(namespace: str | None = None, outside: str | None = None) -> set[tuple[str, ...]]:
        rows = connection.execute(_CATALOG.encode()).fetchall()
        if namespace is not None:
            rows = [row for row in rows if row[1] == namespace]
        if outside is not None:
            # Namespaces of other tests come and go meanwhile.
            rows = [row for row in rows if row[1] != outside and not row[1].startswith("test_")]
        return {tuple(str(value).replace(namespace or outside or "", "N") for value in row) for row in rows}

    return read


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Let the package ship these files, and no others, as the queue family."""
    folder = tmp_path / "queue" / "migrations"
    folder.mkdir(parents=True)
    monkeypatch.setattr(files, "sql_root", lambda: tmp_path)

    def write(files: Mapping[str, str]) -> None:
        for path in folder.iterdir():
            path.unlink()
        for name, text in files.items():
            (folder / name).write_bytes(text.encode())
        migrations.packaged.cache_clear()

    yield write
    migrations.packaged.cache_clear()


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[], Any]], threading.Thread]]:
    """Start a thread that is joined, and must have ended, when the test does."""
    threads: list[threading.Thread] = []

    def start(work: Callable[[], Any]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def ledger(connection: Connection, namespace: str) -> Callable[[], list[int]]:
    """The versions that the namespace's ledger holds for the queue family."""
    statement = sql.SQL(
        "SELECT version FROM {}.schema_migration WHERE family = 'queue' ORDER BY version"
    ).format(sql.Identifier(namespace))
    return lambda: [version for (version,) in connection.execute(statement)]


@pytest.fixture
def exists(connection: Connection, namespace: str) -> Callable[[str], bool]:
    """Tell whether the namespace has a relation of that name."""

    def look(relation: str) -> bool:
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [f"{namespace}.{relation}"]).fetchone()
        return bool(row and row[0])

    return look
