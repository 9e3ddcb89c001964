"""No name and no value is ever SQL: every public method, with each of its texts hostile in turn."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from memory_kit import say
from parkkeeper.errors import InvalidArgument, ParkkeeperError
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.namespace import Namespace
from parkkeeper.queue import QueueStorage

#: Each would be heard of if any part of it were run: a table is gone, or the statement cannot be read.
HOSTILE = [
    "x'; DROP TABLE job_lanes CASCADE; --",
    'x"; DROP SCHEMA public CASCADE; --',
    "x\\'; SELECT 1/0; --",
    "{schema} %(limit)s %s $1",
    "$$; DROP TABLE x; $$",
]
#: Arguments that are no text, by name; a method that takes another one says so here.
GIVEN: dict[str, Any] = {
    "canaries": 0,
    "cap": 10,
    "claims": [],
    "extractor": Chunks(),
    "failures": [],
    "job_id": 1,
    "job_ids": [1],
    "lease": timedelta(minutes=1),
    "log_offset": 0,
    "messages": say("hello"),
    "older_than": timedelta(days=1),
    "queue_slots": 4,
    "request_id": str(uuid4()),
    "turns": [{"messages": say("hello")}],
    "until": datetime.now(UTC),
    "within": timedelta(hours=1),
}
#: Texts of which a method takes no other than these, so that the others can be reached.
PLAIN = {"reason": "test", "ring": "queue", "state": "failed", "query": "hello", "kind": "work"}


def methods(kind: type[Any]) -> Iterator[tuple[str, inspect.Signature]]:
    for name, found in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            yield name, inspect.signature(found)


def texts(signature: inspect.Signature) -> list[str]:
    """Return the parameters that may be a text."""
    return [
        name
        for name, parameter in signature.parameters.items()
        if "str" in str(parameter.annotation).split("[")[0]
    ]


def calls(kind: type[Any], given: dict[str, Any]) -> Iterator[tuple[str, str, Callable[[Any, str], Any]]]:
    """Return each method with each text of it: the call that has the text in its place."""
    for method, signature in methods(kind):
        needed = [
            name
            for name, parameter in signature.parameters.items()
            if name != "self"
            and parameter.default is parameter.empty
            and parameter.kind is not parameter.VAR_KEYWORD
        ]
        for text in texts(signature):
            plain = {name: given[name] if name in given else PLAIN.get(name, "mail") for name in needed}

            def call(
                target: Any, value: str, method: str = method, text: str = text, plain: Any = plain
            ) -> Any:
                return getattr(target, method)(**plain | {text: value})

            yield method, text, call


def attack(kind: type[Any], target: Any, given: dict[str, Any]) -> int:
    """Call every method with every hostile text; return how many calls that were.

    Raises
    ------
    psycopg.Error
        A text was taken for SQL.
    """
    tried = 0
    for _, _, call in calls(kind, given):
        for value in HOSTILE:
            with suppress(ParkkeeperError):  # refused, or told that there is none of that name
                call(target, value)
            tried += 1
    return tried


@pytest.mark.parametrize("kind", [QueueStorage, MemoryStore], ids=lambda kind: kind.__name__)
def test_no_text_of_any_method_is_run(
    kind: type[Any], connection: psycopg.Connection[Any], jobs: str, support: str, content
) -> None:
    storage = QueueStorage(connection, jobs)
    storage.enqueue("mail", "work", {})
    [claim] = storage.claim("mail")
    tables = set(content())
    assert attack(kind, kind(connection, jobs), GIVEN | {"claim": claim}) >= 60
    assert set(content()) == tables


def test_a_method_that_runs_a_text_is_caught(connection: psycopg.Connection[Any]) -> None:
    class Careless:
        def look(self, queue: str) -> None:
            connection.execute(f"SELECT 1 WHERE 'x' = '{queue}'".encode())

    with pytest.raises(psycopg.Error):
        attack(Careless, Careless(), GIVEN)


def test_no_name_of_a_namespace_is_anything_but_a_name() -> None:
    for value in HOSTILE:
        with pytest.raises(InvalidArgument):
            Namespace(value)
