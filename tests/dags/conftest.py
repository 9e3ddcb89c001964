"""An Airflow connection to the session's server."""

from __future__ import annotations

import pytest

from parkkeeper.demo.airflow import connection_json


@pytest.fixture
def airflow_connection(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection parkkeeper_default, as a site might set it."""
    monkeypatch.setenv("AIRFLOW_CONN_PARKKEEPER_DEFAULT", connection_json(dsn))
