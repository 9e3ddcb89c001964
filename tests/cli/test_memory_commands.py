"""The memory's commands: what they print, and what they leave in the namespace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from parkkeeper.cli.lines import BATCH
from parkkeeper.memory import (
    Circuit,
    ErasureReceipt,
    ErasureRequest,
    FormationOutcome,
    Freshness,
    MemoryStore,
    ParkedTurn,
    Recall,
    SweepOutcome,
)
from provider_kit import API_KEY, Provider, Reply, running

#: Fails on any turn that says so, as a refusal, which parks at once.
EXTRACTOR = """
from parkkeeper.memory.extractors import ExtractionError, Memory

class Picky:
    name, version = "picky", "1"

    def extract(self, turn):
        if any("refuse" in message["content"] for message in turn.messages):
            raise ExtractionError("refusal", "the provider said: rosebud")
        return [Memory(message["content"]) for message in turn.messages]

picky = Picky()
"""


def line(scope: str, content: str, **more: Any) -> str:
    return json.dumps({"scope": scope, "messages": [{"role": "user", "content": content}], **more}) + "\n"


def keys(outcome: type) -> list[str]:
    return [field.name for field in fields(outcome)]


@pytest.fixture
def picky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An extractor of one's own, in a module beside the working directory."""
    (tmp_path / "extractor_of_ones_own.py").write_text(EXTRACTOR)
    monkeypatch.chdir(tmp_path)
    return "extractor_of_ones_own:picky"


@pytest.fixture
def parked(run, support: str, picky: str) -> str:
    """A namespace in which turn 1 of three of scope ada is parked."""
    turns = line("ada", "first") + line("ada", "refuse this") + line("ada", "third")
    assert run("memory", "append", "-n", support, stdin=turns).code == 0
    assert run("memory", "form", "-n", support, "--extractor", picky).code == 0
    return support


def test_turns_go_in_from_a_file_or_stdin_and_are_counted(
    run, support: str, tmp_path: Path, connection
) -> None:
    turns = (
        line("ada", "hello", subject="ada", occurred_at="2026-01-31T13:00:00+01:00", idempotency_key="a")
        + "\n  \n"
        + line("bob", "hi")
        + line("ada", "again", occurred_at=None)
    )
    path = tmp_path / "turns.jsonl"
    path.write_text(turns)
    assert run("memory", "append", "-n", support, path, "--json").json == {
        "turns": 3,
        "created": 3,
        "repeated": 0,
    }
    assert run("memory", "append", "-n", support, "--json", stdin=turns).json == {
        "turns": 3,
        "created": 2,
        "repeated": 1,
    }
    stored = sql.SQL("SELECT scope, log_offset, data_subject_id FROM {} ORDER BY 1, 2")
    assert connection.execute(stored.format(sql.Identifier(support, "observation"))).fetchall() == [
        ("ada", 0, "ada"),
        ("ada", 1, None),
        ("ada", 2, None),
        ("bob", 0, None),
        ("bob", 1, None),
    ]
    first = sql.SQL("SELECT occurred_at FROM {} WHERE scope = 'ada' AND log_offset = 0")
    assert connection.execute(first.format(sql.Identifier(support, "observation"))).fetchone() == (
        datetime(2026, 1, 31, 12, tzinfo=UTC),
    )


def test_nothing_to_load_is_no_error(run, support: str) -> None:
    assert run("memory", "append", "-n", support, "--json").json == {"turns": 0, "created": 0, "repeated": 0}


def test_a_scopes_turns_keep_the_order_of_the_file_across_batches(run, support: str, connection) -> None:
    turns = "".join(line(f"scope {number % 3}", f"word{number}") for number in range(1_203))
    assert run("memory", "append", "-n", support, "--json", stdin=turns).json["created"] == 1_203
    order = sql.SQL(
        "SELECT o.scope, array_agg(m.content ORDER BY o.log_offset) FROM {} AS o JOIN {} AS m USING (observation_id)"
        " GROUP BY o.scope ORDER BY o.scope"
    ).format(sql.Identifier(support, "observation"), sql.Identifier(support, "turn_message"))
    for index, (scope, contents) in enumerate(connection.execute(order).fetchall()):
        assert scope == f"scope {index}"
        assert contents == [f"word{number}" for number in range(index, 1_203, 3)]


