"""What a task of Parkkeeper's costs over one that does nothing, through Airflow's own task runner: ``make bench``."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from server import HERE, empty_database, machine

from parkkeeper import database, embedded, migrations
from parkkeeper.demo.airflow import connection_json

SPACE = "bench"
ROUNDS = 9


def tasks() -> dict[str, Callable[[], Any]]:
    """Return what makes each task, by name; Airflow is imported here, when its home is known."""
    from airflow.sdk import BaseOperator

    from parkkeeper import operators

    class Nothing(BaseOperator):
        def execute(self, context: Any) -> None:
            return None

    return {
        "a task that does nothing": lambda: Nothing(task_id="nothing"),
        "rotate, idle": lambda: operators.RotateRingOperator(task_id="rotate", namespace=SPACE),
        "prune, nothing to do": lambda: operators.PruneWithCarryOperator(task_id="prune", namespace=SPACE),
        "form, nothing to do": lambda: operators.FormationBatchOperator(
            task_id="form", namespace=SPACE, extractor="chunks"
        ),
        "freshness": lambda: operators.FreshnessOperator(task_id="freshness", namespace=SPACE),
    }


def measure() -> dict[str, list[float]]:
    """Run each task several times, in turns; return the milliseconds of each run."""
    sys.path.insert(0, str(HERE.parent))
    from airflow_env import run_task

    made = tasks()
    taken: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(1 + ROUNDS):
        for name, make in made.items():
            began = time.perf_counter()
            ran = run_task(make)
            taken[name].append((time.perf_counter() - began) * 1000)
            if ran.state != "success":
                raise RuntimeError(f"{name}: {ran.state}") from ran.error
    return {name: times[1:] for name, times in taken.items()}  # The first one imports.


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as home, embedded.resolve_dsn() as dsn, empty_database(dsn) as address:
        os.environ |= {
            "AIRFLOW_HOME": home,
            "AIRFLOW__CORE__DAGS_FOLDER": str(Path(home) / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "AIRFLOW_CONN_PARKKEEPER_DEFAULT": connection_json(address),
        }
        with database.connect(address) as connection:
            for family in migrations.FAMILIES:
                migrations.migrate(connection, SPACE, family)
        taken = measure()
        measured_on = machine(dsn)
    nothing = median(taken["a task that does nothing"])
    table = Table("task", "median ms", "over a task that does nothing", title_justify="left")
    for name, times in taken.items():
        table.add_row(name, f"{median(times):.0f}", f"{median(times) - nothing:.0f}")
    Console().print(table)
    Console().print(measured_on)


if __name__ == "__main__":
    main()
