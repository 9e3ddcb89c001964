"""The demo as a program: what it says when it cannot go on."""

from __future__ import annotations

import os
import subprocess
import sys

from parkkeeper.embedded import DSN_VARIABLE


def test_a_database_that_is_not_there_is_one_clear_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "parkkeeper.demo", "--once"],
        env=os.environ | {DSN_VARIABLE: "postgresql://demo:hidden@127.0.0.1:1/absent"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("demo: database absent at 127.0.0.1:1 cannot be reached: ")
    assert done.stderr.count("\n") == 1
    assert "hidden" not in done.stdout + done.stderr
