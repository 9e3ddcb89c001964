"""A queue of one's own: the queue family in the test's namespace, on a ring of four slots."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from parkkeeper.queue import QueueStorage
from ringside import keep_claims, query


@pytest.fixture
def families() -> tuple[str, ...]:
    return ("queue",)


@pytest.fixture
def storage(connection: psycopg.Connection[Any], migrated: str) -> QueueStorage:
    """The queue of a fresh namespace."""
    return QueueStorage(connection, migrated)


@pytest.fixture(params=["floor", "live"])
def carry_to(request: pytest.FixtureRequest, storage: QueueStorage) -> str:
    """Where the namespace carries failed jobs: once with each."""
    query(storage, "UPDATE {ns}.settings SET value = %s WHERE name = 'carry_to'", request.param)
    return str(request.param)


@pytest.fixture
def claims_kept(storage: QueueStorage) -> None:
    """Claims that leave with their slot are remembered, for the oracle of the counts."""
    keep_claims(storage)
