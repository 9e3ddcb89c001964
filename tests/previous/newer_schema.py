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


class ThisRelease:
    """The process that has this release's code: a request a line, an answer a line; it ends when its input does."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, connection: psycopg.Connection[Any], action: str, **request: object) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, HERE / "migrator.py", THIS_RELEASE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        dsn = conninfo.make_conninfo(connection.info.dsn, password=connection.info.password)
        self._process.stdin.write(json.dumps({"dsn": dsn, "action": action, **request}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer == "done\n", f"{action} by this release: {answer}"


this_release = ThisRelease()


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
    else:
        this_release(connection, "migrate", namespace=str(namespace), family=family, **options)


def verify(connection: psycopg.Connection[Any], namespace: str) -> None:
    """Compare the namespace with a fresh install of this release; what differs fails the test."""
    this_release(connection, "verify", namespace=namespace)


migrations.migrate = migrate


def pytest_report_header() -> str:
    """Say whose code runs on whose schema; a run on one's own would prove nothing."""
    code = Path(migrations.__file__).resolve()
    assert not code.is_relative_to(THIS_RELEASE), f"{code} is not the previous release's"
    return f"the code of {code.parents[2]} on the schema of {THIS_RELEASE.parent}"
