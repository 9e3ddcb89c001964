"""How long it takes to import the package, and to read its DAG files beyond importing Airflow: ``make bench``."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 3

_TIMED = "import time; began = time.process_time(); {}; print(time.process_time() - began)"
_AIRFLOW = (
    "from airflow.sdk import DAG, DeadlineAlert, Param, Variable, task; "
    "from airflow.dag_processing.dagbag import DagBag; DagBag('/dev/null', load_op_links=False)"
)
_DRIVER = "import psycopg, psycopg.types.json; "
#: What is timed, in a process of its own each time, with what is not timed before it.
PARTS = {
    "the driver, psycopg": _TIMED.format("import psycopg, psycopg.types.json"),
    "queue and memory, beyond the driver": _DRIVER
    + _TIMED.format("import parkkeeper.queue, parkkeeper.memory"),
    "the command line, with the driver": _TIMED.format("import parkkeeper.cli"),
    "Airflow, and a look into a folder without DAGs": _TIMED.format(_AIRFLOW),
    "all DAG files, beyond Airflow": (
        _AIRFLOW + "; import airflow.timetables.interval, airflow.providers.standard.operators.hitl; "
    )
    + _TIMED.format(f"bag = DagBag({str(ROOT / 'dags')!r}, load_op_links=False)")
    + "; assert len(bag.dags) == 8 and not bag.import_errors",
}


def seconds(program: str, home: str) -> float:
    """Return what a program prints last: seconds of the processor, since other work of the machine is none of ours."""
    environment = os.environ | {
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Print a table of the medians."""
    table = Table("what", "ms", "from", "to")
    with tempfile.TemporaryDirectory() as home:
        for name, program in PARTS.items():
            found = sorted(seconds(program, home) * 1000 for _ in range(ROUNDS))
            table.add_row(name, *(f"{each:.0f}" for each in (statistics.median(found), found[0], found[-1])))
    load = os.getloadavg()[0]
    Console().print(table, f"Medians of {ROUNDS} processes each; load of the machine {load:.1f}", sep="\n")


if __name__ == "__main__":
    main()
