"""What is kept of a provider's error: cut by characters, without secrets, and always something Postgres can hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg import errors

from memory_kit import Database, failing, say
from parkkeeper.error_text import kept_error
from parkkeeper.memory import MemoryStore


@pytest.mark.parametrize("character", ["x", "ж", "漢", "🦉"])
def test_a_long_text_is_cut_to_2000_characters_of_any_width(
    store: MemoryStore, db: Database, character: str
) -> None:
    store.append("s", say("x"))
    assert store.form_batch(failing("refusal", character * 5_000)).parked == 1
    assert db.turn(0, "formation_error") == character * 2_000


def test_no_text_of_a_failure_comes_into_the_log_of_the_server(store: MemoryStore, db: Database) -> None:
    log = Path(db.one("SHOW data_directory")).parent / "server.log"
    if not log.exists():
        pytest.skip("the server is another's (PARKKEEPER_DSN), and its log is not here")
    before = log.stat().st_size
    texts = [
        "MARKER" * 1_000,
        "MARKER漢" * 1_000,
        "MARKER\x00" * 500,
        "MARKER\ud83d" * 500,
        b"MARKER\xff" * 500,
    ]
    for index, text in enumerate(texts):
        store.append("s", say("x"))
        assert store.form_batch(failing("refusal", text, offsets=[index])).parked == 1
    # A row that the CHECK refuses may be printed there, with the text: it never comes to that, and this is the log.
    said = log.read_bytes()[before:]
    with pytest.raises(errors.CheckViolation):
        db("UPDATE {schema}.observation SET formation_error = repeat('x', 2001)")
    told = log.read_bytes()[before + len(said) :]
    assert b"observation_error_length_chk" in told
    assert b"observation_error_length_chk" not in said and b"MARKER" not in said


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("a\x00b\x01c\x1fd\re", "abcde"),
        ("a\tb\nc", "a\tb\nc"),
        ("half \ud83d pair", "half \ufffd pair"),
        (b"caf\xc3\xa9 \xff", "café \ufffd"),
        (bytearray(b"x"), "x"),
        (ValueError("no"), "ValueError: no"),
        (None, "None"),
    ],
)
def test_whatever_comes_is_made_storable(
    store: MemoryStore, db: Database, message: object, kept: str
) -> None:
    assert kept_error(message) == kept
    store.append("s", say("x"))
    assert store.form_batch(failing("refusal", message)).parked == 1
    assert db.turn(0, "formation_error") == kept


@pytest.mark.parametrize(
    "message",
    [
        "Incorrect API key provided: SECRET",
        "Authorization: Bearer SECRET",
        "authorization: basic SECRET",
        "GET https://api.example.com/v1?key=SECRET&x=1",
        "https://user:SECRET@example.com/",
        '{"api_key": "SECRET", "model": "m"}',
        "x-api-key: SECRET",
        "token=SECRET",
        "access_token: 'SECRET'",
        "Bearer\tSECRET",
        "Bea\x00rer SEC\x00RET".replace("SEC\x00RET", "sk-live\x00-51HzzFAKEzzFAKEzzFAKE"),
    ],
)
def test_secrets_are_removed_wherever_they_stand(message: str) -> None:
    secret = "sk-live-51HzzFAKEzzFAKEzzFAKE"
    kept = kept_error(message.replace("SECRET", secret))
    assert "FAKE" not in kept and "[redacted]" in kept


@pytest.mark.parametrize(
    "message",
    [
        "Authorization: Bearer SECRET",
        "authorization: basic SECRET",
        "GET https://api.example.com/v1?key=SECRET&x=1",
        "https://user:SECRET@example.com/",
        '{"api_key": "SECRET", "model": "m"}',
        '{"apiKey":"SECRET"}',
        "x-api-key: SECRET",
        "Ocp-Apim-Subscription-Key: SECRET",
        "OPENAI_API_KEY=SECRET",
        "refresh_token=SECRET",
        "{'id_token': 'SECRET'}",
        "token=SECRET",
        "client_secret=SECRET",
        "Bearer 'SECRET'",
    ],
)
def test_a_secret_that_only_its_name_tells_is_removed(message: str) -> None:
    kept = kept_error(message.replace("SECRET", "0pqFAKE77zFAKE"))
    assert "FAKE" not in kept and "[redacted]" in kept


@pytest.mark.parametrize(
    "message", ["the monkey: banana", "keyboard=qwerty", "a turkey=dinner", "tokens: 1234"]
)
def test_words_that_only_sound_like_names_of_secrets_stay(message: str) -> None:
    assert kept_error(message) == message


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcDEF123_456-xyz",
        "ghp_0123456789abcdefghij",
        "xoxb-1234567890-abcdef",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA0123456789abcdefghijk",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    ],
)
def test_keys_of_known_shapes_are_removed_without_a_name_before_them(secret: str) -> None:
    assert kept_error(f"it said {secret}.") == "it said [redacted]."


def test_a_secret_at_the_cut_is_removed_before_it_is_cut() -> None:
    kept = kept_error("x" * 1_990 + " sk-live-51HzzFAKEzzFAKE")
    assert len(kept) == 2_000
    assert "sk-" not in kept


@pytest.mark.parametrize(
    "message",
    [
        "maximum context length is 8192 tokens",
        "the monkey: banana",
        "no password was given",
        "risk-free-of-charge",
    ],
)
def test_plain_words_are_kept(message: str) -> None:
    assert kept_error(message) == message


@pytest.mark.parametrize(
    "part", ["api_", "key=", "a@", "://x:", "bearer ", "eyJ", "sk-", "x-", "api-", "eyJ-", "key \n"]
)
def test_a_hostile_text_takes_no_more_time_than_its_length(part: str) -> None:
    # A pattern that backtracks would not come to an end; the suite's timeout would say so.
    assert len(kept_error(part * 500_000)) <= 2_000
