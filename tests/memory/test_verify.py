"""The invariants of the memory: nothing that the product does breaks one, and each that is broken by hand is named."""

from __future__ import annotations

import pytest

from memory_kit import Database, failing, say
from parkkeeper.errors import TransactionOpen
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors.chunks import Chunks


@pytest.fixture
def used(store: MemoryStore) -> MemoryStore:
    """A memory whose turns are formed, parked, erased, claimed and waiting."""
    for n in range(6):
        store.append("s", say(f"message {n}", "yes"), idempotency_key=f"key {n}", subject=f"subject {n % 3}")
    store.form_batch(failing("malformed", offsets=[1, 2]), max_attempts=1, limit=4)
    assert store.unpark(limit=1) == 1
    store.erase(subject="subject 0", reason="test")
    store.rebuild("s", Chunks(), limit=1)
    return store


def broken(store: MemoryStore) -> dict[str, tuple[str, ...]]:
    """Return the examples of each invariant that does not hold."""
    return {found.invariant: found.examples for found in store.broken_invariants()}


def test_nothing_that_a_memory_does_breaks_one(used: MemoryStore) -> None:
    assert broken(used) == {}
    used.sweep()
    used.form_batch(Chunks())
    used.drop("s", reason="test")
    assert broken(used) == {}


LOOSE = (
    "ALTER TABLE {schema}.observation DROP CONSTRAINT observation_parked_not_formed_chk",
    "ALTER TABLE {schema}.projection_dependency DROP CONSTRAINT projection_dependency_source_fkey",
    "ALTER TABLE {schema}.turn_message DROP CONSTRAINT turn_message_observation_fkey",
)
DAMAGES = {
    "watermark_is_true": ("UPDATE {schema}.watermark_formed SET formed = formed + 1", "formed of scope s: "),
    "offset_is_assigned": ("UPDATE {schema}.watermark SET log_offset = 4", "turn 5 of scope s"),
    "turn_has_messages": (
        "DELETE FROM {schema}.turn_message WHERE observation_id ="
        " (SELECT observation_id FROM {schema}.observation WHERE log_offset = 4)",
        "turn 4 of scope s",
    ),
    "parked_or_formed": (
        "UPDATE {schema}.observation SET parked_at = now() WHERE formed_at IS NOT NULL",
        "of scope s",
    ),
    "claim_has_an_owner": (
        "UPDATE {schema}.observation SET claim_token = gen_random_uuid() WHERE log_offset = 5",
        "turn 5 of scope s",
    ),
    "derived_row_has_a_source": (
        "UPDATE {schema}.projection_dependency SET source_id = 4711",
        "memory ",
    ),
    "key_of_a_turn": (
        "DELETE FROM {schema}.observation WHERE log_offset = 4",
        "turn 4 is of one that is gone",
    ),
    "object_outside": ("CREATE SCHEMA parkkeeper_verify_1", "schema parkkeeper_verify_1"),
}


def test_each_that_is_broken_by_hand_is_named(used: MemoryStore, db: Database) -> None:
    for statement in LOOSE:
        db(statement)
    # The damages add up: each breaks one that held until then.
    for invariant, (damage, example) in DAMAGES.items():
        assert invariant not in broken(used)
        db(damage)
        found = broken(used)
        assert invariant in found
        assert any(example in one for one in found[invariant]), found[invariant]


def test_it_refuses_the_transaction_of_a_caller(used: MemoryStore) -> None:
    with used.connection.transaction(), pytest.raises(TransactionOpen):
        used.broken_invariants()
