"""What every test shares: one Postgres a session, one namespace a test, an Airflow home of its own.

A test that asks for `migrated`, or for what stands on it (`storage`, `store`), has a database of its own as well: its
`dsn`, and all sessions that are opened with it, lead there.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import time
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

from copies import NAMESPACE, Copies, new_name  # noqa: E402
from parkkeeper import database, embedded, migrations  # noqa: E402

Connection = psycopg.Connection[Any]

# Nothing here outlives the session, so nothing has to survive a crash of the machine.
_SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}

# Where Linux keeps files in memory, and how many bytes must be free there before a server goes there.
_MEMORY = Path("/dev/shm")
_ROOM = 4 << 30


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run one process more than cores, but one only on a given server: some tests look at its whole log and ids."""
    return 1 if os.environ.get("PARKKEEPER_DSN") else (os.cpu_count() or 1) + 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests say that they have covered, by ``record_property("covered", ...)``."""
    said = [
        str(value)
        for test in terminalreporter.getreports("passed")
        for name, value in test.user_properties
        if name == "covered"
    ]
    if said:
        terminalreporter.section("covered")
        for line in said:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def server_dsn() -> Iterator[str]:
    """The server of the session: PARKKEEPER_DSN, else our own (make test PG=15: with Debian's programs)."""
    bindir = os.environ.get("PARKKEEPER_TEST_BINDIR")
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            if _memory_has_room():
                patch.setattr(tempfile, "tempdir", str(_MEMORY))
            server = embedded.resolve_dsn(settings=_SETTINGS, bindir=Path(bindir) if bindir else None)
            dsn = stack.enter_context(server)
        yield dsn


def _memory_has_room() -> bool:
    """Whether there is a file system in memory that a server fits into, and that may hold its programs.

    Databases are made and dropped by the thousand here, each of some hundred files: on a disk that is most of the time.
    """
    if not _MEMORY.is_dir():
        return False
    found = os.statvfs(_MEMORY)
    return found.f_bavail * found.f_frsize >= _ROOM and not found.f_flag & os.ST_NOEXEC


@pytest.fixture(scope="session")
def copies(server_dsn: str) -> Iterator[Copies]:
    """Databases with families of migrations in them."""
    with Copies(server_dsn) as copies:
        yield copies


@pytest.fixture
def families() -> tuple[str, ...]:
    """The families that `migrated` has; a package or a module that needs fewer says so."""
    return migrations.FAMILIES


@pytest.fixture
def dsn(request: pytest.FixtureRequest, server_dsn: str) -> str:
    """The database of the test: a copy of its own when it asks for `migrated`, else the server's."""
    if "migrated" not in request.fixturenames:
        return server_dsn
    copies: Copies = request.getfixturevalue("copies")
    return copies.make(request.getfixturevalue("families"))


@pytest.fixture
def namespace(dsn: str, server_dsn: str) -> Iterator[str]:
    """A name for a schema of the test's own; unless the test asks for `migrated`, the schema does not exist yet."""
    if dsn != server_dsn:
        yield NAMESPACE
        return
    name = new_name()
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
def migrated(connection: Connection, namespace: str) -> str:
    """The test's namespace, which has `families`, and where it has a ring, one of four slots."""
    return namespace


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition holds, half a minute at most."""

    def wait(condition: Callable[[], bool]) -> None:
        never, end = threading.Event(), time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end, "the condition did not come to hold"
            never.wait(0.01)

    return wait
