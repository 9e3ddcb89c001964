"""Airflow's own API server in this process, with the plugin as it was found, and users who are logged in or not."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_env import metadata
from parkkeeper.demo.airflow import connection_json

PASSWORDS = {"keeper": "a", "watcher": "b", "stranger": "c"}


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
