"""A program that reads the DAG files with no database and no network in reach, and says as JSON what it found.

Then it imports what else Airflow imports of the package; a warning that is attributed to any of it is said too.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

from airflow.dag_processing.dagbag import DagBag

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    attempts: list[str] = []

    def refuse(self: socket.socket, address: Any) -> NoReturn:
        attempts.append(str(address))
        raise OSError("this test has no network")

    socket.socket.connect = refuse  # type: ignore[method-assign, assignment]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bag = DagBag(dag_folder=ROOT / "dags", load_op_links=False)
        hook, web = "parkkeeper.hooks" in sys.modules, "fastapi" in sys.modules
        for name in ("hooks", "plugin", "provider", "ui"):
            importlib.import_module(f"parkkeeper.{name}")
    ours = [
        str(w.message) for w in caught if Path(w.filename).is_relative_to(ROOT) and ".venv" not in w.filename
    ]
    deprecated = [
        str(w.message) for w in caught if w.category.__name__.startswith(("RemovedIn", "AirflowProviderDep"))
    ]
    found = {
        "dags": sorted(bag.dags),
        "errors": bag.import_errors,
        "warnings": ours + deprecated,
        "attempts": attempts,
        "hook": hook,
        "web": web,
    }
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
