"""What Airflow is told about the distribution, held against Airflow's own schemas and its own reading."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Connection
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

from parkkeeper.hooks import ParkkeeperHook
from parkkeeper.provider import get_provider_info, option


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(airflow.__file__).parent / name).read_text())
    return found


def test_the_metadata_has_the_shape_that_airflow_asks_for() -> None:
    info = get_provider_info()
    jsonschema.validate(info, schema("provider_info.schema.json"))
    types = schema("provider.yaml.schema.json")["properties"]["connection-types"]
    jsonschema.validate(info["connection-types"], types)
    assert info["versions"] == [version("airflow-provider-parkkeeper")]


def test_airflow_finds_the_provider_and_its_connection_type() -> None:
    manager = ProvidersManager()
    assert "airflow-provider-parkkeeper" in manager.providers
    hook = ProvidersManagerTaskRuntime().hooks["parkkeeper"]
    assert hook is not None
    assert (hook.hook_name, hook.connection_id_attribute_name) == (
        "Parkkeeper (Postgres)",
        "parkkeeper_conn_id",
    )
    assert manager.field_behaviours["parkkeeper"]["relabeling"] == {"schema": "Database"}
    assert any("sslmode" in name for name in manager.connection_form_widgets)


def test_a_connection_of_the_type_gives_the_hook() -> None:
    hook = Connection(conn_id="some", conn_type="parkkeeper").get_hook()
    assert isinstance(hook, ParkkeeperHook)
    assert hook.get_conn_id() == "some"


@pytest.mark.parametrize(
    ("name", "default"), [("namespace", "parkkeeper"), ("conn_id", "parkkeeper_default")]
)
def test_an_option_has_a_default_and_can_be_set(
    name: str, default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert option(name) == default
    monkeypatch.setenv(f"AIRFLOW__PARKKEEPER__{name.upper()}", "other")
    assert option(name) == "other"
