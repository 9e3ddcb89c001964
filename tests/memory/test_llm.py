"""The extractor that asks a language model: what it sends where, how often, until when, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from datetime import timedelta
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent, InstrumentationSettings
from pydantic_ai.models.test import TestModel

from memory_kit import PATIENCE, Database, say
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.circuit import Key
from parkkeeper.memory.extractors import ExtractionError, Extractor, load
from parkkeeper.memory.extractors.envelope import memories
from parkkeeper.memory.extractors.limits import Limits
from parkkeeper.memory.extractors.llm import PROMPT, PROMPT_VERSION, Llm
from provider_kit import API_KEY, MODEL, Provider, Reply, Request, echo, remembered, said, turn


def texts(found: list[Any]) -> list[str]:
    return [memory.text for memory in found]


def failure(llm: Extractor, *contents: str, **more: Any) -> str:
    """Return the class of the failure of one extraction."""
    with pytest.raises(ExtractionError) as raised:
        llm.extract(turn(*contents, **more))
    return raised.value.error_class


def too_long(request: Request) -> Reply:
    return Reply({"error": {"code": "context_length_exceeded", "message": "too long"}}, 400)


# What is sent


def test_a_turn_is_asked_about_once_with_its_messages_and_its_time(provider: Provider) -> None:
    asked = turn("I live in Oslo", "so do I", scope="the scope is nobody's business")
    assert texts(provider.llm().extract(asked)) == ["I live in Oslo", "so do I"]
    (request,) = provider.requests
    assert request.path == "/v1/chat/completions"
    assert request.body["model"] == MODEL
    assert request.body["messages"][0]["content"] == PROMPT.strip()
    assert request.prompt == {
        "occurred_at": asked.occurred_at.isoformat(),
        "messages": list(asked.messages),
    }
    assert "nobody's business" not in str(request)


def test_name_and_version_say_which_prompt_and_model_made_a_memory(
    provider: Provider, store: MemoryStore
) -> None:
    store.append("s", say("hello"))
    assert store.form_batch(provider.llm()).formed == 1
    (memory,) = store.recall("s", "hello").memories
    assert (memory.extractor, memory.extractor_version) == ("llm", f"{PROMPT_VERSION}/{MODEL}")


def test_the_identity_is_the_connection_or_the_address_and_the_model() -> None:
    one = Llm("m", api_key="k", base_url="https://gate.example:8443/v1")
    two = Llm("m", api_key="k", base_url="https://gate.example:8443/v1", connection="openai_default")
    assert (one.identity, two.identity) == ("gate.example:8443/m", "openai_default/m")


def test_an_identity_that_is_cut_is_a_name_all_the_same() -> None:
    llm = Llm("m", api_key="k", base_url="https://gate.example/v1", connection=f"{'c' * 150}{' ' * 60}d")
    assert Key.of(llm).identity == "c" * 150


ELSEWHERE = {
    "OPENAI_API_KEY": "environment",
    "OPENAI_ADMIN_KEY": "environment",
    "OPENAI_BASE_URL": "http://environment.invalid/v1",
    "OPENAI_ORG_ID": "environment",
    "OPENAI_PROJECT_ID": "environment",
    "OPENAI_CUSTOM_HEADERS": "x-of-the: environment\nauthorization: Bearer environment",
    "ANTHROPIC_API_KEY": "environment",
    "ANTHROPIC_AUTH_TOKEN": "environment",
    "ANTHROPIC_BASE_URL": "http://environment.invalid",
    "ANTHROPIC_CUSTOM_HEADERS": "x-of-the: environment\nauthorization: Bearer environment",
}


@pytest.mark.parametrize("model", ["m", "openai:m", "anthropic:m"])
def test_no_credential_and_no_address_of_the_environment_is_used(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    for name, value in ELSEWHERE.items():
        monkeypatch.setenv(name, value)
    provider.answer = lambda request: Reply({"error": {}}, 500)
    assert failure(Llm(model, api_key=API_KEY, base_url=provider.base_url), "hello") == "unavailable"
    (request,) = provider.requests
    assert request.headers["authorization"] == f"Bearer {API_KEY}"
    assert request.body["model"] == "m"
    assert "environment" not in str(request)


def test_no_trace_is_made_of_a_turn_where_every_agent_is_traced(provider: Provider) -> None:
    spans = InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    Agent.instrument_all(InstrumentationSettings(tracer_provider=tracing))
    try:
        provider.llm().extract(turn("hello"))
        assert spans.get_finished_spans() == ()
        Agent(TestModel()).run_sync("hello")
        assert spans.get_finished_spans() != ()
    finally:
        Agent.instrument_all(False)


# Where it is told


def test_the_environment_names_model_key_and_address(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARKKEEPER_LLM_MODEL", MODEL)
    monkeypatch.setenv("PARKKEEPER_LLM_API_KEY", API_KEY)
    monkeypatch.setenv("PARKKEEPER_LLM_BASE_URL", provider.base_url)
    assert texts(load("llm").extract(turn("hello"))) == ["hello"]  # type: ignore[arg-type]
    load("llm", model="another").extract(turn("hello"))
    assert [request.body["model"] for request in provider.requests] == [MODEL, "another"]


def test_what_the_environment_does_not_name_is_asked_for_and_nothing_else_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ELSEWHERE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PARKKEEPER_LLM_MODEL", MODEL)
    monkeypatch.delenv("PARKKEEPER_LLM_API_KEY", raising=False)
    monkeypatch.delenv("PARKKEEPER_LLM_BASE_URL", raising=False)
    with pytest.raises(InvalidArgument, match="needs PARKKEEPER_LLM_API_KEY, PARKKEEPER_LLM_BASE_URL in"):
        load("llm")


@pytest.mark.parametrize(
    "arguments",
    [
        {"model": ""},
        {"model": "a b"},
        {"model": "x" * 101},
        {"api_key": ""},
        {"api_key": "se cret"},
        {"api_key": "geheim\u00e9"},
        {"api_key": "secret\n"},
        {"base_url": "api.example.com/v1"},
        {"base_url": "ftp://api.example.com"},
        {"base_url": "https://"},
        {"base_url": "https://user:secret@api.example.com/v1"},
        {"base_url": "https://api.example.com/v1?key=secret"},
        {"base_url": "https://api.example.com:99999/v1"},
        {"base_url": "https://[/v1"},
        {"base_url": None, "connection": "c"},
    ],
)
def test_what_cannot_be_used_is_refused_and_not_repeated(arguments: dict[str, Any]) -> None:
    usable = {"model": "m", "api_key": "k", "base_url": "https://api.example.com/v1"}
    with pytest.raises(InvalidArgument) as refused:
        Llm(**usable | arguments)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "limits", [{"max_input_tokens": 0}, {"max_calls_per_turn": None}, {"max_calls_per_scope": 1.5}]
)
def test_a_limit_is_a_whole_number_from_1(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"limits.{next(iter(limits))} .* is refused"):
        Limits(**limits)


# How much is asked


def test_a_message_that_is_too_long_is_never_sent(provider: Provider) -> None:
    llm = provider.llm(limits=Limits(max_input_tokens=1_000))
    for content in ("x" * 3_000, "ж" * 1_500, "漢" * 1_000, "🦉" * 750):
        assert failure(llm, content, "short") == "too_long"
    assert provider.requests == []


def test_messages_that_do_not_fit_together_are_asked_about_apart_and_in_order(provider: Provider) -> None:
    contents = [f"{number}" * 600 for number in range(7)]
    llm = provider.llm(limits=Limits(max_input_tokens=1_000))
    assert texts(llm.extract(turn(*contents))) == contents  # type: ignore[arg-type]
    assert 1 < len(provider.requests) < 7
    assert [content for request in provider.requests for content in request.contents] == contents


def test_what_the_provider_finds_too_long_is_asked_about_in_halves(provider: Provider) -> None:
    provider.answer = lambda request: echo(request) if len(request.contents) < 3 else too_long(request)
    assert texts(provider.llm().extract(turn("a", "b", "c", "d"))) == ["a", "b", "c", "d"]  # type: ignore[arg-type]
    assert [request.contents for request in provider.requests] == [
        ["a", "b", "c", "d"],
        ["a", "b"],
        ["c", "d"],
    ]


def test_what_is_cut_off_is_asked_about_in_halves(provider: Provider) -> None:
    def answer(request: Request) -> Reply:
        return echo(request) if len(request.contents) == 1 else said('{"memories": [{"te', "length")

    provider.answer = answer
    assert texts(provider.llm().extract(turn("a", "b"))) == ["a", "b"]  # type: ignore[arg-type]


def test_one_half_that_fails_fails_the_attempt(provider: Provider) -> None:
    def answer(request: Request) -> Reply:
        if len(request.contents) == 2:
            return too_long(request)
        return echo(request) if request.contents == ["a"] else said("no")

    provider.answer = answer
    assert failure(provider.llm(), "a", "b") == "malformed"


@pytest.mark.parametrize("limits", [Limits(max_calls_per_turn=3), Limits(max_tokens_per_turn=1_000)])
def test_halves_stop_at_the_turns_ceiling(provider: Provider, limits: Limits) -> None:
    provider.answer = too_long
    assert failure(provider.llm(limits=limits), *"abcdefgh") == "too_long"
    assert len(provider.requests) <= 3


@pytest.mark.parametrize("limits", [{"max_calls_per_turn": 2}, {"max_tokens_per_turn": 2_000}])
def test_a_turn_that_needs_more_than_its_ceiling_is_never_sent(
    provider: Provider, limits: dict[str, int]
) -> None:
    llm = provider.llm(limits=Limits(max_input_tokens=1_000, **limits))
    assert failure(llm, *["x" * 2_000] * 4) == "too_long"
    assert provider.requests == []


@pytest.mark.parametrize("limits", [Limits(max_calls_per_scope=2), Limits(max_tokens_per_scope=700)])
def test_a_scope_past_its_ceiling_waits_and_the_others_go_on(
    provider: Provider, store: MemoryStore, db: Database, limits: Limits
) -> None:
    for scope in ("a", "b"):
        for number in range(3 if scope == "a" else 2):
            store.append(scope, say(f"turn {number}"))
    outcome = store.form_batch(provider.llm(limits=limits))
    assert (outcome.formed, outcome.deferred, outcome.failed) == (4, 1, 0)
    assert db.turn(2, "formation_attempts", scope="a") == 0
    assert db.one("SELECT max(next_attempt_at) > now() + interval '59 min' FROM {schema}.observation")
    # The next batch begins anew.
    db.come_due()
    assert store.form_batch(provider.llm(limits=limits)).formed == 1


def test_what_comes_back_counts_too(provider: Provider) -> None:
    llm = provider.llm(limits=Limits(max_tokens_per_scope=2_000))
    dear = said('{"memories": []}').body
    dear["usage"] |= {"completion_tokens": 1_900}
    provider.answer = lambda request: Reply(dear)
    assert llm.extract(turn("a")) == []
    assert failure(llm, "b") == "rate_limited"
    assert failure(llm, "b", scope="s") == "rate_limited"
    assert llm.extract(turn("c", scope="another")) == []


def test_a_canary_has_no_ceiling(provider: Provider) -> None:
    llm = provider.llm(limits=Limits(max_calls_per_scope=1))
    for _ in range(3):
        llm.extract(turn("hello", scope=""))
    assert len(provider.requests) == 3


# Until when


@pytest.mark.slow
def test_a_model_that_is_late_is_a_timeout_and_the_batch_goes_on(
    provider: Provider, store: MemoryStore, db: Database
) -> None:
    over = threading.Event()

    def answer(request: Request) -> Reply:
        if request.contents == ["slow"]:
            over.wait(PATIENCE)
        return echo(request)

    provider.answer = answer
    store.append("s", say("slow"))
    store.append("s", say("quick"))
    outcome = store.form_batch(provider.llm(), turn_budget=timedelta(seconds=10))
    over.set()
    assert (outcome.formed, outcome.failed) == (1, 1)
    assert db.turn(0, "formation_error_class") == "timeout"


def test_a_turn_without_time_left_is_not_sent(provider: Provider) -> None:
    assert failure(provider.llm(), "hello", seconds=0) == "timeout"
    assert failure(provider.llm(), "hello", seconds=-60) == "timeout"
    assert provider.requests == []


def test_a_budget_of_a_century_is_none_too_long(provider: Provider) -> None:
    assert texts(provider.llm().extract(turn("hello", seconds=36_500 * 86_400))) == ["hello"]  # type: ignore[arg-type]


# In threads, and after


def test_turns_are_asked_about_at_once_where_the_batch_says_so(
    provider: Provider, store: MemoryStore
) -> None:
    together = threading.Barrier(4, timeout=PATIENCE)

    def answer(request: Request) -> Reply:
        together.wait()
        return echo(request)

    provider.answer = answer
    for number in range(8):
        store.append("s", say(f"turn {number}"))
    outcome = store.form_batch(provider.llm(), concurrency=4)
    assert (outcome.formed, outcome.failed, outcome.memories) == (8, 0, 8)


def test_nothing_stays_open_behind_an_extraction(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    new_event_loop = asyncio.events.new_event_loop

    def noted() -> asyncio.AbstractEventLoop:
        loops.append(new_event_loop())
        return loops[-1]

    monkeypatch.setattr(asyncio.events, "new_event_loop", noted)
    over = threading.Event()
    llm = provider.llm()

    def each() -> None:
        provider.answer = echo
        llm.extract(turn("hello"))
        provider.answer = lambda request: Reply({"error": {}}, 500)
        failure(llm, "hello")
        provider.answer = held_up
        failure(llm, "hello", seconds=0.2)

    def held_up(request: Request) -> Reply:
        over.wait(PATIENCE)
        return remembered()

    def held() -> tuple[int, int]:
        gc.collect()
        ours = psutil.Process()
        sockets = [each for each in ours.net_connections() if each.raddr and each.raddr.port == port]
        return len(sockets), sum(thread.name.startswith("asyncio") for thread in threading.enumerate())

    port = provider.server.server_port
    each()
    before = held()
    for _ in range(3):
        each()
    assert held() == before == (0, 0)
    assert len(loops) == 12
    assert all(loop.is_closed() for loop in loops)
    over.set()


# What is said


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"memories": null}',
        '{"memories": {}}',
        '{"memories": ["tea"]}',
        '{"memories": [{}]}',
        '{"memories": [{"text": null}]}',
        '{"memories": [{"text": " "}]}',
        '{"memories": [{"text": "tea", "kind": 1}]}',
        '{"memories": [{"text": "tea"}',
        '{"memories": [{"text": "tea"}]} or {"memories": []}',
        "{" * 100_000,
        '{"a":' * 100_000,
        '{"memories": "' * 10_000,
        "[{]}" * 10_000,
    ],
)
def test_a_reply_without_the_one_object_is_malformed(reply: str) -> None:
    with pytest.raises(ExtractionError) as raised:
        memories(reply)
    assert raised.value.error_class == "malformed"


@pytest.mark.parametrize(
    "reply",
    [
        '{"memories": [{"text": "tea"}]}',
        'Here: {"memories": [{"text": "tea"}]}',
        '{"thoughts": {"about": "tea"}, "memories": [{"text": "tea"}]}',
        '{"result": {"memories": [{"text": "tea"}]}}',
        '{"memories": [{"text": "tea", "more": 1}]} and again {"memories": [{"text": "tea", "more": 1}]}',
        '{a set} ```json\n{"memories": [{"text": "tea"}]}\n```\n{so}',
    ],
)
def test_what_stands_around_the_object_does_not_count(reply: str) -> None:
    assert texts(memories(reply)) == ["tea"]


@settings(max_examples=200, deadline=None)
@given(st.text() | st.lists(st.sampled_from([*'{}[]":,\\ ', "memories", "text", "null", "1"])).map("".join))
def test_any_reply_is_read_or_malformed(reply: str) -> None:
    try:
        memories(reply)
    except ExtractionError as error:
        assert error.error_class == "malformed"
