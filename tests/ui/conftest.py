"""Airflow's own API server in this process, with the plugin as it was found, and users who are logged in or not."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_env import metadata
from parkkeeper.demo.airflow import connection_json
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn, load
from parkkeeper.queue import QueueStorage

PASSWORDS = {"keeper": "a", "watcher": "b", "stranger": "c"}
CONTENT = "the words of a customer"
ERROR = "the text of an error"


class Refuses:
    """An extractor that will not have any turn, though its provider answers."""

    name = "refuses"
    version = "1"

    def extract(self, turn: Turn) -> list[Memory]:
        if turn.log_offset < 0:
            return []
        raise ExtractionError("malformed", ERROR)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The API server's application, with an admin, a viewer, and one whose role allows nothing."""
    passwords: Path = tmp_path_factory.mktemp("auth") / "passwords.json"
    passwords.write_text(json.dumps(PASSWORDS))
    metadata()
    with pytest.MonkeyPatch.context() as environment, warnings.catch_warnings():
        environment.setenv(
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "keeper:admin,watcher:viewer,stranger:"
        )
        environment.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", str(passwords))
        environment.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "x" * 64)
        warnings.simplefilter("ignore")
        from airflow.api_fastapi.app import create_app

        yield create_app(apps="core")


@pytest.fixture
def anonymous(server: Any, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A browser that has not logged in."""
    from fastapi.testclient import TestClient

    monkeypatch.setenv("AIRFLOW_CONN_PARKKEEPER_DEFAULT", connection_json(dsn))
    yield TestClient(server, raise_server_exceptions=False)


@pytest.fixture
def browser(anonymous: Any) -> Any:
    """A browser in which a viewer has logged in."""
    return login(anonymous, "watcher")


def login(browser: Any, user: str) -> Any:
    """Log `user` in as the login page does; the token comes as a cookie too, which is what a frame's requests carry."""
    answer = browser.post("/auth/token", json={"username": user, "password": PASSWORDS[user]})
    assert answer.status_code == 201
    browser.cookies.set("_token", answer.json()["access_token"])
    return browser


@pytest.fixture
def populated(connection: psycopg.Connection, migrated: str) -> str:
    """Jobs in every state over three slots, one dropped past its retention; turns formed, parked and waiting."""
    storage = QueueStorage(connection, migrated)
    storage.enqueue_many("letters", "print", [{"words": CONTENT}] * 5)
    claims = storage.claim("letters", 3)
    storage.complete(claims[:1])
    storage.fail(claims[1], ERROR, terminal=True)
    storage.fail(claims[2], ERROR)
    storage.enqueue("parcels", "weigh")
    storage.fail(storage.claim("parcels")[0], ERROR, terminal=True)
    done = sql.Identifier(migrated, "done_entries")
    connection.execute(
        sql.SQL(
            "UPDATE {} SET finalized_at = finalized_at - interval '4 days' WHERE state = 'failed' AND kind = 'weigh'"
        ).format(done)
    )
    storage.complete(storage.claim("letters", 2))
    storage.rotate()
    assert storage.prune_oldest().pruned_failed == 1
    storage.enqueue_many("letters", "print", [None] * 4)
    storage.claim("letters", 2)
    storage.rotate()
    # Two dead letters, of which one is purged.
    storage.set_queue("letters", dead_letter=True)
    storage.enqueue_many("letters", "lose", [None] * 2, priority=1, max_attempts=1)
    for claim in storage.claim("letters", 2):
        assert storage.fail(claim, ERROR) == "dead_lettered"
    assert storage.purge_dead_letters("letters", older_than=0, limit=1).purged == 1

    store = MemoryStore(connection, migrated)
    for scope, turns in (("café <b>", 2), ("b", 1)):
        for _ in range(turns):
            store.append(scope, [{"role": "user", "content": CONTENT}])
    store.form_batch(Refuses(), scope="café <b>", limit=1, max_attempts=1)
    store.form_batch(load("chunks"), scope="b")
    return migrated
