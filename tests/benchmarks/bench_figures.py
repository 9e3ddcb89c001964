"""Measures the figures of the page on benchmarks and writes them there: ``make bench-figures``."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import growth
import pace
import prune
import queues
import report
from server import machine

from parkkeeper import embedded

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "reference" / "benchmarks.json"
#: Jobs for the fastest of the queues, and how often each comes.
JOBS, ROUNDS = 40_000, 3
#: Jobs and turns of a short past, for each one of a long past.
GROWTH = 100


def measure(dsn: str, jobs: int, rounds: int) -> dict[str, Any]:
    """Measure everything, sized by how many jobs the fastest queue is given."""
    short = jobs // 4
    return {
        "taken": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(dsn),
        "jobs": jobs,
        "rounds": rounds,
        "queues": queues.measure(dsn, jobs, rounds),
        "growth": growth.measure(dsn, (short, short * GROWTH)),
        "prune": prune.measure(dsn, (short, short * 10), rounds),
        "memory": pace.memory(dsn, short // 4, rounds),
        "starts": pace.starts(rounds),
        "load after": [round(load, 1) for load in os.getloadavg()],
    }


def main(jobs: int = JOBS, rounds: int = ROUNDS) -> None:
    """Measure, and write the results, the page and the plots."""
    with embedded.resolve_dsn() as dsn:
        results = measure(dsn, jobs, rounds)
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    report.main()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
