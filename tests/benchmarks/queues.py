"""Parkkeeper beside other queues and a plain table: the same work on one server, in turns, in several rounds."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from server import PEERS_PYTHON, empty_database, spoken

from parkkeeper import database

OURS = "parkkeeper"
#: The name of each queue, the module of ``peers`` that knows it, and the Python that has it.
QUEUES = {
    OURS: ("parkkeeper_queue", Path(sys.executable)),
    f"{OURS}, batch 10": ("parkkeeper_default", Path(sys.executable)),
    f"{OURS}, batch 1": ("parkkeeper_single", Path(sys.executable)),
    "pgqueuer": ("pgqueuer_queue", PEERS_PYTHON),
    "awa-pg": ("awa_pg", PEERS_PYTHON),
    "oban": ("oban_queue", PEERS_PYTHON),
    "procrastinate": ("procrastinate_queue", PEERS_PYTHON),
    "plain table": ("plain_table", Path(sys.executable)),
    "plain COPY": ("plain_copy", Path(sys.executable)),
}
#: Jobs a second while latency is measured, and for how many seconds.
RATE, STEADY = 200, 3
#: Longer than any of them needs for a round, in seconds.
PATIENCE = 120

#: Versions of rows that were left behind for a vacuum, by all sessions that have ended.
_LEFT_BEHIND = """
SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint
  FROM pg_stat_all_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
"""


@dataclass
class Rounds:
    """What one queue did: its settings, the figures of each round, and what went wrong, if anything did."""

    settings: str = ""
    trouble: str = ""
    figures: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, figure: float) -> None:
        """Take in the figure of a round."""
        self.figures.setdefault(name, []).append(figure)

    def hear(self, output: str) -> int:
        """Take in the lines that were printed, however far it came; return how many jobs were completed."""
        completed = 0
        for said in map(json.loads, output.splitlines()):
            self.settings = said.get("settings", self.settings)
            self.trouble = f"skipped: {said['skipped']}" if "skipped" in said else self.trouble
            completed = said.get("completed", completed)
            if "ms" in said:
                percentiles = quantiles(said["ms"], n=100)
                self.add("latency p50, ms", percentiles[49])
                self.add("latency p99, ms", percentiles[98])
            elif "work" in said:
                self.add(f"{said['work']}, jobs/s", said["jobs"] / said["seconds"])
                self.add(f"{said['work']}, bytes of WAL a job", said["wal"] / said["jobs"])
        return completed

    def medians(self) -> dict[str, Any]:
        """Return what is kept of it."""
        return {
            "settings": self.settings,
            "trouble": self.trouble,
            "median": {name: median(values) for name, values in self.figures.items()},
            "rounds": self.figures,
        }


def measure(dsn: str, jobs: int, rounds: int) -> dict[str, Any]:
    """Give each queue its share of `jobs`, one queue after the other, and that several times."""
    results = {name: Rounds() for name in QUEUES}
    for _ in range(rounds):
        for name, result in results.items():
            if not result.trouble:
                run(result, name, dsn, jobs)
    return {name: result.medians() for name, result in results.items()}


def run(result: Rounds, name: str, dsn: str, jobs: int) -> None:
    """Let one queue do a round in a database of its own; trouble costs only what comes after it."""
    with empty_database(dsn) as address:
        do(result, name, "install", address, jobs)
        before = left_behind(address)
        if completed := do(result, name, "complete", address, jobs):
            result.add("dead tuples a completed job", (left_behind(address) - before) / completed)
        do(result, name, "fail", address, jobs)


def do(result: Rounds, name: str, work: str, dsn: str, jobs: int) -> int:
    """Let a queue do one kind of work in a process of its own, unless it had trouble; return how many it completed."""
    if result.trouble:
        return 0
    module, python = QUEUES[name]
    program = ["peers", module, work, str(jobs), str(RATE), str(STEADY)]
    output, trouble = spoken(python, program, dsn, PATIENCE)
    completed = result.hear(output)
    result.trouble = result.trouble or trouble
    return completed


def left_behind(dsn: str) -> int:
    """Return how many versions of rows were left for a vacuum so far."""
    with database.connect(dsn) as connection:
        [left] = connection.execute(_LEFT_BEHIND).fetchone() or [0]
    return int(left)
