"""Where the demo runs: it drops what it made and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psycopg
import pytest

from parkkeeper import migrations
from parkkeeper.demo import place
from parkkeeper.namespace import Namespace


def test_a_namespace_that_the_demo_made_is_made_anew(
    connection: psycopg.Connection[Any], namespace: str
) -> None:
    for _ in range(2):
        place.renew(connection, Namespace(namespace))
        assert migrations.plan(connection, namespace, "queue") == list(migrations.packaged("queue"))
        migrations.migrate(connection, namespace, "queue", queue_slots=4)


def test_a_namespace_of_somebody_else_is_refused_and_left_alone(
    connection: psycopg.Connection[Any], namespace: str
) -> None:
    migrations.migrate(connection, namespace, "queue", queue_slots=4)
    with pytest.raises(place.DemoRefused, match="PARKKEEPER_DSN"):
        place.renew(connection, Namespace(namespace))
    assert migrations.plan(connection, namespace, "queue") == []


def test_without_a_checkout_it_says_where_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        place, "__file__", str(tmp_path / "site-packages" / "parkkeeper" / "demo" / "place.py")
    )
    with pytest.raises(place.DemoRefused, match="make demo"):
        place.checkout()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_state_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 65534, 65534)
    monkeypatch.setattr(place, "_state", lambda root: state)
    with pytest.raises(place.DemoRefused, match="belongs to another user"):
        place.checkout()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs Postgres as another user")
def test_a_checkout_closed_to_the_server_s_user_keeps_its_state_elsewhere(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert not place._state(closed).is_relative_to(closed)