GOOD = [line("ada", f"good {number}", idempotency_key=f"k{number}") for number in range(3)]
BAD = {
    "not JSON": ('{"scope": "ada", "rosebud', "line 4 is refused: not JSON (Unterminated string"),
    "not an object": ('["rosebud"]', "line 4 is refused: not a JSON object"),
    "NaN": ('{"scope": "ada", "messages": NaN}', "line 4 is refused: not JSON (NaN is no number there)"),
    "nested": ("[" * 100_000, "line 4 is refused: nested too deeply"),
    "no scope": ('{"messages": [{"role": "user", "content": "rosebud"}]}', "scope is refused: a string"),
    "empty scope": (line("", "rosebud"), "line 4 is refused: scope '' is refused"),
    "no messages": ('{"scope": "ada"}', "line 4 is refused: messages is"),
    "empty messages": ('{"scope": "ada", "messages": []}', "line 4 is refused: messages is empty"),
    "unknown role": ('{"scope": "ada", "messages": [{"role": "wizard", "content": "rosebud"}]}', "messages[0].role"),
    "unknown field": (line("ada", "rosebud", rosebud=1), "has other fields than"),
    "naive time": (line("ada", "rosebud", occurred_at="2026-01-31T12:00:00"), "occurred_at is refused"),
    "no time": (line("ada", "rosebud", occurred_at="rosebud"), "occurred_at is refused: ISO 8601 with a zone"),
    "a number for a time": (line("ada", "rosebud", occurred_at=5), "occurred_at is refused"),
    "NUL": (line("ada", "rosebud\x00"), "messages[0].content has a NUL at position 7"),
    "half a surrogate": (line("ada", "rosebud\ud83d"), "messages[0].content has half a surrogate pair at position 7"),
    "too long": (line("ada", "rosebud" * 10_000), "messages[0].content has 70000 characters: at most 65536"),
    "other turn": (line("ada", "rosebud", idempotency_key="k0"), "it stands for another turn"),
}  # fmt: skip


@pytest.mark.parametrize(("bad", "expected"), BAD.values(), ids=list(BAD))
def test_a_bad_line_is_named_by_its_number_and_what_stands_before_it_is_in(
    run, support: str, connection, bad: str, expected: str
) -> None:
    turns = "".join([*GOOD, bad.rstrip("\n") + "\n", line("ada", "never")])
    refused = run("memory", "append", "-n", support, stdin=turns).failed(1)
    assert expected in refused
    assert refused.startswith("line 4 is refused: ")
    assert refused.endswith("; 3 turns went in")
    assert "rosebud" not in refused
    assert MemoryStore(connection, support).freshness("ada").stored == 3
    # Mended, the whole file is loaded again: what was in is known by its key.
    mended = "".join(
        [*GOOD, line("ada", "mended", idempotency_key="k3"), line("ada", "last", idempotency_key="k4")]
    )
    assert run("memory", "append", "-n", support, "--json", stdin=mended).json == {
        "turns": 5,
        "created": 2,
        "repeated": 3,
    }


def test_a_bad_line_of_one_scope_does_not_double_the_others(run, support: str, connection) -> None:
    turns = line("ada", "one") + line("zoe", "two") + line("zoe", "three\x00") + line("bob", "never")
    assert run("memory", "append", "-n", support, stdin=turns).failed(1).startswith("line 3 is refused: ")
    store = MemoryStore(connection, support)
    assert [store.freshness(scope).stored for scope in ("ada", "bob", "zoe")] == [1, 0, 1]


