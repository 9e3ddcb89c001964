"""Which names a namespace may have, and that a refused one never reaches the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parkkeeper import migrations
from parkkeeper.errors import InvalidNamespace
from parkkeeper.namespace import Namespace

REFUSED = [
    "",
    "a" * 49,
    "A",
    "Upper",
    "1a",
    "_a",
    "a-b",
    "a.b",
    "a b",
    " a",
    "a ",
    "a\n",
    "a\r",
    "a\x00",
    'a"b',
    'a"; DROP SCHEMA public; --',
    "a'b",
    "{schema}",
    "a;b",
    "é",
    "aé",
    "a\u0661",
    "a\uff11",
    "\u0430bc",
    "a\ud800",
    "public",
    "information_schema",
    "pg_",
    "pg_catalog",
    "pg_toast",
    None,
    1,
    b"abc",
    ["abc"],
]


@pytest.mark.parametrize(
    "name", ["a", "a" * 48, "tenant_1", "a_", "a1", "pga", "publics", "select", "user", "order"]
)
def test_an_allowed_name_is_rendered_as_a_quoted_identifier(name: str) -> None:
    assert Namespace(name).identifier == f'"{name}"'
    assert str(Namespace.of(Namespace.of(name))) == name


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_a_refused_name_is_shown_with_the_rule_in_one_line(name: Any) -> None:
    with pytest.raises(InvalidNamespace) as refused:
        Namespace(name)
    assert "is refused:" in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "action",
    [
        lambda name: migrations.migrate(None, name, "queue"),  # type: ignore[arg-type]
        lambda name: migrations.plan(None, name, "queue"),  # type: ignore[arg-type]
        lambda name: migrations.status(None, name, "queue"),  # type: ignore[arg-type]
        lambda name: migrations.require(None, name, "queue"),  # type: ignore[arg-type]
        lambda name: migrations.render(name, "queue"),
    ],
    ids=["migrate", "plan", "status", "require", "render"],
)
@pytest.mark.parametrize("name", ["public", "a" * 49, "a\n"], ids=ascii)
def test_a_refused_name_needs_no_connection_to_be_refused(action: Callable[[str], Any], name: str) -> None:
    with pytest.raises(InvalidNamespace):
        action(name)


@pytest.mark.parametrize("name", ["select", "user", "a" * 48])
def test_a_keyword_and_the_longest_name_can_be_migrated(connection: Any, namespace: str, name: str) -> None:
    # A name of the test's own that is as long, or as much of a keyword, as names get.
    longest = (namespace + "_" + name).ljust(48, "x")[:48]
    try:
        assert migrations.migrate(connection, longest, "queue", queue_slots=4)
        migrations.require(connection, longest, "queue")
    finally:
        connection.execute(f"DROP SCHEMA IF EXISTS {Namespace(longest).identifier} CASCADE".encode())
