"""The distribution: what the wheel holds, and that it works away from the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from parkkeeper import migrations
from parkkeeper.demo.airflow import connection_json
from parkkeeper.provider import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
UV = (sys.executable, "-m", "uv", "--quiet")

# Prints where the package is, how often the plugin is registered, which DAGs there are, and what Airflow would show as
# import errors. Airflow comes first: it is what puts its plugins folder on the path.
PROBE = """
from airflow import plugins_manager
from airflow.dag_processing.dagbag import DagBag
import json, parkkeeper
names = [plugin.name for plugin in plugins_manager._get_plugins()[0]]
bag = DagBag(load_op_links=False)
print(json.dumps({
    "file": parkkeeper.__file__,
    "registered": names.count("parkkeeper"),
    "errors": plugins_manager.get_import_errors() | bag.import_errors,
    "dags": sorted(bag.dags),
}))
"""

# How the page about Astro projects begins its DAG file; the block ends where its explanation begins.
DAG_FILE = "    # dags/parkkeeper.py\n"


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command to its end and return what it printed; a failure shows all of it."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command[0]} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made by way of the source distribution from a copy of the checkout."""
    copy, made = tmp_path_factory.mktemp("checkout") / "copy", tmp_path_factory.mktemp("dist")
    ignored = shutil.ignore_patterns(".git", ".venv", ".demo", "*cache*", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
    run(sys.executable, "-m", "build", "--installer", "uv", "--outdir", made, copy, cwd=made)
    (built,) = made.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel and what it asks for, and nothing of the checkout."""
    path = tmp_path_factory.mktemp("environment") / "venv"
    run(*UV, "venv", "--python", sys.executable, path, cwd=path.parent)
    run(
        *UV, "pip", "install", "--python", path / "bin" / "python", "--constraints",
        ROOT / "requirements-dev.txt", wheel, cwd=path.parent,
    )  # fmt: skip
    return path


def settings(home: Path, plugins: Path) -> dict[str, str]:
    """Return the environment of an Airflow with a home, and so with DAGs, of its own."""
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins),
    }


def registered_once(
    python: Path | str, home: Path, plugins: Path, *, cwd: Path | None = None, dags: tuple[str, ...] = ()
) -> Path:
    """Check that Airflow with this plugins folder knows the plugin once, and `dags`; return where the package is."""
    printed = run(python, "-c", PROBE, cwd=cwd or home, **settings(home, plugins))
    answer = json.loads(printed.splitlines()[-1])
    assert (answer["registered"], answer["errors"], answer["dags"]) == (1, {}, list(dags))
    return Path(answer["file"])


def documented_dag_file() -> str:
    """Return the DAG file that the guide tells a project to have."""
    guide = (ROOT / "docs" / "how-to" / "install-airflow.md").read_text()
    block = guide.split(DAG_FILE)[1].split("\n\nThe line in quotes")[0]
    return textwrap.dedent(block) + "\n"


def test_the_wheel_holds_the_package_and_all_the_sql(wheel: Path) -> None:
    package, sql = ROOT / "plugins" / "parkkeeper", ROOT / "include" / "sql"
    expected = {
        *(f"parkkeeper/{path.relative_to(package)}" for path in package.rglob("*") if path.is_file()),
        *(f"parkkeeper/_sql/{path.relative_to(sql)}" for path in sql.rglob("*.sql")),
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == {name for name in expected if "__pycache__" not in name}
    assert any(name.endswith("0032_failed_terminal_retention.sql") for name in held)


def test_a_migration_runs_from_the_wheel(
    environment: Path, tmp_path: Path, dsn: str, namespace: str, connection: Any
) -> None:
    command = environment / "bin" / "parkkeeper"
    for family in ("queue", "memory"):
        arguments = ("migrate", "--family", family, "--namespace", namespace)
        run(command, *arguments, cwd=tmp_path, PARKKEEPER_DSN=dsn)
    rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [namespace]).fetchall()
    tables = {name for (name,) in rows}
    assert {"schema_migration", "queue_ring_state", "done_entries", "observation"} <= tables


@pytest.mark.system
def test_an_airflow_that_holds_the_wheel_runs_a_dag_of_a_folder_of_its_own(
    environment: Path, tmp_path: Path, dsn: str, namespace: str, connection: Any
) -> None:
    binaries, plugins, dags = environment / "bin", tmp_path / "plugins", tmp_path / "dags"
    dags.mkdir()
    file = dags / "parkkeeper.py"
    file.write_text(documented_dag_file())
    known = ("parkkeeper_migrate", "parkkeeper_queue_maintenance")
    package = registered_once(binaries / "python", tmp_path, plugins, dags=known)
    assert package.is_relative_to(environment)

    # `airflow dags test` of Airflow 3.3 cannot run a DAG with a deadline (apache/airflow#73428).
    file.write_text(file.read_text() + "migrate.deadline = None\n")
    airflow = settings(tmp_path, plugins) | {"AIRFLOW_CONN_PARKKEEPER_DEFAULT": connection_json(dsn)}
    run(binaries / "airflow", "db", "migrate", cwd=tmp_path, **airflow)
    conf = json.dumps({"namespace": namespace, "queue_slots": 5})
    run(
        binaries / "airflow", "dags", "test", "parkkeeper_migrate", "--conf", conf, cwd=tmp_path, **airflow
    )  # fmt: skip
    for family in migrations.FAMILIES:
        migrations.require(connection, namespace, family)
    slots = sql.SQL("SELECT slot_count FROM {}").format(sql.Identifier(namespace, "queue_ring_state"))
    assert connection.execute(slots).fetchone() == (5,)


def test_the_wheel_beside_a_checkout_registers_the_plugin_once(environment: Path, tmp_path: Path) -> None:
    registered_once(environment / "bin" / "python", tmp_path, ROOT / "plugins")


def test_an_editable_install_registers_the_plugin_once(tmp_path: Path) -> None:
    # From the top of the checkout, which `python -c` puts on the path with all the metadata in it.
    package = registered_once(sys.executable, tmp_path, ROOT / "plugins", cwd=ROOT)
    assert package.is_relative_to(ROOT / "plugins")


def test_airflow_tells_all_about_the_provider_of_the_wheel(environment: Path, tmp_path: Path) -> None:
    printed = run(
        *(environment / "bin" / "airflow", "providers", "get", "airflow-provider-parkkeeper"),
        *("--full", "--output", "json"),
        cwd=tmp_path,
        **settings(tmp_path, tmp_path / "plugins"),
    )  # fmt: skip
    (told,) = json.loads(printed[printed.index("[") :])
    assert told["package-name"] == "airflow-provider-parkkeeper"
    (connection_type,) = told["connection-types"]
    assert (connection_type["connection-type"], list(connection_type["conn-fields"])) == (
        "parkkeeper",
        ["sslmode"],
    )
    assert set(told["config"]["parkkeeper"]["options"]) == set(OPTIONS)
    assert told["extra-links"] == ["parkkeeper.operators.links.NamespaceLink"]


def test_a_checkout_that_is_not_installed_registers_the_plugin_once(
    environment: Path, wheel: Path, tmp_path: Path
) -> None:
    python = environment / "bin" / "python"
    run(*UV, "pip", "uninstall", "--python", python, "airflow-provider-parkkeeper", cwd=tmp_path)
    try:
        package = registered_once(python, tmp_path, ROOT / "plugins")
    finally:
        run(*UV, "pip", "install", "--python", python, "--no-deps", wheel, cwd=tmp_path)
    assert package.is_relative_to(ROOT / "plugins")
