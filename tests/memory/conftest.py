"""A memory of one's own: the memory family in the test's namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from memory_kit import Database
from parkkeeper.memory import MemoryStore
from provider_kit import Provider, running


@pytest.fixture
def families() -> tuple[str, ...]:
    return ("memory",)


@pytest.fixture
def store(connection: psycopg.Connection[Any], migrated: str) -> MemoryStore:
    """The memory of a fresh namespace."""
    return MemoryStore(connection, migrated)


@pytest.fixture
def another(store: MemoryStore, connect: Callable[..., Any], namespace: str) -> Callable[..., MemoryStore]:
    """Open the same memory in a session of its own, e.g. for another thread."""
    return lambda **options: MemoryStore(connect(**options), namespace)


@pytest.fixture
def db(connect: Callable[..., Any], namespace: str) -> Database:
    """A session of the test's own, to look at rows and to move clocks."""
    return Database(connect(), namespace)


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A provider of language models on this machine."""
    with running() as provider:
        yield provider
