"""The demo's turns: what is read, what is appended, what is parked."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import psycopg
import pytest

from parkkeeper import migrations
from parkkeeper.demo import corpus
from parkkeeper.memory import MemoryStore
from parkkeeper.namespace import Namespace


def test_reads_conversations_in_several_scripts() -> None:
    conversations = corpus.read()
    scopes = Counter(conversation.scope for conversation in conversations)
    assert set(scopes) == set(corpus.LANGUAGES)
    assert scopes["english"] > 1000
    assert min(scopes.values()) >= 5
    texts = {
        scope: "".join(m for c in conversations if c.scope == scope for m in c.messages) for scope in scopes
    }
    assert "привет" in texts["russian"].lower()
    assert "你好" in texts["chinese"]
    assert all(isinstance(message, str) for c in conversations for message in c.messages)


def test_finds_the_turns_that_have_no_reply() -> None:
    conversations = corpus.read([corpus.BROKEN_SCOPE])
    offsets = corpus.broken_offsets(conversations)
    assert len(offsets) == 2
    assert all(len(conversations[offset].messages) == 1 for offset in offsets)


def test_a_missing_corpus_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "chatterbot_corpus", None)
    with pytest.raises(corpus.CorpusMissing, match=r"pip install 'airflow-provider-parkkeeper\[demo\]'"):
        corpus.read()


def test_parks_the_turns_without_a_reply_and_forms_the_rest(
    connection: psycopg.Connection[Any], namespace: str
) -> None:
    migrations.migrate(connection, namespace, "memory")
    conversations = corpus.read([corpus.BROKEN_SCOPE])
    first, last = corpus.broken_offsets(conversations)
    assert corpus.append(connection, Namespace(namespace), conversations) == len(conversations)

    assert corpus.form_until_parked(connection, Namespace(namespace)) == 2

    store = MemoryStore(connection, namespace)
    freshness = store.freshness(corpus.BROKEN_SCOPE)
    assert (freshness.stored, freshness.formed) == (len(conversations), len(conversations) - 1)
    assert (freshness.formed_strict, freshness.backlog) == (first - 1, 0)
    assert dict(freshness.by_class) == {"malformed": 2}
    parked = store.parked(corpus.BROKEN_SCOPE)
    assert [(turn.log_offset, turn.attempts) for turn in parked] == [
        (first, corpus.MAX_ATTEMPTS),
        (last, corpus.MAX_ATTEMPTS),
    ]
