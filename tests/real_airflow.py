"""A real Airflow for tests: a scheduler and all that belongs to it, with DAG files of the kind that a site writes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from parkkeeper.demo.airflow import AirflowStandalone

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"
PATIENCE = timedelta(minutes=10)  # a busy machine takes ten times what an idle one does and more

# No file changes while a test runs: to read them all again every half minute would only take time from the tasks.
SETTINGS = {"AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600"}


@contextmanager
def prepared(
    dsn: str, files: Mapping[str, str], settings: Mapping[str, str] | None = None
) -> Iterator[AirflowStandalone]:
    """Make an Airflow with DAG files, by name, in a folder that goes with it; the test launches it."""
    folder = Path(tempfile.mkdtemp(prefix="parkkeeper-test-"))
    try:
        folder.chmod(0o755)  # the metadata server may have to run as another user
        dags = folder / "dags"
        dags.mkdir()
        for name, text in files.items():
            (dags / f"{name}.py").write_text(text, encoding="utf-8")
        airflow = AirflowStandalone(
            folder / "home", dsn=dsn, dags=dags, plugins=PLUGINS, settings={**SETTINGS, **(settings or {})}
        )
        try:
            airflow.prepare()
            yield airflow
        finally:
            airflow.stop()
    finally:
        shutil.rmtree(folder)


def site_file(dag_id: str, **given: object) -> str:
    """Return what a site writes for one of the package's DAGs: three lines."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return f"# An Airflow DAG.\nfrom parkkeeper.dags import {dag_id}\n\ndag = {dag_id}({arguments})\n"
