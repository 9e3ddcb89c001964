"""The server that is measured on: databases of one's own, what it runs on, and programs that are let loose on it."""

from __future__ import annotations

import os
import platform
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from psycopg import conninfo, sql

from parkkeeper import database

HERE = Path(__file__).resolve().parent
#: The environment that the peers are installed in, so that none of them is in anybody else's.
PEERS_PYTHON = HERE.parents[1] / ".venv-bench" / "bin" / "python"


@contextmanager
def empty_database(dsn: str) -> Iterator[str]:
    """Yield the address of a database of its own on the server, which is dropped afterwards."""
    name = f"bench_{uuid.uuid4().hex[:12]}"
    with database.connect(dsn) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield _address(dsn, name)
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _address(dsn: str, name: str) -> str:
    """Return the address of another database of the server, as a URL, since not every driver reads other forms."""
    given = {key: str(value) for key, value in conninfo.conninfo_to_dict(dsn).items() if key != "dbname"}
    return f"postgresql:///{name}?{urlencode(given)}"


def spoken(python: Path, program: list[str], dsn: str, patience: float) -> tuple[str, str]:
    """Run a module of the peers on a database; return what it said, and what went wrong with it."""
    if not python.exists():
        return "", f"skipped: there is no {python.parent.parent.name}"
    process = subprocess.Popen(
        [python, "-m", *program],
        cwd=HERE,
        env=os.environ | {"BENCH_DSN": dsn},  # Not among the arguments, which others can list.
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    trouble = ""
    try:
        output, errors = process.communicate(timeout=patience)
        if process.returncode:
            trouble = (errors.strip().splitlines() or [f"ended with {process.returncode}"])[-1]
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as stopped:
        process.kill()
        output, _ = process.communicate()
        if isinstance(stopped, KeyboardInterrupt):
            raise
        trouble = f"over {patience:g} s"
    return output, trouble


def machine(dsn: str) -> str:
    """Say what is measured on, and how busy that is now."""
    with database.connect(dsn) as connection:
        [version] = connection.execute("SELECT current_setting('server_version')").fetchone() or ["?"]
        [fsync] = connection.execute("SELECT current_setting('fsync')").fetchone() or ["?"]
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"Postgres {version} on the same machine with fsync {fsync}, load {load}"
    )
