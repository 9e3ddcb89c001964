"""Every invariant that is asked for is told of, and the page tells of no other."""

from __future__ import annotations

import re
from pathlib import Path

from parkkeeper.database import sql_root

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "verify-a-namespace.md"


def test_the_page_lists_the_invariants_that_there_are() -> None:
    texts = [
        (sql_root() / name).read_text(encoding="utf-8")
        for name in ("invariants.sql", "queue/verify.sql", "memory/verify.sql")
    ]
    asked = {name for text in texts for name in re.findall(r"^SELECT '(\w+)'", text, re.MULTILINE)}
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == asked | {"watermark_is_true"}
