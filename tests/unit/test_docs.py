"""The documents: every one is in the index, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def links(page: Path) -> set[Path]:
    """Return the files that a page links to; anchors and other sites are left out."""
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in targets}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [target for target in links(page) if not target.exists()] == []


def test_the_index_lists_every_document() -> None:
    index = ROOT / "docs" / "README.md"
    assert set((ROOT / "docs").glob("*/*.md")) - links(index) == set()
