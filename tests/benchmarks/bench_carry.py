"""What it costs to keep failed jobs retryable, beside a queue that carries them round its ring: ``make bench``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from server import HERE, PEERS_PYTHON, empty_database, machine, spoken

from parkkeeper import database, embedded

#: The name of each queue, the module of ``peers`` that knows it, and the Python that has it.
QUEUES = {
    "parkkeeper, floor": ("parkkeeper_floor", Path(sys.executable)),
    "parkkeeper, live": ("parkkeeper_live", Path(sys.executable)),
    "awa-pg": ("awa_pg", PEERS_PYTHON),
}
MOST = 100_000
#: Jobs that come and are done each second, where there is traffic.
TRAFFIC = 200
#: Longer than any of them needs to let so many jobs fail, in seconds.
PATIENCE = 3_600
PLOT = HERE.parents[1] / "docs" / "images" / "carry.svg"

#: What was said of a queue that kept so many failed jobs, with or without traffic.
Kept = dict[str, Any]


def alone(dsn: str, seconds: float) -> int:
    """Return how many bytes of WAL the server writes while nobody is connected to it."""
    start = _position(dsn)
    time.sleep(seconds)
    return _position(dsn) - start


def _position(dsn: str) -> int:
    with database.connect(dsn) as connection:
        [position] = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone() or [0]
    return int(position)


def keep(dsn: str, name: str, failed: int, seconds: int) -> list[Kept]:
    """Let a queue keep `failed` jobs; return what it said of the first prune, of idling and of traffic."""
    module, python = QUEUES[name]
    program = ["peers.keeping", module, str(failed), str(seconds), str(TRAFFIC)]
    with empty_database(dsn) as address:
        output, trouble = spoken(python, program, address, PATIENCE)
    said = [json.loads(line) for line in output.splitlines()]
    trouble = next((f"skipped: {one['skipped']}" for one in said if "skipped" in one), trouble)
    if trouble:
        said = [one for one in said if "held" in one] + [{"held": "not measured", "trouble": trouble}]
    return [{"queue": name, "failed": failed, **one} for one in said]


def show(kept: list[Kept], unused: int, seconds: int) -> None:
    """Print what was measured."""
    written = Table(
        "queue", "failed jobs", "", "s", "rewrites a job", "WAL, kB", "pg_class updates", "ids taken"
    )
    written.title = f"What was written while failed jobs were kept; traffic: {TRAFFIC} jobs a second"
    locks = Table(
        "queue", "failed jobs", "", "prunes", "rows moved", "ms, median", "most", "exclusive ms", "most"
    )
    locks.add_column("lock wait, most")
    locks.title = "Prunes of the queue ring, as they tell it themselves"
    for table in (written, locks):
        table.title_justify = "left"
        for column in table.columns[3:]:
            column.justify = "right"
    for one in kept:
        names = (one["queue"], f"{one['failed']:,}", one.get("trouble", one["held"]))
        if "wal" in one:
            written.add_row(
                *names,
                f"{one['seconds']:.0f}",
                f"{one['rewritten'] / one['failed']:.2f}" if one["failed"] else "-",
                f"{one['wal'] / 1000:,.1f}",
                f"{one['pg_class']:,}",
                f"{one['xids']:,}",
            )
        elif "trouble" in one:
            written.add_row(*names)
        if prunes := one.get("prunes"):
            locks.add_row(*names, *_locks(prunes))
    written.add_row("nobody connected", "-", "-", str(seconds), "-", f"{unused / 1000:,.1f}", "-", "-")
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(written)
    console.print(locks)


def _locks(prunes: list[dict[str, float]]) -> list[str]:
    times = {name: [prune[name] for prune in prunes] for name in ("ms", "exclusive_ms", "lock_ms")}
    return [
        f"{len(prunes):,}",
        f"{sum(prune['moved'] for prune in prunes):,}",
        f"{median(times['ms']):,.0f}",
        f"{max(times['ms']):,.0f}",
        f"{median(times['exclusive_ms']):,.0f}",
        f"{max(times['exclusive_ms']):,.0f}",
        f"{max(times['lock_ms']):,.0f}",
    ]


def draw(kept: list[Kept]) -> None:
    """Write the plot of the documentation, with what only the environment of the peers has."""
    if not PEERS_PYTHON.exists():
        sys.stderr.write(f"no plot is drawn: there is no {PEERS_PYTHON.parent.parent.name}\n")
        return
    subprocess.run(
        [PEERS_PYTHON, "-m", "peers.plot", PLOT], cwd=HERE, input=json.dumps(kept), text=True, check=True
    )


def main(most: int = MOST) -> None:
    """Keep no failed job, a tenth of `most`, and `most`, idle and with traffic; a plot is drawn of a full run."""
    seconds = min(60, max(5, most // 1_000))
    kept: list[Kept] = []
    with embedded.resolve_dsn() as dsn:
        measured_on = machine(dsn)
        unused = alone(dsn, seconds)
        for failed in (0, most // 10, most):
            for name in QUEUES:
                kept += keep(dsn, name, failed, seconds)
        unused = max(unused, alone(dsn, seconds))
    show(kept, unused, seconds)
    Console().print(measured_on)
    if most == MOST:
        draw(kept)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
