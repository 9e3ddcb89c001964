"""The commands that are about a memory as a whole: what they print, and what they leave in the namespace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from psycopg import sql

EXTRACTORS = """
from parkkeeper.memory.extractors import ExtractionError, Memory

class Shouting:
    name, version = "shouting", "1"

    def extract(self, turn):
        return [Memory(message["content"].upper()) for message in turn.messages]

class Refusing(Shouting):
    def extract(self, turn):
        if turn.log_offset < 0:
            return []
        raise ExtractionError("refusal")

class Down(Shouting):
    def extract(self, turn):
        raise ExtractionError("unavailable")
"""


@pytest.fixture
def formed(run, support: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A namespace in which three turns of scope ada are formed."""
    (tmp_path / "other_extractors.py").write_text(EXTRACTORS)
    monkeypatch.chdir(tmp_path)
    turns = "".join(
        json.dumps({"scope": "ada", "messages": [{"role": "user", "content": f"word {number}"}]}) + "\n"
        for number in range(3)
    )
    assert run("memory", "append", "-n", support, stdin=turns).code == 0
    assert run("memory", "form", "-n", support).code == 0
    return support


def test_a_rebuild_replaces_the_memory_and_is_listed(run, formed: str) -> None:
    rebuild = ("memory", "rebuild", "-n", formed, "-s", "ada", "--extractor", "other_extractors:Shouting")
    assert run(*rebuild, "--json").json == {
        "rebuilt": 3,
        "failed": 0,
        "skipped": 0,
        "through_offset": 2,
        "done": True,
        "circuit": "closed",
    }
    found = run("memory", "recall", "-n", formed, "-s", "ada", "word", "--json").json["memories"]
    assert {memory["text"] for memory in found} == {"WORD 0", "WORD 1", "WORD 2"}
    (listed,) = run("memory", "rebuilds", "-n", formed, "--json").json
    assert (listed["state"], listed["rebuilt"], listed["failed_offsets"]) == ("done", 3, [])


def test_a_rebuild_whose_provider_does_not_answer_ends_and_can_be_cancelled(run, formed: str) -> None:
    rebuild = ("memory", "rebuild", "-n", formed, "-s", "ada", "--extractor", "other_extractors:Down")
    stopped = run(*rebuild)
    assert (stopped.code, "The provider does not answer" in stopped.out) == (1, True)
    other = run("memory", "rebuild", "-n", formed, "-s", "ada").failed(1)
    assert "scope ada has a rebuild with shouting 1" in other
    assert run("memory", "rebuild", "-n", formed, "-s", "ada", "--cancel", "--json").json == {
        "cancelled": True
    }
    assert run("memory", "rebuild", "-n", formed, "-s", "ada").code == 0
    assert run("memory", "rebuilds", "-n", formed, "-s", "bob").out == "no rebuilds\n"


def test_expiring_and_dropping_print_the_receipt(run, formed: str) -> None:
    young = run(
        "memory", "expire", "-n", formed, "--older-than", "1d", "--reason", "retention", "--json"
    ).json
    assert (young["deleted"]["observation"], young["clean"]) == (0, True)
    dropped = run("memory", "drop", "-n", formed, "-s", "ada", "--reason", "account_closed", "--json").json
    assert (dropped["deleted"]["observation"], dropped["residual"], dropped["clean"]) == (
        3,
        {"observation": 0},
        True,
    )
    assert "reason is refused" in run("memory", "drop", "-n", formed, "-s", "ada", "--reason", "A b").failed(
        2
    )


