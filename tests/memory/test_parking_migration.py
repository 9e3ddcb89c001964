"""0009 and what follows it: every name of it, what each constraint refuses, and what an upgrade finds."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import errors

from memory_kit import Database, failing, say
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import ERROR_CLASSES
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.memory.turns import ROLES
from parkkeeper.migrations import migrate

INDEXES = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = %s AND tablename = 'observation'"
CHECKS = """
    SELECT conname, convalidated FROM pg_constraint
     WHERE contype = 'c' AND conrelid = %s::regclass ORDER BY conname
"""


@pytest.fixture
def before(connection: psycopg.Connection[Any], namespace: str, db: Database) -> Database:
    """The namespace as it was just before parking, with a formed turn and one to be formed."""
    migrate(connection, namespace, "memory", target=4)
    db("INSERT INTO {schema}.watermark VALUES ('s', 2)")
    db(
        "INSERT INTO {schema}.observation (scope, log_offset, occurred_at, formed_at) "
        "VALUES ('s', 0, now(), now()), ('s', 2, now(), NULL)"
    )
    return db


def columns(db: Database) -> dict[str, str]:
    return dict(
        db(
            "SELECT column_name, data_type || ' ' || is_nullable FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = 'observation'",
            (db.namespace.name,),
        )
    )


def indexes(db: Database) -> dict[str, str]:
    """Return the indexes of observation: what stands behind the name of the table."""
    return {name: text.split(" USING btree ")[1] for name, text in db(INDEXES, (db.namespace.name,))}


def test_0009_replaces_the_unformed_index_by_a_backlog_that_leaves_parked_turns_out(
    before: Database, connection: psycopg.Connection[Any], namespace: str
) -> None:
    assert indexes(before)["observation_unformed_idx"] == "(scope, log_offset) WHERE (formed_at IS NULL)"
    migrate(connection, namespace, "memory", target=9)
    after = indexes(before)
    assert "observation_unformed_idx" not in after
    assert (
        after["observation_backlog_idx"]
        == "(scope, log_offset) WHERE ((formed_at IS NULL) AND (parked_at IS NULL))"
    )
    assert after["observation_parked_idx"] == "(scope) WHERE (parked_at IS NOT NULL)"


def test_0009_adds_its_columns_and_says_what_they_mean(
    before: Database, connection: psycopg.Connection[Any], namespace: str
) -> None:
    migrate(connection, namespace, "memory", target=9)
    found = columns(before)
    assert {name: found[name] for name in found if name.startswith(("formation", "parked"))} == {
        "formation_attempts": "integer NO",
        "formation_failed_at": "timestamp with time zone YES",
        "formation_error": "text YES",
        "parked_at": "timestamp with time zone YES",
    }
    for column in ("parked_at", "formation_error"):
        comment = before.one(
            "SELECT col_description(%s::regclass, (SELECT attnum FROM pg_attribute WHERE attrelid = %s::regclass "
            "AND attname = %s))",
            (f"{namespace}.observation", f"{namespace}.observation", column),
        )
        assert len(comment) > 100
    assert before("SELECT formation_attempts, parked_at FROM {schema}.observation") == [(0, None)] * 2


@pytest.mark.parametrize("target", [9, None])
@pytest.mark.parametrize(
    ("constraint", "change"),
    [
        ("observation_attempts_chk", "formation_attempts = -1"),
        ("observation_parked_chk", "parked_at = now()"),
        (
            "observation_parked_not_formed_chk",
            "formation_attempts = 1, parked_at = now(), formed_at = now()",
        ),
        ("observation_error_length_chk", "formation_error = repeat('ж', 2001)"),
    ],
)
def test_each_constraint_refuses_what_it_is_there_for_from_0009_on(
    before: Database,
    connection: psycopg.Connection[Any],
    namespace: str,
    target: int | None,
    constraint: str,
    change: str,
) -> None:
    migrate(connection, namespace, "memory", target=target)
    with pytest.raises(errors.CheckViolation) as refused:
        before(f"UPDATE {{schema}}.observation SET {change} WHERE log_offset = 2")  # noqa: S608
    assert refused.value.diag.constraint_name == constraint
    before(
        "UPDATE {schema}.observation SET formation_attempts = 1, parked_at = now(), "
        "formation_error = repeat('ж', 2000) WHERE log_offset = 2"
    )


def test_the_constraints_are_checked_against_old_rows_in_a_step_of_their_own(
    before: Database, connection: psycopg.Connection[Any], namespace: str
) -> None:
    names = [
        "observation_attempts_chk",
        "observation_error_length_chk",
        "observation_parked_chk",
        "observation_parked_not_formed_chk",
    ]
    table = f"{namespace}.observation"
    migrate(connection, namespace, "memory", target=9)
    assert before(CHECKS, (table,)) == [(name, False) for name in names]
    migrate(connection, namespace, "memory", target=10)
    assert before(CHECKS, (table,)) == [(name, True) for name in names]


def test_an_upgrade_counts_the_turns_that_it_finds(
    before: Database, connection: psycopg.Connection[Any], namespace: str
) -> None:
    migrate(connection, namespace, "memory", target=9)
    before("INSERT INTO {schema}.watermark VALUES ('empty', -1), ('parked', 0), ('gone', 1)")
    before(
        "INSERT INTO {schema}.observation (scope, log_offset, occurred_at, formation_attempts, parked_at) "
        "VALUES ('parked', 0, now(), 3, now())"
    )
    migrate(connection, namespace, "memory")
    store = MemoryStore(connection, namespace)

    found = store.freshness("s")
    assert (found.stored, found.formed, found.formed_strict) == (3, 1, 1)
    assert (found.parked, found.erased, found.backlog) == (0, 1, 1)
    assert store.freshness("empty").stored == 0
    found = store.freshness("parked")
    assert (found.formed, found.formed_strict, found.parked, found.by_class) == (0, None, 1, {"other": 1})
    assert store.freshness("gone").formed == 1

    assert store.form_batch(Chunks()).formed == 1
    assert store.freshness("s").formed == 2
    assert store.unpark() == 1


def test_claims_and_parked_pages_have_their_indexes(store: MemoryStore, db: Database) -> None:
    found = indexes(db)
    backlog = "WHERE ((formed_at IS NULL) AND (parked_at IS NULL))"
    assert found["observation_due_idx"] == f"(scope, next_attempt_at, log_offset) {backlog}"
    assert found["observation_parked_offset_idx"] == "(scope, log_offset) WHERE (parked_at IS NOT NULL)"
    assert columns(db)["next_attempt_at"] == "timestamp with time zone NO"


@pytest.mark.parametrize(
    ("type_name", "values"), [("formation_error_class", ERROR_CLASSES), ("message_role", ROLES)]
)
def test_the_closed_lists_of_the_database_are_those_of_the_code(
    store: MemoryStore, db: Database, type_name: str, values: tuple[str, ...]
) -> None:
    found = db("SELECT unnest(enum_range(NULL::{schema}." + type_name + "))::text")
    assert {value for (value,) in found} == set(values)


def test_a_class_outside_the_list_is_refused_without_printing_the_row(
    store: MemoryStore, db: Database
) -> None:
    store.append("s", say("hello"))
    store.form_batch(failing("malformed", "MARKER"))
    with pytest.raises(errors.InvalidTextRepresentation) as refused:
        db("UPDATE {schema}.observation SET formation_error_class = 'sulking'")
    assert "MARKER" not in str(refused.value)


def test_no_statistics_are_kept_of_columns_with_personal_data(store: MemoryStore, db: Database) -> None:
    # attstattarget is null or -1 where the default applies.
    found = db(
        "SELECT c.relname || '.' || a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid "
        "WHERE c.relnamespace = %s::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND a.attstattarget = 0",
        (db.namespace.name,),
    )
    assert {name for (name,) in found} == {
        "observation.data_subject_id",
        "observation.formation_error",
        "observation.language",
        "memory.language",
        "turn_message.content",
        "memory.kind",
        "memory.text",
        "memory.search_text",
        "memory.search",
        "turn_idempotency.key_digest",
        "turn_idempotency.content_digest",
        "erasure_request.subject_digest",
    }
