"""The oldest Postgres that is supported, from Debian's package."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from parkkeeper import embedded

pytestmark = pytest.mark.system


def test_programs_of_postgres_15_serve_utf8_with_a_real_ctype() -> None:
    bindir = Path("/usr/lib/postgresql/15/bin")
    with embedded.start(bindir=bindir) as server, psycopg.connect(server.dsn) as connection:
        row = connection.execute(
            """
            SELECT current_setting('server_version_num')::int / 10000, lower('ЖУК'),
                   to_tsvector('simple', 'ПРИВЕТ')::text
            """
        ).fetchone()
        assert row == (15, "жук", "'привет':1")
