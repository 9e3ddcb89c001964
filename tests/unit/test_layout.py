"""What holds for every file that is tracked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 500  # lines

# A folder of the machine that a file was written on, or the address of a package index.
MACHINE = re.compile(r"(?<![\w.])/(?:work|home|root|farm)/|file:/{2}|(?:pypi|pythonhosted)\.org|index-url")


def tracked(*patterns: str) -> list[Path]:
    """Return the files that git knows or would add, links left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def test_no_source_file_is_longer_than_one_can_read_at_once() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in tracked("*.py", "*.sql")}
    assert ROOT / "plugins" / "parkkeeper" / "__init__.py" in lines
    assert {path: count for path, count in lines.items() if count > LONGEST} == {}


def test_no_file_names_a_machine_s_folder_or_index() -> None:
    found = []
    for path in tracked():
        if path == Path(__file__) or path.suffix in {".png", ".jpg", ".gif"}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if MACHINE.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


@pytest.mark.parametrize(
    "line", ["/" + "work/x", "see /" + "root/.venv", "file:" + "///opt", "--extra-index" + "-url x"]
)
def test_the_pattern_for_machines_bites(line: str) -> None:
    assert MACHINE.search(line)


def test_the_core_and_the_command_line_do_without_airflow() -> None:
    program = (
        "import sys, parkkeeper.cli, parkkeeper.memory, parkkeeper.migrations, parkkeeper.queue; "
        "sys.exit(' '.join(name for name in sys.modules if name.split('.')[0] == 'airflow') or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stderr.strip(), done.stdout) == ("", "")


def test_the_plugins_folder_shows_airflow_one_file() -> None:
    ignored = (ROOT / "plugins" / ".airflowignore").read_text(encoding="utf-8").splitlines()
    assert "parkkeeper/" in ignored
    assert [path.name for path in (ROOT / "plugins").glob("*.py")] == ["parkkeeper_plugin.py"]
