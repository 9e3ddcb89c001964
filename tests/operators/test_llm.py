"""Formation with a language model that an Airflow connection names: where turns go, and what nobody is told."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_env import run_task
from parkkeeper.memory import MemoryStore
from parkkeeper.operators import FormationBatchOperator
from provider_kit import API_KEY, MODEL, Provider, Reply, running

WORDS = "Marguerite moved to Reykjavik"
PROSE = "Marguerite's words are quoted here"


@pytest.fixture
def families() -> tuple[str, ...]:
    return ("memory",)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running() as provider:
        yield provider


@pytest.fixture
def connect_llm(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the connection `model_provider`; fields may be left out or changed."""

    def put(**changes: Any) -> None:
        fields = {"conn_type": "generic", "host": provider.base_url, "password": API_KEY}
        fields |= {"extra": {"model": MODEL}} | changes
        monkeypatch.setenv("AIRFLOW_CONN_MODEL_PROVIDER", json.dumps(fields))

    put()
    return put


def batch(namespace: str, **more: Any) -> Any:
    arguments = {"extractor": "llm", "llm_conn_id": "{{ dag_run.conf.provider }}", "retries": 3} | more
    return run_task(
        lambda: FormationBatchOperator(task_id="form", namespace=namespace, **arguments),
        conf={"provider": "model_provider"},
    )


def test_a_connection_names_address_key_model_and_limits(
    store: MemoryStore, migrated: str, provider: Provider, connect_llm: Any
) -> None:
    connect_llm(extra={"model": MODEL, "limits": {"max_output_tokens": 77}})
    store.append("s", [{"role": "user", "content": WORDS}])
    ran = batch(migrated)
    assert (ran.state, ran.xcoms["outcome"], ran.xcoms["formed"]) == ("success", "formed", 1)
    (request,) = provider.requests
    assert request.headers["authorization"] == f"Bearer {API_KEY}"
    assert (request.body["model"], request.body["max_completion_tokens"]) == (MODEL, 77)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"password": None}, "connection model_provider is refused: it has no password"),
        ({"host": None, "extra": {}}, "it has no host, no extra.model"),
        ({"host": "api.example.com"}, "connection model_provider is refused: base_url is refused"),
        ({"extra": {"model": "m", "limits": {"max_words": 1}}}, "extra.limits has unknown fields"),
        (
            {"extra": {"model": "m", "limits": {"max_input_tokens": 0}}},
            "limits.max_input_tokens 0 is refused",
        ),
    ],
)
def test_what_the_connection_lacks_is_taken_from_nowhere_else(
    store: MemoryStore,
    migrated: str,
    provider: Provider,
    connect_llm: Any,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    message: str,
) -> None:
    for prefix in ("OPENAI", "PARKKEEPER_LLM"):
        monkeypatch.setenv(f"{prefix}_API_KEY", API_KEY)
        monkeypatch.setenv(f"{prefix}_BASE_URL", provider.base_url)
    connect_llm(**changes)
    store.append("s", [{"role": "user", "content": WORDS}])
    ran = batch(migrated)
    assert isinstance(ran.error, AirflowFailException)
    assert message in str(ran.error)
    assert API_KEY not in str(ran.error)
    assert provider.requests == []


def test_a_connection_for_an_extractor_that_asks_nobody_is_refused(
    store: MemoryStore, migrated: str, connect_llm: Any
) -> None:
    ran = batch(migrated, extractor="chunks")
    assert isinstance(ran.error, AirflowFailException)
    assert "llm_conn_id is refused: extractor 'chunks' has no use for it" in str(ran.error)


def test_an_extra_that_is_not_installed_is_named(
    store: MemoryStore, migrated: str, connect_llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "parkkeeper.memory.extractors.llm", None)
    ran = batch(migrated)
    assert isinstance(ran.error, AirflowFailException)
    assert "install airflow-provider-parkkeeper[llm]" in str(ran.error)


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_neither_turn_nor_reply_nor_key_is_in_a_log_or_an_xcom(
    store: MemoryStore,
    migrated: str,
    provider: Provider,
    connect_llm: Any,
    status: int,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("openai", "openai._base_client", "httpx2", "httpcore2"):
        caplog.set_level(logging.DEBUG, logger=name)
    provider.answer = lambda request: Reply({"error": {"message": f"{PROSE} {API_KEY}"}}, status)
    store.append("s", [{"role": "user", "content": WORDS}])
    ran = batch(migrated)
    assert (ran.state, ran.xcoms["outcome"]) == ("success", "none_formed")
    assert provider.requests
    everything = "".join([caplog.text, *capfd.readouterr(), str(ran.xcoms)])
    for secret in (WORDS, "Marguerite", API_KEY):
        assert secret not in everything
