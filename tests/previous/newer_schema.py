"""A pytest plugin for the previous release's tests: its code runs them, on namespaces that this release has migrated.

``make test-previous`` puts the previous release's packages first on the path, so that ``parkkeeper`` is that one here.
Only ``migrate`` is replaced, before any test has imported it: a process of this release's code does it. A call with a
target is about the previous release's own migrations and stays with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
from psycopg import conninfo

from parkkeeper import migrations

HERE = Path(__file__).resolve().parent
THIS_RELEASE = HERE.parents[1] / "plugins"

previously = migrations.migrate


class Migrator:
    """The process that migrates: a request a line, an answer a line; it ends when its input does."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, **request: object) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, HERE / "migrator.py", THIS_RELEASE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer == "done\n", f"this release's migrations failed: {answer}"


migrator = Migrator()


def migrate(
    connection: psycopg.Connection[Any],
    namespace: str,
    family: str,
    *,
    target: int | None = None,
    **options: Any,
) -> None:
    """Bring the namespace to what this release makes of it."""
    if target is not None:
        previously(connection, namespace, family, target=target, **options)
        return
    dsn = conninfo.make_conninfo(connection.info.dsn, password=connection.info.password)
    migrator(dsn=dsn, namespace=str(namespace), family=family, **options)


migrations.migrate = migrate


def pytest_report_header() -> str:
    """Say whose code runs on whose schema; a run on one's own would prove nothing."""
    code = Path(migrations.__file__).resolve()
    assert not code.is_relative_to(THIS_RELEASE), f"{code} is not the previous release's"
    return f"the code of {code.parents[2]} on the schema of {THIS_RELEASE.parent}"
