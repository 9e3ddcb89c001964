"""The page of guarantees: each test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "guarantees.md"


def functions_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_test_that_is_named_exists_and_each_guarantee_names_one() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"\[`(tests/[\w/]+\.py)::(\w+)`\]\(\.\./\.\./([\w/.]+)\)", text)
    assert len(named) > 40
    assert [name for file, name, _ in named if name not in functions_of(ROOT / file)] == []
    assert [name for file, name, link in named if file != link] == []
    lines = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    headings = [line for line in lines if line.startswith("| guarantee |")]
    assert [line for line in lines if line not in headings and "::test_" not in line] == []
