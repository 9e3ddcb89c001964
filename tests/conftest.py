"""What every test shares: one Postgres a session, one namespace a test, an Airflow home of its own."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

# Airflow reads its configuration when it is first imported, so its home is set before any test module is.
ROOT = Path(__file__).resolve().parents[1]
AIRFLOW_HOME = tempfile.mkdtemp(prefix="parkkeeper-airflow-")
atexit.register(shutil.rmtree, AIRFLOW_HOME, ignore_errors=True)
for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
    del os.environ[name]
os.environ |= {
    "AIRFLOW_HOME": AIRFLOW_HOME,
    "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
}

import psycopg  # noqa: E402
import pytest  # noqa: E402
from psycopg import sql  # noqa: E402

from parkkeeper import database, embedded  # noqa: E402

Connection = psycopg.Connection[Any]

# Nothing here outlives the session, so nothing has to survive a crash of the machine.
_SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run one process only on a server that was given: some tests look at the whole server's log and ids."""
    return 1 if os.environ.get("PARKKEEPER_DSN") else None


@pytest.fixture(scope="session")
def dsn() -> Iterator[str]:
    """The server of the session: PARKKEEPER_DSN, else our own (make test PG=15: with Debian's programs)."""
    bindir = os.environ.get("PARKKEEPER_TEST_BINDIR")
    with embedded.resolve_dsn(settings=_SETTINGS, bindir=Path(bindir) if bindir else None) as resolved:
        yield resolved


@pytest.fixture
def namespace(dsn: str) -> Iterator[str]:
    """A name for a schema of the test's own, which does not exist yet and is dropped afterwards."""
    name = f"test_{uuid.uuid4().hex[:16]}"
    yield name
    with database.connect(dsn) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


@pytest.fixture
def connect(dsn: str, namespace: str) -> Iterator[Callable[..., Connection]]:
    """Open further sessions, all closed before the namespace is dropped."""
    with ExitStack() as stack:

        def open_session(**options: Any) -> Connection:
            connection = database.connect(dsn, **options)
            stack.callback(connection.close)
            return connection

        yield open_session


@pytest.fixture
def connection(connect: Callable[..., Connection]) -> Connection:
    """One session in autocommit mode."""
    return connect()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition holds, half a minute at most."""

    def wait(condition: Callable[[], bool]) -> None:
        never, end = threading.Event(), time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end, "the condition did not come to hold"
            never.wait(0.01)

    return wait
