"""Parkkeeper beside other queues on Postgres, on one server in one run: ``make bench``."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from psycopg import conninfo, sql
from rich.console import Console
from rich.table import Table

from parkkeeper import database, embedded

HERE = Path(__file__).resolve().parent
#: The environment that the peers are installed in, so that none of them is in anybody else's.
PEERS_PYTHON = HERE.parents[1] / ".venv-bench" / "bin" / "python"
WORKS = ("enqueue", "drain", "drain failing")
OURS = "parkkeeper"
#: The name of each queue, the module of ``peers`` that knows it, and the Python that has it.
QUEUES = {
    OURS: ("parkkeeper_queue", Path(sys.executable)),
    f"{OURS}, small batches": ("parkkeeper_default", Path(sys.executable)),
    "awa-pg": ("awa_pg", PEERS_PYTHON),
    "procrastinate": ("procrastinate_queue", PEERS_PYTHON),
    "pgqueuer": ("pgqueuer_queue", PEERS_PYTHON),
    "oban": ("oban_queue", PEERS_PYTHON),
}
#: Each queue comes this often, in turns, and its best time counts: other work on the machine hits all alike.
ROUNDS = 3
#: Longer than any of them needs for a round, in seconds.
PATIENCE = 300


class Run:
    """What one queue said: its settings, seconds for each piece of work, and what went wrong, if anything did."""

    def __init__(self) -> None:
        self.settings = ""
        self.seconds: dict[str, float] = {}
        self.trouble = ""

    def hear(self, output: str) -> None:
        """Take in the lines that were printed, however far it came."""
        for line in output.splitlines():
            said = json.loads(line)
            if "work" in said:
                best = self.seconds.get(said["work"], said["seconds"])
                self.seconds[said["work"]] = min(best, said["seconds"])
            self.settings = said.get("settings", self.settings)
            self.trouble = f"skipped: {said['skipped']}" if "skipped" in said else self.trouble


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


def run(result: Run, module: str, python: Path, dsn: str, jobs: int) -> None:
    """Let one queue do a round in a process of its own; trouble of any kind costs only what comes after it."""
    output, result.trouble = spoken(python, ["peers", module, str(jobs)], dsn, PATIENCE)
    result.hear(output)


def spoken(python: Path, program: list[str], dsn: str, patience: float) -> tuple[str, str]:
    """Run a module of the peers on a database of its own; return what it said, and what went wrong with it."""
    if not python.exists():
        return "", f"skipped: there is no {python.parent.parent.name}"
    with empty_database(dsn) as address:
        process = subprocess.Popen(
            [python, "-m", *program],
            cwd=HERE,
            env=os.environ | {"BENCH_DSN": address},  # Not among the arguments, which others can list.
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
            output, errors = process.communicate()
            trouble = (
                f"over {patience:g} s" if isinstance(stopped, subprocess.TimeoutExpired) else "interrupted"
            )
    return output, trouble


def show(results: dict[str, Run], jobs: int) -> None:
    """Print what was measured, each peer's rate with how many times as fast ours is."""
    table = Table("queue", *(f"{work}, jobs/s" for work in WORKS), "how", title_justify="left")
    table.title = (
        f"Queues on Postgres, {jobs:,} jobs, handlers that do nothing or fail, best of {ROUNDS} rounds"
    )
    for column in table.columns[1:-1]:
        column.justify = "right"
    ours = results[OURS].seconds
    for name, result in results.items():
        cells = []
        for work in WORKS:
            seconds = result.seconds.get(work)
            ratio = f" ({seconds / ours[work]:.1f}x)" if seconds and name != OURS and work in ours else ""
            cells.append(f"{jobs / seconds:,.0f}{ratio}" if seconds else "-")
        table.add_row(name, *cells, "; ".join(filter(None, [result.settings, result.trouble])))
    console = Console()
    console.print(table)
    console.print(
        "(2.0x): Parkkeeper did that work twice as fast. Each promises something else: see the page on benchmarks."
    )


def main(jobs: int = 3_000) -> None:
    """Give each queue `jobs` jobs for each piece of work, one queue after the other, and that several times."""
    results = {name: Run() for name in QUEUES}
    with embedded.resolve_dsn() as dsn:
        measured_on = machine(dsn)
        for name, (module, python) in ROUNDS * list(QUEUES.items()):
            if not results[name].trouble:
                run(results[name], module, python, dsn, jobs)
    show(results, jobs)
    Console().print(measured_on)


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


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
