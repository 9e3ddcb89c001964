"""The watermark is found after the wait for its row, whoever waits for whom."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from memory_kit import PATIENCE, Database, failing, in_thread, say, until
from parkkeeper.memory import MemoryStore, RebuildActive, RebuildCancelled
from parkkeeper.memory.extractors.chunks import Chunks

GATE = 8_240_631  # an advisory lock of the test's own

#: After each change of the watermark the session called "first" waits for the gate before it commits.
HOLD = """
    CREATE FUNCTION {schema}.hold() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('application_name') = 'first' THEN
            PERFORM pg_advisory_xact_lock_shared(8240631);
        END IF;
        RETURN NULL;
    END $$
"""
TRIGGER = """
    CREATE TRIGGER hold AFTER UPDATE ON {schema}.watermark_formed FOR EACH ROW EXECUTE FUNCTION {schema}.hold()
"""

#: What one recount of the rows says of a scope.
RECOUNT = """
    SELECT w.log_offset + 1,
           coalesce(min(o.log_offset) FILTER (WHERE formed_at IS NULL AND parked_at IS NULL) - 1, w.log_offset),
           coalesce(min(o.log_offset) FILTER (WHERE formed_at IS NULL) - 1, w.log_offset),
           count(parked_at),
           count(o.log_offset) FILTER (WHERE formed_at IS NULL AND parked_at IS NULL),
           w.log_offset + 1 - count(o.log_offset)
      FROM {schema}.watermark AS w LEFT JOIN {schema}.observation AS o ON o.scope = w.scope
     WHERE w.scope = 's'
     GROUP BY w.log_offset
"""

Action = Callable[[MemoryStore], object]
ACTIONS: dict[str, Action] = {
    "form": lambda store: store.form_batch(Chunks(), limit=1),
    "park": lambda store: store.form_batch(failing("too_long"), limit=1),
    "sweep": lambda store: store.sweep(),
    "unpark": lambda store: store.unpark(error_class="refusal"),
    "unpark another": lambda store: store.unpark(error_class="malformed"),
    "erase": lambda store: store.erase(subject="ann", reason="request"),
    "rebuild": lambda store: rebuilt(store),
    "drop": lambda store: store.drop("s", reason="request"),
}


def rebuilt(store: MemoryStore) -> None:
    with suppress(RebuildActive, RebuildCancelled):
        store.rebuild("s", Chunks())


@pytest.fixture
def mixed(store: MemoryStore, db: Database) -> MemoryStore:
    """A scope with two parked turns, one at its cap, one of a subject's that is pending, and two that are due."""
    for error_class in ("refusal", "malformed"):
        store.append("s", say("x"))
        assert store.form_batch(failing(error_class), max_attempts=1).parked == 1
    store.append_many(
        "s", [{"messages": say("x"), "subject": subject} for subject in ("bob", "ann", "bob", "bob")]
    )
    db(
        "UPDATE {schema}.observation SET formation_attempts = 6, next_attempt_at = 'infinity' WHERE log_offset = 2"
    )
    db("UPDATE {schema}.observation SET next_attempt_at = 'infinity' WHERE log_offset = 3")
    return store


@pytest.mark.parametrize("second", ACTIONS)
@pytest.mark.parametrize("first", ACTIONS)
def test_two_at_once_leave_what_a_recount_of_the_rows_says(
    mixed: MemoryStore, another: Callable[..., MemoryStore], db: Database, first: str, second: str
) -> None:
    leading, following = another(application_name="first"), another(application_name="second")
    db(HOLD)
    db(TRIGGER)
    with mixed.connection.transaction():
        mixed.connection.execute("SELECT pg_advisory_xact_lock(%s)", (GATE,))
        one = in_thread(lambda: ACTIONS[first](leading))
        until(lambda: db.waiting_for_a_lock("first"))
        other = in_thread(lambda: ACTIONS[second](following))
        until(lambda: other.done() or db.waiting_for_a_lock("second"))
        # Only who finds nothing to do may be done before the other one is; a drop has every turn in its hands.
        assert not other.done() or first in (second, "drop")
    one.result(PATIENCE)
    other.result(PATIENCE)

    found = mixed.freshness("s")
    formed, strict = (-1 if offset is None else offset for offset in (found.formed, found.formed_strict))
    assert db(RECOUNT) == [(found.stored, formed, strict, found.parked, found.backlog, found.erased)]
    assert sum(found.by_class.values()) == found.parked
    assert mixed.verify() == []
