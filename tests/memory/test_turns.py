"""What may be appended, and how a refusal is said: where, why and what to do, never the words."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from memory_kit import Database, say
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import InvalidTurn, MemoryStore
from parkkeeper.memory.extractors.chunks import Chunks

SURROGATE = json.loads('[{"role": "user", "content": "ok \\ud83d"}]')


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (say("fine", "a\x00b"), r"messages\[1\]\.content has a NUL at position 1"),
        (SURROGATE, r"messages\[0\]\.content has half a surrogate pair at position 3"),
        ([], r"messages is empty: a turn has at least one message"),
        (
            [{"role": "wizard", "content": "MARKER"}],
            r"messages\[0\]\.role is refused: one of system, user, assistant, tool",
        ),
        (say("x" * 65_537), r"messages\[0\]\.content has 65537 characters: at most 65536"),
        ([*say("fine"), {"role": "user", "content": 5}], r"messages\[1\]\.content is a int"),
        ([{"role": "user"}], r"messages\[0\] is no mapping of exactly role and content"),
        ([{"role": "user", "content": "MARKER", "name": "x"}], r"messages\[0\] is no mapping of exactly"),
        (["MARKER"], r"messages\[0\] is no mapping"),
        ("MARKER", r"messages is a str: a list"),
        (None, r"messages is a NoneType: a list"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_the_database_is_asked(
    store: MemoryStore, messages: Any, said: str
) -> None:
    store.connection.close()
    with pytest.raises(InvalidTurn, match=said) as refused:
        store.append("s", messages)
    assert "MARKER" not in str(refused.value)
    assert "xxx" not in str(refused.value)


@pytest.mark.parametrize(("messages", "stored"), [(say("a\x00b"), "a\ufffdb"), (SURROGATE, "ok \ufffd")])
def test_what_postgres_cannot_hold_is_replaced_on_request(
    store: MemoryStore, db: Database, messages: Any, stored: str
) -> None:
    first = store.append("s", messages, on_invalid="replace", idempotency_key="k")
    again = store.append("s", messages, on_invalid="replace", idempotency_key="k")
    assert (first.created, again.created) == (True, False)
    assert db.one("SELECT content FROM {schema}.turn_message") == stored
    assert store.append_many("s", [{"messages": messages}], on_invalid="replace")[0].log_offset == 1
    assert store.form_batch(Chunks()).formed == 2


def test_the_longest_content_is_accepted_and_counted_in_characters(store: MemoryStore) -> None:
    store.append("s", say("ж" * 65_536, "🦉" * 65_536, ""))
    assert store.form_batch(Chunks()).formed == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("subject", ""),
        ("subject", "x" * 201),
        ("subject", "MARKER\x00"),
        ("subject", 7),
        ("idempotency_key", ""),
        ("idempotency_key", "MARKER\ud83d"),
        ("idempotency_key", "x" * 1001),
        ("occurred_at", datetime(2020, 1, 1)),
        ("occurred_at", "2020-01-01T00:00:00Z"),
        ("occurred_at", datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))),
        ("occurred_at", datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))),
    ],
)
def test_a_field_outside_its_rule_is_named_and_not_shown(store: MemoryStore, field: str, value: Any) -> None:
    with pytest.raises(InvalidTurn, match=rf"^{field} is refused: None or") as refused:
        store.append("s", say("a"), **{field: value})
    assert "MARKER" not in str(refused.value)


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
@pytest.mark.parametrize("said", [datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, 23, tzinfo=UTC)])
def test_the_first_and_the_last_time_that_is_accepted_can_be_read_in_every_zone(
    store: MemoryStore, zone: str, said: datetime
) -> None:
    store.connection.execute("SELECT set_config('timezone', %s, false)", (zone,))
    store.append("s", say("word"), occurred_at=said)
    assert store.form_batch(Chunks()).formed == 1
    (found,) = store.recall("s", "word").memories
    assert found.occurred_at == said


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ({"messages": say("a"), "MARKER": 1}, r"turns\[1\] has other fields than messages, subject"),
        ("MARKER", r"turns\[1\] is a str: a mapping"),
        ({"messages": say("a\x00")}, r"turns\[1\]\.messages\[0\]\.content has a NUL at position 1"),
        ({"messages": say("a"), "subject": ""}, r"turns\[1\]\.subject is refused"),
    ],
)
def test_a_bad_turn_among_many_is_named(store: MemoryStore, turn: Any, said: str) -> None:
    with pytest.raises(InvalidTurn, match=said) as refused:
        store.append_many("s", [{"messages": say("fine")}, turn])
    assert "MARKER" not in str(refused.value)
    assert store.freshness("s").stored == 0


def test_an_unknown_way_with_invalid_content_is_refused(store: MemoryStore) -> None:
    with pytest.raises(InvalidArgument, match="on_invalid 'drop' is refused: one of reject, replace"):
        store.append("s", say("a"), on_invalid="drop")
