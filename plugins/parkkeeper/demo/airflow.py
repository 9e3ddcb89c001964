"""A real Airflow while a context lasts: a home and a metadata database of its own, nothing left behind.

The parts of ``airflow standalone`` are started side by side, which is up sooner than the command itself.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from psycopg import conninfo, sql

from parkkeeper import database, embedded
from parkkeeper.demo import leash
from parkkeeper.demo.client import AirflowClient, AirflowError, AirflowUnreachable, until

PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")
USER = "admin"
PASSWORD = "admin"

_STOP_TIMEOUT = leash.GRACE + 20
_PORTS = range(20_000, 30_000)


class AirflowStandalone:
    """API server, scheduler, DAG processor and triggerer on 127.0.0.1; a context manager that stops them all.

    Parameters
    ----------
    home
        Airflow's home, made if missing and kept: the metadata server's folder, logs, generated settings.
        The metadata database is made anew at each start. As root: user ``nobody`` must be able to enter it.
    dsn
        The database of the connection ``parkkeeper_default``.
    dags, plugins
        Airflow's folders of that name.
    settings
        What is to be set otherwise, by the name of Airflow's environment variable.

    Attributes
    ----------
    environment
        What the parts run with; the metadata database is in it once it is prepared.
    url
        Where the UI is.
    client
        Logged in once the context is entered.
    """

    def __init__(
        self, home: Path, *, dsn: str, dags: Path, plugins: Path, settings: Mapping[str, str] | None = None
    ) -> None:
        self.home = home.resolve()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = AirflowClient(self.url)
        self._logs = self.home / "parts"
        self.environment = {
            **_environment(self.home, self.port),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags.resolve()),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins.resolve()),
            "AIRFLOW_CONN_PARKKEEPER_DEFAULT": connection_json(dsn),
            **(settings or {}),
        }
        self._leash: subprocess.Popen[str] | None = None
        self._stack = ExitStack()
        self._stack.callback(self.client.close)

    def __enter__(self) -> Self:
        try:
            self.prepare()
            self.launch()
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def prepare(self) -> None:
        """Start the metadata server and make an empty metadata database; only the first time takes long.

        Raises
        ------
        AirflowError
            Airflow could not make its tables.
        EmbeddedPostgresError
            The metadata server did not start.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        # Of runs that the metadata database of an earlier start knew.
        shutil.rmtree(self.home / "logs", ignore_errors=True)
        self._logs.mkdir(exist_ok=True)
        (self.home / "passwords.json").write_text(json.dumps({USER: PASSWORD}), encoding="utf-8")
        # Losing the last moments of it in a crash of the machine is no harm: it is made anew at each start.
        server = embedded.start(self.home / "metadata", settings={"synchronous_commit": "off"})
        self._stack.callback(server.stop)
        release = importlib.metadata.version("apache-airflow-core").replace(".", "_")
        template, unfinished = f"airflow_{release}", f"airflow_{release}_unfinished"
        with database.connect(server.dsn) as connection:

            def run(statement: str, *names: str) -> None:
                connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

            found = connection.execute("SELECT FROM pg_database WHERE datname = %s", [template]).fetchone()
            if found is None:
                run("DROP DATABASE IF EXISTS {}", unfinished)
                run("CREATE DATABASE {}", unfinished)
                self._migrate(server.dsn, unfinished)
                run("ALTER DATABASE {} RENAME TO {}", unfinished, template)
            run("DROP DATABASE IF EXISTS airflow WITH (FORCE)")
            run("CREATE DATABASE airflow TEMPLATE {}", template)
        self.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = _sqlalchemy_url(server.dsn, "airflow")

    def launch(self, parts: Sequence[str] = PARTS) -> None:
        """Start Airflow's parts, or those of them that nobody else starts; return at once."""
        commands = [f"{part}={json.dumps(command(part))}" for part in parts]
        self._leash = subprocess.Popen(
            [sys.executable, leash.__file__, str(self._logs), *commands],
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_until_ready(
        self,
        say: Callable[[dict[str, str | None]], None] = lambda health: None,
        timeout: timedelta = timedelta(minutes=5),
    ) -> None:
        """Wait until all parts are healthy, then log in.

        Parameters
        ----------
        say
            Called with the components' health at each look.

        Raises
        ------
        AirflowError
            A part ended, or they are not all healthy after `timeout`; the message says which.
        """

        def look() -> dict[str, str | None]:
            self.check()
            # Whoever answers on the port may be another Airflow, which took it before this one could.
            ours = self._leash is not None and leash.listens(self._leash.pid, self.port)
            health = self.client.health() if ours else {}
            say(health)
            if health and not warm:
                try:
                    self.client.warm_up()
                except AirflowUnreachable:
                    return {}  # it takes longer than one answer may: the next look asks again
                warm.append(True)
            return health

        warm: list[bool] = []
        health = until(look, lambda found: set(found.values()) == {"healthy"}, timeout)
        if set(health.values()) != {"healthy"}:
            waiting = sorted(name for name, status in health.items() if status != "healthy") or ["API server"]
            raise AirflowError(
                f"Airflow's {', '.join(waiting)} not ready after {timeout.total_seconds():.0f} s: "
                f"see {self._logs}"
            )
        self.client.login(USER, PASSWORD)

    def check(self) -> None:
        """Raise :class:`AirflowError` if a part has ended, with the line of its log that tells most."""
        if self._leash is None or self._leash.poll() is None:
            return
        output = self._leash.stdout.read() if self._leash.stdout else ""
        line = (output.strip().splitlines() or [f"the leash ended with status {self._leash.returncode}"])[-1]
        log = self._logs / f"{line.split(' ')[0]}.log"
        reason = _telling_line(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else ""
        raise AirflowError(f"Airflow's {line}{f': {reason}' if reason else ''}; see {self._logs}")

    def stop(self) -> None:
        """End every process that was started, tasks too, and wait until they are gone. Twice is once."""
        with self._stack:
            running, self._leash = self._leash, None
            if running is None:
                return
            try:
                running.communicate("stop\n", timeout=_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                running.kill()
                running.communicate()
            # The leash ended them, unless somebody ended the leash.
            leash.end_session(running.pid, grace=0)

    def _migrate(self, server: str, name: str) -> None:
        log = self._logs / "migrate.log"
        environment = self.environment | {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": _sqlalchemy_url(server, name)
        }
        with open(log, "wb") as output:
            status = subprocess.run(
                command("db", "migrate"),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            ).returncode
        if status != 0:
            reason = _telling_line(log.read_text(encoding="utf-8", errors="replace"))
            raise AirflowError(f"airflow db migrate ended with status {status}: {reason}; see {log}")


def free_port() -> int:
    """Return a port that is free now, from a range that no system hands out for outgoing connections.

    Airflow takes it only many seconds later.
    """
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AirflowError(f"no free port was found on 127.0.0.1 from {_PORTS.start} on")


def connection_json(dsn: str) -> str:
    """Return a Postgres connection string as the JSON that Airflow reads connections from."""
    given = {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items()}
    connection = {
        "conn_type": "postgres",
        "host": given.pop("host", "localhost"),
        "port": int(given.pop("port", "5432")),
        "login": given.pop("user", None),
        "password": given.pop("password", None),
        "schema": given.pop("dbname", None),
        "extra": given,
    }
    return json.dumps(connection)


def _environment(home: Path, port: int) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    here = f"http://127.0.0.1:{port}"
    return inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": here,
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(64),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{here}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "NO_COLOR": "1",
        # Tasks call the API server of this machine: never through a proxy.
        "NO_PROXY": ",".join(filter(None, [inherited.get("NO_PROXY"), "127.0.0.1"])),
        "no_proxy": ",".join(filter(None, [inherited.get("no_proxy"), "127.0.0.1"])),
    }


def command(*arguments: str) -> list[str]:
    """Return how to run a command of Airflow's, with the Python that runs this."""
    # Logs are read from the files: a server for them would only take a well-known port.
    quiet = ["--skip-serve-logs"] if arguments[0] in ("scheduler", "triggerer") else []
    return [sys.executable, "-m", "airflow", *arguments, *quiet]


def _sqlalchemy_url(dsn: str, name: str) -> str:
    scheme, rest = dsn.split("://", 1)
    return f"{scheme}+psycopg://{rest.rsplit('/', 1)[0]}/{name}"


def _telling_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line]
    return (telling or lines or ["it said nothing"])[-1][:300]