def test_bytes_that_are_no_text_are_a_bad_line(run, support: str) -> None:
    turns = GOOD[0].encode() + b'{"scope": "\xff"}\n'
    assert (
        run("memory", "append", "-n", support, stdin=turns)
        .failed(1)
        .startswith("line 2 is refused: not valid UTF-8")
    )


DAMAGED = {
    "cut off": ("".join(GOOD).encode()[:-9], "line 3 is refused: not JSON (Unterminated string"),
    "UTF-16": (GOOD[0].encode() + GOOD[1].encode("utf-16"), "line 2 is refused: not valid UTF-8"),
    "UTF-16 unmarked": (GOOD[0].encode() + GOOD[1].encode("utf-16-le"), "line 2 is refused: not JSON ("),
    "Latin-1": (GOOD[0].encode() + b'{"scope": "caf\xe9"}\n', "line 2 is refused: not valid UTF-8"),
    "zeros": (GOOD[0].encode() + bytes(500) + b"\n", "line 2 is refused: not JSON ("),
    "a key twice": (
        GOOD[0] + line("ada", "other", idempotency_key="k0"),
        "line 2 is refused: idempotency_key is",
    ),
    "too long": (GOOD[0] + line("ada", "rosebud" * 200), "line 2 is refused: it is longer than 1,000 bytes"),
}