def test_pauses_and_caps_are_set_shown_and_taken_away(run, formed: str) -> None:
    assert run("memory", "pause", "-n", formed).failed(2).startswith("scope and extractor: give one of them")
    paused = run("memory", "pause", "-n", formed, "-s", "ada", "--json").json
    assert [scope["scope"] for scope in paused["scopes"] if scope["paused_at"]] == ["ada"]
    assert run("memory", "freshness", "-n", formed, "-s", "ada", "--json").json["paused_at"] is not None
    assert list(
        run("memory", "pause", "-n", formed, "--extractor", "llm", "--json").json["paused_extractors"]
    ) == ["llm"]
    assert "FormationPaused" not in run("memory", "rebuild", "-n", formed, "-s", "ada").failed(1)
    run("memory", "resume", "-n", formed, "-s", "ada")
    run("memory", "resume", "-n", formed, "--extractor", "llm")
    assert run("memory", "cap", "-n", formed, "--turns", "5", "--json").json["backlog_cap"] == 5
    run("memory", "cap", "-n", formed, "-s", "ada", "--turns", "1")
    turn = json.dumps({"scope": "ada", "messages": [{"role": "user", "content": "rosebud"}]}) + "\n"
    refused = run("memory", "append", "-n", formed, stdin=turn * 2).failed(1)
    assert "over its cap of 1" in refused and "rosebud" not in refused
    run("memory", "cap", "-n", formed, "-s", "ada")
    run("memory", "cap", "-n", formed)
    nothing = {"backlog_cap": None, "scopes": [], "paused_extractors": {}}
    assert run("memory", "settings", "-n", formed, "--json").json == nothing


def test_a_sweep_takes_a_policy_and_may_be_dry(run, formed: str) -> None:
    turn = json.dumps({"scope": "ada", "messages": [{"role": "user", "content": "x"}]}) + "\n"
    run("memory", "append", "-n", formed, stdin=turn)
    run("memory", "form", "-n", formed, "--extractor", "other_extractors:Refusing")
    sweep = ("memory", "sweep", "-n", formed, "-s", "ada", "--json")
    assert run(*sweep).json["unparked"] == 0
    asked = (
        "--error-class",
        "refusal",
        "--max-park-count",
        "1",
        "--unpark-limit",
        "9",
        "--max-attempts",
        "6",
    )
    assert run(*sweep, *asked, "--parked-for", "1h").json["unparked"] == 0
    dry = run(*sweep, *asked, "--dry-run").json
    assert (dry["unparked_by_class"], dry["by_scope"]) == ({"refusal": 1}, {"ada": 1})
    assert run(*sweep, "--no-unpark").json["unparked"] == 0
    assert run(*sweep, *asked).json["by_scope"] == {}
    assert "give one of them" in run(*sweep, "--no-unpark", "--error-class", "refusal").failed(2)


def test_numbers_are_verified(run, formed: str, connection) -> None:
    assert run("memory", "verify", "-n", formed).out == "every number is what a count of the rows says\n"
    connection.execute(sql.SQL("UPDATE {}.watermark_formed SET formed = 9").format(sql.Identifier(formed)))
    wrong = run("memory", "verify", "-n", formed, "--json")
    assert (wrong.code, wrong.json) == (1, [{"scope": "ada", "name": "formed", "kept": 9, "counted": 3}])


def test_a_namespace_is_dropped_when_its_name_is_given_twice(run, formed: str, connection) -> None:
    drop = ("memory", "drop-namespace", "-n", formed, "--reason", "offboarding")
    run(*drop).failed(2)
    assert run(*drop, "--confirm", "other").failed(2).startswith("confirm is refused")
    run("memory", "freshness", "-n", formed, "-s", "ada")
    connection.execute(sql.SQL("CREATE TABLE {} ()").format(sql.Identifier(formed, "theirs")))
    assert "theirs" in run(*drop, "--confirm", formed).failed(1)
    connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(formed, "theirs")))
    receipt = run(*drop, "--confirm", formed, "--json").json
    assert receipt == {
        "namespace": formed,
        "reason": "offboarding",
        "dropped": {
            "scope": 1,
            "observation": 3,
            "parked": 0,
            "turn_message": 3,
            "memory": 3,
            "idempotency_digest": 0,
            "erasure_request": 0,
        },
        "schema_dropped": True,
    }
    run("memory", "freshness", "-n", formed, "-s", "ada").failed(4)
