"""Where the demo runs: it drops what it made and nothing else."""

from __future__ import annotations

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
