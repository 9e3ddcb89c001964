"""The page about enqueueing in one's own transaction: its functions, run as they stand there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from parkkeeper.queue import QueueStorage
from ringside import differences, query

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "enqueue-in-your-transaction.md"


@pytest.fixture
def shown(storage: QueueStorage) -> dict[str, Any]:
    """What the page's blocks define, in the test's namespace."""
    found: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    for block in blocks:
        own = block.replace('"jobs"', f'"{storage.namespace.name}"').replace(
            "jobs.enqueue_jobs", f"{storage.namespace.name}.enqueue_jobs"
        )
        exec(own, found)
    return found


@pytest.fixture
def place_name(storage: QueueStorage) -> str:
    """The schema in which the application's own table is found."""
    query(storage, "CREATE TABLE {ns}.orders (id integer PRIMARY KEY)")
    return storage.namespace.name


@pytest.fixture
def session(dsn: str, place_name: str) -> Iterator[Session]:
    """A session of SQLAlchemy's on the test's database."""
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(dsn, options=f"-c search_path={place_name}"),
    )
    with Session(engine) as session:
        yield session
    engine.dispose()


def exist(storage: QueueStorage) -> tuple[list[int], list[int]]:
    """Return the orders, and the orders that jobs are about."""
    orders = [row[0] for row in query(storage, "SELECT id FROM {ns}.orders ORDER BY id")]
    jobs = [claim.args["order"] for claim in storage.claim("mail", 10)]
    assert differences(storage) == []
    return orders, jobs


def test_psycopg(storage: QueueStorage, shown: dict[str, Any], dsn: str, place_name: str) -> None:
    with psycopg.connect(dsn, options=f"-c search_path={place_name}") as connection:
        with connection.transaction():
            shown["place_order"](connection, 1)
            with pytest.raises(psycopg.errors.UniqueViolation):
                shown["place_order"](connection, 1)
            shown["place_order"](connection, 2)
            assert exist(storage) == ([], []), "nothing is committed yet"
        assert exist(storage) == ([1, 2], [1, 2])
        with pytest.raises(psycopg.errors.UniqueViolation):
            shown["place_order"](connection, 2)
        assert exist(storage) == ([1, 2], [])


def test_sqlalchemy_commit_and_rollback(
    storage: QueueStorage, shown: dict[str, Any], session: Session
) -> None:
    shown["place_order_in"](session, 1)
    assert exist(storage) == ([], [])
    session.rollback()
    shown["place_order_in"](session, 2)
    session.commit()
    assert exist(storage) == ([2], [2])


def test_sqlalchemy_rollback_to_a_savepoint(
    storage: QueueStorage, shown: dict[str, Any], session: Session
) -> None:
    shown["place_order_in"](session, 1)
    with session.begin_nested() as nested:
        shown["place_order_in"](session, 2)
        nested.rollback()
    with session.begin_nested():
        shown["place_order_in"](session, 3)
    session.commit()
    assert exist(storage) == ([1, 3], [1, 3])


def test_asyncio(storage: QueueStorage, shown: dict[str, Any], dsn: str, place_name: str) -> None:
    async def place() -> int:
        connection = await psycopg.AsyncConnection.connect(dsn, options=f"-c search_path={place_name}")
        async with connection:
            job_id: int = await shown["place_order_async"](connection, 1)
            async with connection.transaction(force_rollback=True):
                await shown["place_order_async"](connection, 2)
        return job_id

    job_id = asyncio.run(place())
    [claim] = storage.claim("mail", 10)
    assert (claim.job_id, claim.args) == (job_id, {"order": 1})
