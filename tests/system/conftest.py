"""Debian's pgbouncer, which hands out transactions."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

Connection = psycopg.Connection[Any]

PGBOUNCER = "/usr/sbin/pgbouncer"

# Each transaction of a client goes to the session that rested longest, so hardly ever to the one before.
CONFIGURATION = """
[databases]
* = host={host} port={port}
[pgbouncer]
pool_mode = transaction
server_round_robin = 1
min_pool_size = 3
default_pool_size = 6
listen_addr =
unix_socket_dir = {directory}
auth_type = scram-sha-256
auth_file = {directory}/users
logfile = {directory}/log
"""


@pytest.fixture(scope="session")
def pooler(server_dsn: str) -> Iterator[Path]:
    """The socket's folder of a pooler before the session's server; it ends with this process, however that ends."""
    server = conninfo.conninfo_to_dict(server_dsn)
    directory = Path(tempfile.mkdtemp(prefix="parkkeeper-pgbouncer-"))
    (directory / "users").write_text(f'"{server["user"]}" "{server["password"]}"\n', encoding="utf-8")
    ini = directory / "pgbouncer.ini"
    ini.write_text(
        CONFIGURATION.format(host=server["host"], port=server["port"], directory=directory), encoding="utf-8"
    )
    account = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
    if account:
        for path in (directory, *directory.iterdir()):
            shutil.chown(path, account)
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", PGBOUNCER, "-q", ini],
        user=account,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield directory
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(directory)


@pytest.fixture
def pooled_dsn(pooler: Path, dsn: str) -> str:
    """How to reach the test's database through the pooler."""
    return conninfo.make_conninfo(dsn, host=str(pooler), port="6432")


@pytest.fixture
def pooled(pooled_dsn: str, until: Callable[[Callable[[], bool]], None]) -> Iterator[Connection]:
    """A client of the pooler whose statements have been seen to go to several sessions of the server."""
    clients: list[Connection] = []

    def reached() -> bool:
        try:
            clients.append(psycopg.connect(pooled_dsn, autocommit=True, prepare_threshold=None))
        except psycopg.OperationalError:
            return False
        return True

    until(reached)
    seen: set[int] = set()
    with clients[0] as client:

        def changed() -> bool:
            seen.update(client.execute("SELECT pg_backend_pid()").fetchone() or ())
            return len(seen) > 1

        until(changed)
        yield client
