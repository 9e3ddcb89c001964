"""The real command against the real database, and what the database holds before and after."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo, sql

from parkkeeper import cli
from parkkeeper.queue import QueueStorage

Connection = psycopg.Connection[Any]

#: The installed program, beside the interpreter of its environment.
PROGRAM = Path(sys.executable).with_name("parkkeeper")


@dataclass(frozen=True)
class Result:
    """What a command did: its exit code, and all that it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def failed(self, code: int) -> str:
        """Check that it failed with `code` and said one line, on stderr alone; return the line."""
        assert self.code == code, (self.code, self.out, self.err)
        assert self.out == ""
        assert self.err.startswith("parkkeeper: error: ")
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1
        assert "Traceback" not in self.err
        return self.err.removeprefix("parkkeeper: error: ").rstrip("\n")


Run = Callable[..., Result]


@pytest.fixture
def forgotten_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a command import modules of the test's own, which no later test finds in their place."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def run(
    dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, forgotten_modules: None
) -> Run:
    """Run one command in this process, with PARKKEEPER_DSN set."""
    monkeypatch.setenv("PARKKEEPER_DSN", dsn)
    monkeypatch.setenv("TERM", "dumb")
    password = conninfo.conninfo_to_dict(dsn).get("password")

    def run_command(*arguments: object, stdin: str | bytes = b"") -> Result:
        capsys.readouterr()
        given = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        code = cli.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        if password:
            assert str(password) not in printed.out + printed.err
        return Result(code, printed.out, printed.err)

    return run_command


@pytest.fixture
def spawn(dsn: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start the installed program in a process of its own, which does not outlive the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        command = [str(PROGRAM), *[str(argument) for argument in arguments]]
        started.append(subprocess.Popen(command, env=os.environ | {"PARKKEEPER_DSN": dsn}, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def finish() -> Callable[..., Result]:
    """Wait for a process to end, and return what it did."""

    def wait(process: subprocess.Popen[bytes], stdin: bytes | None = None) -> Result:
        out, err = process.communicate(stdin, timeout=30)
        return Result(process.returncode, (out or b"").decode(), (err or b"").decode())

    return wait


@pytest.fixture
def families(request: pytest.FixtureRequest) -> tuple[str, ...]:
    asking = {"queue": "jobs", "memory": "support"}
    return tuple(family for family, fixture in asking.items() if fixture in request.fixturenames)


@pytest.fixture
def jobs(migrated: str) -> str:
    """A namespace with the queue family, in a ring of four slots."""
    return migrated


@pytest.fixture
def support(migrated: str) -> str:
    """A namespace with the memory family."""
    return migrated


@pytest.fixture
def content(connection: Connection, namespace: str) -> Callable[[], dict[str, Any]]:
    """For each table of the namespace how many rows it has and a digest of them; for each sequence where it is."""

    def read() -> dict[str, Any]:
        found: dict[str, Any] = dict(
            connection.execute(
                "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = %s", [namespace]
            ).fetchall()
        )
        tables = (
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'p')"
        )
        for (table,) in connection.execute(tables, [namespace]).fetchall():
            digest = sql.SQL("SELECT count(*), md5(string_agg(t::text, '' ORDER BY t::text)) FROM {} AS t")
            found[table] = connection.execute(digest.format(sql.Identifier(namespace, table))).fetchone()
        return found

    return read


@pytest.fixture
def enqueue(run, jobs: str):
    """Enqueue with the command, and return the ids."""

    def add(*arguments: object, kind: str = "welcome", **options: Any) -> list[int]:
        done = run(
            "queue", "enqueue", "-n", jobs, "-q", "mail", "--kind", kind, *arguments, "--json", **options
        )
        assert done.code == 0, done.err
        assert list(done.json) == ["enqueued", "job_ids"]
        assert done.json["enqueued"] == len(done.json["job_ids"])
        return done.json["job_ids"]

    return add


@pytest.fixture
def failed(jobs: str, connection, enqueue) -> list[int]:
    """Three failed jobs of queue mail, one of each of three kinds."""
    storage = QueueStorage(connection, jobs)
    ids = [enqueue("--max-attempts", 1, kind=kind)[0] for kind in ("welcome", "goodbye", "news")]
    for claim in storage.claim("mail", 10):
        assert storage.fail(claim, "rosebud") == "failed"
    return ids
