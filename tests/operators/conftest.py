"""An Airflow connection to the session's server, and a namespace."""

from __future__ import annotations

import psycopg
import pytest

from parkkeeper.demo.airflow import connection_json
from parkkeeper.memory import MemoryStore
from parkkeeper.queue import QueueStorage


@pytest.fixture(autouse=True)
def airflow_connection(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection parkkeeper_default, as a site might set it: in the environment, of type Postgres."""
    monkeypatch.setenv("AIRFLOW_CONN_PARKKEEPER_DEFAULT", connection_json(dsn))


@pytest.fixture
def storage(connection: psycopg.Connection, migrated: str) -> QueueStorage:
    return QueueStorage(connection, migrated)


@pytest.fixture
def store(connection: psycopg.Connection, migrated: str) -> MemoryStore:
    return MemoryStore(connection, migrated)
