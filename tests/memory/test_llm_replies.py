"""What a provider may answer, served over HTTP to the real client: its class, what is stored, what nobody is told."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from memory_kit import Database
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import ExtractionError, Turn
from parkkeeper.memory.extractors.llm import Llm
from provider_kit import API_KEY, Provider, Reply, Request, remembered, running, said, turn

#: What the turn says, and what the provider says of it: neither may be found anywhere but on the turn's row.
WORDS = "Marguerite moved to Reykjavik"
PROSE = "Marguerite's words are quoted here"


@dataclass(frozen=True)
class Case:
    """A reply, and what is to come of it. `text` is what the row keeps of it; None: that it keeps nothing."""

    reply: Reply
    error_class: str | None
    parked: bool = False
    memories: int = 0
    text: str | None = None
    gone: tuple[str, ...] = field(default=())
    api: str = ""


def error(status: int, headers: dict[str, str] | None = None, **body: Any) -> Reply:
    return Reply({"error": {"message": PROSE, **body}}, status, headers or {})


def claude(stop_reason: str, *texts: str) -> Reply:
    """Return a reply of the other API."""
    content = [{"type": "text", "text": text} for text in texts]
    reply = {"id": "m", "type": "message", "role": "assistant", "model": "c", "stop_sequence": None}
    usage = {"input_tokens": 1, "output_tokens": 1}
    return Reply({**reply, "usage": usage, "stop_reason": stop_reason, "content": content})


#: A reply whose text has half of a surrogate pair, which JSON can say and Postgres cannot hold.
HALF = said("rosebud").content().replace(b"rosebud", rb"{\"memories\": [{\"text\": \"\uD83D likes tea\"}]}")
KEY = "sk-live-51HzzFAKEzzFAKEzzFAKEzz9Qe"

# The failures of this table are the turn's own.
OF_THE_TURN = {
    "a filter that Azure reports as a bad request": Case(
        error(400, code="content_filter", innererror={"code": "ResponsibleAIPolicyViolation"}),
        "refusal", parked=True, text=PROSE,
    ),
    "a filter that is named below another code": Case(
        error(400, code="400", innererror={"code": "ResponsibleAIPolicyViolation"}),
        "refusal", parked=True, text=PROSE,
    ),
    "a reply that was filtered": Case(said(None, "content_filter"), "refusal", parked=True),
    "a reply of which a part was filtered": Case(
        said('{"memories": []}', "content_filter"), "refusal", parked=True
    ),
    "a refusal in its own field": Case(said(None, refusal=PROSE), "refusal", parked=True, text=PROSE),
    "a refusal as Claude has it": Case(claude("refusal"), "refusal", parked=True, api="anthropic:"),
    "a refusal in prose is no empty result": Case(
        said("I can't help with this request."), "malformed", text="I can't help"
    ),
    "a context that is too long": Case(
        error(400, code="context_length_exceeded"), "too_long", parked=True, text=PROSE
    ),
    "a body that is too large": Case(Reply(b"<html>413</html>", 413), "too_long", parked=True, text="413"),
    "a reply that was cut off": Case(
        said('{"memories": [{"text": "Marguer', "length"), "output_truncated"
    ),
    "a reply that was cut off before it began": Case(said(None, "length"), "output_truncated"),
    "a reply that was cut off as Claude has it": Case(
        claude("max_tokens", '{"memo'), "output_truncated", api="anthropic:"
    ),
    "half a surrogate pair": Case(Reply(HALF), "malformed"),
    "no words at all": Case(said(""), "malformed"),
    "no choices": Case(Reply({"id": "r", "choices": []}), "malformed"),
    "a page of a proxy": Case(Reply(b"<html>welcome</html>", headers={"content-type": "text/html"}), "malformed"),
    "a page that says it is JSON": Case(Reply(b"<html>welcome</html>"), "malformed"),
    "a bad request that says nothing": Case(error(400, type="invalid_request_error"), "other", text=PROSE),
    "a bad request that speaks of the context only in prose": Case(
        error(400, message="maximum context length is 8192 tokens"), "other", text="8192"
    ),
    "an error that is longer than what is kept": Case(
        error(400, message="текст " * 1_000), "other", text="текст текст"
    ),
}  # fmt: skip

# The failures of this table are the provider's.
OF_THE_PROVIDER = {
    "asked too often": Case(error(429), "rate_limited", text=PROSE),
    "the quota is used up": Case(error(429, type="insufficient_quota", code="insufficient_quota"), "quota"),
    "payment is required": Case(error(402), "quota"),
    "a key that is refused and echoed": Case(
        error(401, message=f"Incorrect API key provided: {KEY}. Alice lives in Dublin."),
        "auth", text="Incorrect API key provided: [redacted]", gone=(KEY,),
    ),
    "our own key echoed": Case(error(401, message=f"no such key {API_KEY}"), "auth", text="no such key [redacted]"),
    "a gateway that forbids": Case(error(403), "auth", text=PROSE),
    "no such model": Case(error(404, code="model_not_found"), "unavailable", text=PROSE),
    "overloaded": Case(Reply({"error": {"type": "overloaded_error"}}, 529), "unavailable"),
    "overloaded as Claude has it": Case(
        Reply({"type": "error", "error": {"type": "overloaded_error", "message": PROSE}}, 529),
        "unavailable", text=PROSE, api="anthropic:",
    ),
    "a fault whose text has a NUL": Case(Reply(b"upstream said: K\x00rsou", 500), "unavailable", text="said: Krsou"),
    "a bad gateway": Case(Reply(b"<html>502</html>", 502), "unavailable", text="502"),
    "a gateway that waited too long": Case(error(504), "unavailable"),
    "a request that came too late": Case(error(408), "timeout"),
    "another address": Case(Reply(b"", 307, {"location": "/elsewhere"}), "unavailable"),
}  # fmt: skip

FORMED = {
    "as asked": Case(remembered("Prefers window seats"), None, memories=1),
    "prose around it": Case(
        said('Based on the talk {about travel}, here it is: {"memories": [{"text": "Window seats"}]} Bye!'),
        None, memories=1,
    ),
    "a fence around it": Case(said('```json\n{"memories": [{"text": "Window seats"}]}\n```'), None, memories=1),
    "nothing worth remembering": Case(said('{"memories": []}'), None, memories=0),
    "no finish reason": Case(said('{"memories": []}', None), None, memories=0),
    "as Claude has it": Case(claude("end_turn", '{"memories": [{"text": "Tea"}]}'), None, memories=1, api="anthropic:"),
}  # fmt: skip


def llm(provider: Provider, case: Case) -> Llm:
    base_url = provider.base_url.removesuffix("/v1") if case.api else provider.base_url
    return Llm(f"{case.api}model", api_key=API_KEY, base_url=base_url)


def form(provider: Provider, case: Case, store: MemoryStore, *, canary: Reply | None) -> Any:
    """Form one turn; `canary` is the reply to what is asked without its words."""
    asked_of_it = []

    def answer(request: Request) -> Reply:
        if WORDS in str(request.body):
            asked_of_it.append(request)
            return case.reply
        return canary or case.reply

    provider.answer = answer
    store.append("s", [{"role": "user", "content": WORDS}])
    outcome = store.form_batch(llm(provider, case), limit=1)
    assert len(asked_of_it) == 1, "the client asked again by itself"
    return outcome


@pytest.mark.parametrize("case", OF_THE_TURN.values(), ids=list(OF_THE_TURN))
def test_a_failure_that_is_the_turns_own_spends_an_attempt(
    case: Case, provider: Provider, store: MemoryStore, db: Database
) -> None:
    fine = claude("end_turn", '{"memories": []}') if case.api else remembered()
    outcome = form(provider, case, store, canary=fine)
    assert (outcome.formed, outcome.failed, outcome.parked) == (0, 1, int(case.parked))
    error_class, text, attempts = db.turn(0, "formation_error_class", "formation_error", "formation_attempts")
    assert (error_class, attempts) == (case.error_class, 1)
    assert case.text is None or case.text in text
    assert len(text) <= 2_000
    assert store.freshness("s").parked == int(case.parked)


@pytest.mark.parametrize("case", OF_THE_PROVIDER.values(), ids=list(OF_THE_PROVIDER))
def test_a_failure_of_the_provider_parks_nothing(case: Case, provider: Provider, store: MemoryStore) -> None:
    outcome = form(provider, case, store, canary=None)
    assert (outcome.formed, outcome.parked, outcome.backlog) == (0, 0, 1)


@pytest.mark.parametrize("case", OF_THE_PROVIDER.values(), ids=list(OF_THE_PROVIDER))
def test_a_failure_of_the_provider_has_its_class_and_its_text(
    case: Case, provider: Provider, store: MemoryStore, db: Database
) -> None:
    provider.answer = lambda request: case.reply
    with pytest.raises(ExtractionError) as raised:
        llm(provider, case).extract(turn(WORDS))
    assert raised.value.error_class == case.error_class
    # What a batch keeps of such a failure, without the canary that it may send for one of the provider's.
    store.append("s", [{"role": "user", "content": WORDS}])
    other = ExtractionError("other", raised.value.message)
    store.form_batch(_Raising(other))
    text = db.turn(0, "formation_error")
    assert case.text is None or case.text in text
    assert not any(secret in text for secret in (*case.gone, API_KEY))


class _Raising:
    name, version = "raising", "1"

    def __init__(self, error: ExtractionError) -> None:
        self._error = error

    def extract(self, turn: Turn) -> list[Any]:
        raise self._error


@pytest.mark.parametrize("case", FORMED.values(), ids=list(FORMED))
def test_a_reply_with_the_one_object_in_it_forms_the_turn(
    case: Case, provider: Provider, store: MemoryStore
) -> None:
    outcome = form(provider, case, store, canary=None)
    assert (outcome.formed, outcome.failed, outcome.memories) == (1, 0, case.memories)


@pytest.mark.parametrize("client", ["", "anthropic:"])
@pytest.mark.parametrize(
    ("header", "least", "most"),
    [("7", 7, 7), ("0", 1, 1), ("86400", 3_600, 3_600), ("Tue, 01 Dec 2093 00:00:00 GMT", 3_600, 3_600)],
)
def test_the_time_that_a_provider_asks_for_is_waited_and_spends_no_attempt(
    provider: Provider, store: MemoryStore, db: Database, header: str, least: int, most: int, client: str
) -> None:
    case = Case(error(429, {"retry-after": header}, code="rate_limit_exceeded"), "rate_limited", api=client)
    outcome = form(provider, case, store, canary=None)
    assert (outcome.deferred, outcome.failed) == (1, 0)
    assert db.turn(0, "formation_attempts") == 0
    waits = db.one("SELECT extract(epoch FROM next_attempt_at - now()) FROM {schema}.observation")
    assert least - 5 < waits <= most


def test_a_key_is_not_sent_where_a_redirect_leads(provider: Provider) -> None:
    with running() as elsewhere:
        provider.answer = lambda request: Reply(
            b"", 307, {"location": f"{elsewhere.base_url}/chat/completions"}
        )
        with pytest.raises(ExtractionError) as raised:
            provider.llm().extract(turn(WORDS))
        assert raised.value.error_class == "unavailable"
        assert elsewhere.requests == []


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with running() as provider:
        gone = provider.llm()
    with pytest.raises(ExtractionError) as raised:
        gone.extract(turn(WORDS))
    assert raised.value.error_class == "unavailable"


@pytest.mark.parametrize("case", [*OF_THE_TURN.values(), *OF_THE_PROVIDER.values(), *FORMED.values()])
def test_nothing_that_was_said_is_in_a_log_a_warning_or_an_exception(
    case: Case,
    provider: Provider,
    store: MemoryStore,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("openai", "openai._base_client", "anthropic", "httpx2", "httpcore2.http11", "pydantic_ai"):
        caplog.set_level(logging.DEBUG, logger=name)
    form(provider, case, store, canary=None)
    provider.answer = lambda request: case.reply
    told = ""
    try:
        llm(provider, case).extract(turn(WORDS))
    except ExtractionError as failure:
        told = f"{failure} {failure!r}"
        assert failure.__context__ is None
        assert failure.__cause__ is None
    everything = "".join(
        [
            told,
            caplog.text,
            *capfd.readouterr(),
            *(str(warning.message) for warning in recwarn),
            repr(llm(provider, case)),
        ]
    )
    for secret in (WORDS, "Marguer", PROSE, API_KEY, KEY, "Dublin", "Window seats", "текст", "Krsou"):
        assert secret not in everything
