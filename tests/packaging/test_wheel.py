"""The distribution: what the wheel holds, and that it works away from the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = (sys.executable, "-m", "uv", "--quiet")

# Prints where the package is, how often the plugin is registered, and what Airflow would show as an import
# error. Airflow comes first: it is what puts its plugins folder on the path.
PROBE = """
from airflow import plugins_manager
import json, parkkeeper
names = [plugin.name for plugin in plugins_manager._get_plugins()[0]]
errors = plugins_manager.get_import_errors()
print(json.dumps({"file": parkkeeper.__file__, "registered": names.count("parkkeeper"), "errors": errors}))
"""


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


def registered_once(python: Path | str, home: Path, plugins: Path, *, cwd: Path | None = None) -> Path:
    """Check that Airflow with this plugins folder knows the plugin once; return where the package is."""
    environment = {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins)}
    printed = run(python, "-c", PROBE, cwd=cwd or home, **environment)
    answer = json.loads(printed.splitlines()[-1])
    assert (answer["registered"], answer["errors"]) == (1, {})
    return Path(answer["file"])


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


def test_the_wheel_registers_the_plugin_once(environment: Path, tmp_path: Path) -> None:
    package = registered_once(environment / "bin" / "python", tmp_path, tmp_path / "plugins")
    assert package.is_relative_to(environment)


def test_the_wheel_beside_a_checkout_registers_the_plugin_once(environment: Path, tmp_path: Path) -> None:
    registered_once(environment / "bin" / "python", tmp_path, ROOT / "plugins")


def test_an_editable_install_registers_the_plugin_once(tmp_path: Path) -> None:
    # From the top of the checkout, which `python -c` puts on the path with all the metadata in it.
    package = registered_once(sys.executable, tmp_path, ROOT / "plugins", cwd=ROOT)
    assert package.is_relative_to(ROOT / "plugins")


def test_airflow_lists_the_provider_of_the_wheel(environment: Path, tmp_path: Path) -> None:
    printed = run(
        environment / "bin" / "airflow", "providers", "list", "--output", "json", cwd=tmp_path,
        AIRFLOW_HOME=str(tmp_path), AIRFLOW__CORE__PLUGINS_FOLDER=str(tmp_path / "plugins"),
    )  # fmt: skip
    providers = json.loads(printed[printed.index("[") :])
    assert [each["package_name"] for each in providers].count("airflow-provider-parkkeeper") == 1


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