def test_a_file_that_is_damaged_or_odd_is_one_line_with_the_number_of_turns_that_went_in(
    run, support: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkkeeper.cli.lines.LONGEST", 1_000)
    for content, expected in DAMAGED.values():
        refused = run("memory", "append", "-n", support, stdin=content).failed(1)
        assert refused.startswith(expected)
        assert refused.endswith(f"; {2 if 'line 3' in expected else 1} turns went in")
        assert "rosebud" not in refused and "caf" not in refused


def test_a_mark_at_the_beginning_of_a_file_and_a_key_that_comes_twice_are_no_fault(run, support: str) -> None:
    turns = b"\xef\xbb\xbf" + "\r\n".join([*(text.strip() for text in GOOD), GOOD[1].strip()]).encode()
    assert run("memory", "append", "-n", support, "--json", stdin=turns).json == {
        "turns": 4,
        "created": 3,
        "repeated": 1,
    }


def test_long_lines_are_sent_in_smaller_batches(run, support: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parkkeeper.cli.lines.BATCH_BYTES", 300)
    sent: list[int] = []
    append_many = MemoryStore.append_many

    def counted(store: MemoryStore, scope: str, turns: Any, **more: Any) -> Any:
        sent.append(len(turns))
        return append_many(store, scope, turns, **more)

    monkeypatch.setattr(MemoryStore, "append_many", counted)
    turns = "".join(line("ada", "x" * 80) for _ in range(5))
    assert run("memory", "append", "-n", support, "--json", stdin=turns).json["created"] == 5
    assert sent == [3, 2]


def test_a_bad_line_beyond_the_first_batch_says_how_many_went_in(run, support: str, connection) -> None:
    turns = "".join(line("ada", f"w{number}") for number in range(BATCH + 200)) + "rosebud\n"
    assert (
        run("memory", "append", "-n", support, stdin=turns)
        .failed(1)
        .endswith(f"; {BATCH + 200} turns went in")
    )
    assert MemoryStore(connection, support).freshness("ada").stored == BATCH + 200


def test_what_cannot_be_stored_can_be_replaced(run, support: str) -> None:
    turns = line("ada", "one\x00two three\ud83d")
    assert run("memory", "append", "-n", support, "--on-invalid", "replace", stdin=turns).code == 0
    run("memory", "form", "-n", support)
    found = run("memory", "recall", "-n", support, "-s", "ada", "three", "--json").json["memories"]
    assert [memory["text"] for memory in found] == ["one\ufffdtwo three\ufffd"]


def test_turns_are_found_in_the_language_that_their_line_or_the_command_tells(run, support: str) -> None:
    turns = (
        line("ada", "two houses", language="en")
        + line("ada", "zwei Häuser")
        + line("ada", "drei Gärten", language=None)
    )
    assert run("memory", "append", "-n", support, "--language", "DE_at", stdin=turns).code == 0
    assert (
        run("memory", "append", "-n", support, "--language", "d'e", stdin=turns)
        .failed(2)
        .startswith("language is")
    )
    assert "line 1 is refused: language is refused" in run(
        "memory", "append", "-n", support, stdin=line("ada", "x", language="rosebud!")
    ).failed(1)
    run("memory", "form", "-n", support)
    found = run("memory", "recall", "-n", support, "-s", "ada", "house Haus Garten", "--json").json[
        "memories"
    ]
    assert {memory["text"] for memory in found} == {"two houses", "zwei Häuser", "drei Gärten"}


def test_forming_tells_what_it_did(run, support: str) -> None:
    run("memory", "append", "-n", support, stdin=line("ada", "hello") + line("bob", "hi"))
    formed = run("memory", "form", "-n", support, "--scope", "ada", "--json").json
    assert list(formed) == keys(FormationOutcome)
    assert (formed["formed"], formed["memories"], formed["backlog"]) == (1, 1, 0)
    assert run("memory", "form", "-n", support, "--limit", "1", "--json").json["formed"] == 1
    assert run("memory", "form", "-n", support, "--turn-budget", "30s", "--concurrency", "2").code == 0


def test_a_turn_that_will_not_form_is_parked_and_said_so(run, parked: str) -> None:
    assert run("memory", "turn", "-n", parked, "-s", "ada", "--offset", "1", "--json").json == {
        "scope": "ada",
        "log_offset": 1,
        "status": "parked",
    }
    fresh = run("memory", "freshness", "-n", parked, "-s", "ada", "--json").json
    assert list(fresh) == keys(Freshness)
    assert (fresh["stored"], fresh["formed"], fresh["formed_strict"], fresh["parked"]) == (3, 2, 0, 1)
    assert fresh["parked_ranges"] == [[1, 1]]
    assert datetime.fromisoformat(fresh["oldest_parked_at"]).utcoffset() is not None
    text = run("memory", "freshness", "-n", parked, "-s", "ada").out
    assert "1 turns are parked" in text
    assert "1-1" in text


def test_parked_turns_are_listed_by_page_without_a_word_of_theirs(run, parked: str) -> None:
    listed = run("memory", "parked", "-n", parked, "--json")
    (turn,) = listed.json
    assert list(turn) == keys(ParkedTurn)
    assert (turn["scope"], turn["log_offset"], turn["error_class"]) == ("ada", 1, "refusal")
    for printed in (listed.out, run("memory", "parked", "-n", parked).out):
        assert "rosebud" not in printed
        assert "refuse this" not in printed
    assert run("memory", "parked", "-n", parked, "--after", "ada:1", "--json").json == []
    assert len(run("memory", "parked", "-n", parked, "--after", "ada:0", "--json").json) == 1
    assert run("memory", "parked", "-n", parked, "--scope", "bob").out == "no parked turns\n"


@pytest.mark.parametrize(
    ("conditions", "count"),
    [
        ((), 1),
        (("--error-class", "refusal"), 1),
        (("--error-class", "timeout"), 0),
        (("--older-than", "1h"), 0),
        (("--scope", "bob"), 0),
        (("--max-park-count", "1", "--limit", "5"), 1),
        (("--id", "1", "--id", "3"), 0),
        (("--id", "2"), 1),
    ],
    ids=str,
)
def test_unparking_puts_back_what_meets_every_condition(run, parked: str, conditions, count: int) -> None:
    assert run("memory", "unpark", "-n", parked, *conditions, "--json").json == {"unparked": count}
    status = run("memory", "turn", "-n", parked, "-s", "ada", "--offset", "1", "--json").json["status"]
    assert status == ("pending" if count else "parked")


def test_a_sweep_tells_what_is_parked(run, parked: str) -> None:
    swept = run("memory", "sweep", "-n", parked, "--json").json
    assert list(swept) == keys(SweepOutcome)
    assert (swept["unparked"], swept["parked_total"], swept["by_class"]) == (0, 1, {"refusal": 1})
    assert "refusal 1" in run("memory", "sweep", "-n", parked).out


def test_a_circuit_tells_whether_the_provider_answers(run, support: str, tmp_path: Path, monkeypatch) -> None:
    assert run("memory", "circuit", "-n", support, "--json").json == []
    assert run("memory", "circuit", "-n", support).out == "no circuit: no extractor has failed\n"
    (tmp_path / "extractor_that_is_down.py").write_text(
        EXTRACTOR.replace('if any("refuse" in message["content"] for message in turn.messages)', "if True")
    )
    monkeypatch.chdir(tmp_path)
    run("memory", "append", "-n", support, stdin=line("ada", "first"))
    form = ("memory", "form", "-n", support, "--extractor", "extractor_that_is_down:picky")
    formed = run(*form, "--json").json
    assert (formed["failed"], formed["deferred"], formed["circuit"]) == (0, 1, "open")
    assert "see `parkkeeper memory circuit`" in run(*form).out

    (found,) = run("memory", "circuit", "-n", support, "--json").json
    assert list(found) == keys(Circuit)
    assert (found["extractor"], found["state"], found["error_class"]) == ("picky", "open", "refusal")
    printed = run("memory", "circuit", "-n", support).out
    assert "refusal" in printed and "rosebud" not in printed

    (due,) = run("memory", "circuit", "-n", support, "--probe-now", "--json").json
    assert (due["state"], due["canaries"]) == ("open", 1)
    assert due["next_probe_at"] < found["next_probe_at"]
    run(*form)
    assert run("memory", "circuit", "-n", support, "--json").json[0]["canaries"] == 2


def test_erasing_prints_the_receipt(run, support: str) -> None:
    run("memory", "append", "-n", support, stdin=line("ada", "hello", subject="s") + line("ada", "hi"))
    receipt = run("memory", "erase", "-n", support, "--subject", "s", "--reason", "subject_request", "--json")
    assert receipt.code == 0
    assert list(receipt.json) == keys(ErasureReceipt)
    assert receipt.json["clean"] is True
    assert receipt.json["deleted"]["observation"] == 1
    assert (
        "clean        yes"
        in run("memory", "erase", "-n", support, "--scope", "ada", "--id", "2", "--reason", "x").out
    )
    assert (
        run("memory", "turn", "-n", support, "-s", "ada", "--offset", "1", "--json").json["status"]
        == "erased"
    )


def test_an_erasure_is_requested_and_carried_out_by_its_number(run, support: str) -> None:
    run("memory", "append", "-n", support, stdin=line("ada", "hello", subject="s") + line("ada", "hi"))
    asked = run(
        "memory", "request-erasure", "-n", support, "--subject", "s", "--reason", "subject_request", "--json"
    )
    assert list(asked.json) == keys(ErasureRequest)
    assert (asked.json["turns"], asked.json["receipt"]) == (1, None)
    request_id = asked.json["request_id"]
    assert (
        run("memory", "turn", "-n", support, "-s", "ada", "--offset", "0", "--json").json["status"]
        == "pending"
    )
    assert run("memory", "erasure-requests", "-n", support, "--json").json == [asked.json]
    receipt = run("memory", "erase-requested", "-n", support, request_id, "--json")
    assert (receipt.code, list(receipt.json)) == (0, keys(ErasureReceipt))
    assert (receipt.json["request_id"], receipt.json["deleted"]["observation"]) == (request_id, 1)
    again = run("memory", "erase-requested", "-n", support, request_id, "--json").json
    assert again["deleted_now"]["observation"] == 0
    assert again == receipt.json | {"deleted_now": again["deleted_now"]}
    assert run("memory", "erasure-requests", "-n", support).out == "no erasure waits\n"
    unknown = run("memory", "erase-requested", "-n", support, "00000000-0000-0000-0000-000000000000")
    assert "no erasure was requested" in unknown.failed(1)


def test_recall_shows_memories_with_how_far_they_reach(run, parked: str) -> None:
    found = run("memory", "recall", "-n", parked, "-s", "ada", "third first", "--limit", "1", "--json").json
    assert list(found) == keys(Recall)
    assert len(found["memories"]) == 1
    assert found["freshness"]["parked"] == 1
    text = run("memory", "recall", "-n", parked, "-s", "ada", "third first").out
    assert "third" in text and "first" in text
    assert "Formed up to offset 2, 3 turns stored, 0 to be formed." in text
    assert "1 turns are parked and not in this memory." in text
    assert run("memory", "recall", "-n", parked, "-s", "ada", "nonsense").out.startswith("nothing found\n")


def test_what_was_said_cannot_steer_the_terminal(run, support: str) -> None:
    hostile = (
        "word \x1b]0;title\x07 \x1b[31m \u202e\x9b2J [bold]markup[/bold] :smile: \u0645\u06cc\u200c\u062e"
    )
    run("memory", "append", "-n", support, stdin=line("a\u202eda", hostile))
    run("memory", "form", "-n", support)
    for command in (("recall", "word"), ("freshness",)):
        printed = run("memory", command[0], "-n", support, "-s", "a\u202eda", *command[1:]).out
        assert not {c for c in printed if not c.isprintable()} - {"\n", "\u200c"}
    shown = run("memory", "recall", "-n", support, "-s", "a\u202eda", "word").out
    assert "[bold]markup[/bold] :smile:" in shown
    assert "\\x1b[31m" in shown


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """A provider of language models that the environment names, without a model."""
    with running() as provider:
        monkeypatch.setenv("PARKKEEPER_LLM_API_KEY", API_KEY)
        monkeypatch.setenv("PARKKEEPER_LLM_BASE_URL", provider.base_url)
        monkeypatch.delenv("PARKKEEPER_LLM_MODEL", raising=False)
        yield provider


def test_turns_are_formed_by_a_language_model_that_the_environment_names(
    run, support: str, asked: Provider
) -> None:
    assert run("memory", "append", "-n", support, stdin=line("ada", "hello")).code == 0
    formed = run("memory", "form", "-n", support, "--extractor", "llm", "--model", "a-model", "--json")
    assert (formed.json["formed"], formed.json["memories"]) == (1, 1)
    assert [request.body["model"] for request in asked.requests] == ["a-model"]


def test_a_language_model_that_nothing_names_is_refused_before_anything_is_sent(
    run, support: str, asked: Provider
) -> None:
    assert run("memory", "append", "-n", support, stdin=line("ada", "hello")).code == 0
    refused = run("memory", "form", "-n", support, "--extractor", "llm").failed(2)
    assert refused == "extractor 'llm' needs PARKKEEPER_LLM_MODEL in the environment"
    assert asked.requests == []


def test_what_a_failing_provider_says_is_not_printed(run, support: str, asked: Provider) -> None:
    asked.answer = lambda request: Reply({"error": {"message": f"rosebud {API_KEY}"}}, 400)
    assert run("memory", "append", "-n", support, stdin=line("ada", "rosebud")).code == 0
    formed = run("memory", "form", "-n", support, "--extractor", "llm", "--model", "m", "--json")
    assert (formed.code, formed.json["failed"], formed.err) == (0, 1, "")
    assert "rosebud" not in formed.out
    assert API_KEY not in formed.out


def test_an_extractor_without_a_model_takes_none(run, support: str) -> None:
    refused = run("memory", "form", "-n", support, "--model", "m").failed(2)
    assert refused == "extractor 'chunks' cannot be made with model"
