"""The pages of the reference that are made from docstrings: they say what the docstrings say now, and all of it."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from types import ModuleType

import pytest

from parkkeeper import memory, migrations, queue

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", REFERENCE / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_those_that_make_docs_writes(
    generate: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        pages = generate.pages()
    assert caplog.messages == [], "a docstring is not in the numpydoc style"
    stale = [name for name, text in pages.items() if (REFERENCE / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run make docs"


def test_every_public_name_and_method_has_its_place(generate: ModuleType) -> None:
    pages = generate.pages()
    for page, names in (("queue.md", queue.__all__), ("memory.md", memory.__all__)):
        assert [name for name in names if f"\n## {name}\n" not in pages[page]] == []
    methods = {name for name in vars(queue.QueueStorage) if not name.startswith("_")}
    assert {name for name in methods if f"\n### QueueStorage.{name}\n" not in pages["queue.md"]} == set()
    assert f"\n## {migrations.migrate.__name__}\n" in pages["migrations.md"]


def test_no_trace_of_the_docstrings_own_markup_is_left(generate: ModuleType) -> None:
    for text in generate.pages().values():
        assert ":meth:" not in text and ":func:" not in text and ":class:" not in text
        assert text.replace("```", "").count("``") == 0
