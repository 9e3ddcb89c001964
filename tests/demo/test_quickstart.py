"""The quickstart: its script does what the page says of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "quickstart.md"


def test_the_script_prints_what_the_page_promises(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    script = tmp_path / "quickstart.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    counts = re.findall(
        r"QueueCounts\(.*?terminal=(\d+), pruned_failed=(\d+), .*?\bfailed=(\d+)", done.stdout
    )
    assert counts == [("6", "0", "3"), ("6", "0", "3"), ("6", "3", "0")]
    assert "stored=3, formed=2, formed_strict=0, parked=1" in done.stdout
    assert done.stdout.splitlines()[-3:] == ["1 0", "1 2", "2 I like engines."]
