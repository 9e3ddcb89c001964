"""Who pays when memories cannot be stored: the turn when it may be its fault, and nobody when it is the database's."""

from __future__ import annotations

import psycopg
import pytest

from interrupts import sever
from memory_kit import Database, Scripted, say
from parkkeeper.errors import UnknownNamespace
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import Memory, Turn
from parkkeeper.memory.extractors.chunks import Chunks

TURNS = [{"messages": say(text)} for text in ("first", "poison", "last")]

#: A full disk, a read-only database, a lock that is not had, a right and a table that are missing, a broken file.
THE_DATABASES = ["53100", "25006", "55P03", "40P01", "42501", "42P01", "58030"]
#: A trigger refuses it, it takes too long or too much memory, a limit of Postgres, an error in Postgres.
THE_TURNS = ["P0001", "57014", "53200", "54000", "XX000", "22023", "23514", "U0001"]


def refuse(db: Database, sqlstate: str, *, only: str = "") -> None:
    """Let the database refuse memories with this error: all, or those that hold a text."""
    db(
        "CREATE OR REPLACE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION 'MARKER' USING ERRCODE = '{sqlstate}'; END $$"
    )
    db(
        "CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON {schema}.memory FOR EACH ROW "
        f"WHEN (NEW.text LIKE '%%{only}%%') EXECUTE FUNCTION {{schema}}.refuse()"
    )


def test_no_turn_pays_for_a_database_that_stores_nothing(store: MemoryStore, db: Database) -> None:
    store.append_many("s", TURNS)
    for sqlstate in THE_DATABASES:
        refuse(db, sqlstate)
        with pytest.raises((psycopg.Error, UnknownNamespace), match=sqlstate):
            store.form_batch(Chunks(), max_attempts=1, concurrency=2)
        assert db("SELECT DISTINCT formation_attempts, claim_token FROM {schema}.observation") == [(0, None)]
    db("DROP TRIGGER refuse ON {schema}.memory")
    assert store.form_batch(Chunks(), max_attempts=1).formed == 3


def test_a_socket_that_closes_before_libpq_knows_is_not_the_fault_of_the_turn(
    store: MemoryStore, db: Database
) -> None:
    store.append_many("s", TURNS)

    def extract(turn: Turn) -> list[Memory]:
        sever(store.connection)
        return [Memory("fact", "first")]

    with pytest.raises(psycopg.OperationalError, match="connection socket closed"):
        store.form_batch(Scripted(extract), max_attempts=1)
    assert store.connection.closed
    assert db("SELECT DISTINCT formation_error FROM {schema}.observation") == [(None,)]


def test_a_turn_that_cannot_be_stored_pays_alone_and_its_neighbours_are_formed(
    store: MemoryStore, db: Database
) -> None:
    for number, sqlstate in enumerate(THE_TURNS):
        store.append_many("s", TURNS)
        refuse(db, sqlstate, only="poison")
        outcome = store.form_batch(Chunks(), max_attempts=1)
        assert (outcome.formed, outcome.failed, outcome.parked) == (2, 1, 1), sqlstate
        assert db.turn(3 * number + 1, "formation_error") == f"the memories could not be stored: {sqlstate}"
    assert store.freshness("s").by_class == {"store": len(THE_TURNS)}


def test_a_rebuild_goes_on_behind_a_turn_that_cannot_be_stored_and_stops_for_the_database(
    store: MemoryStore, db: Database
) -> None:
    def newly(turn: Turn) -> list[Memory]:
        return [Memory(f"new {turn.messages[0]['content']}")]

    store.append_many("s", TURNS)
    store.form_batch(Chunks())
    refuse(db, "53100")
    with pytest.raises(psycopg.Error):
        store.rebuild("s", Scripted(newly))
    assert [(each.state, each.failed) for each in store.rebuilds()] == [("waiting", 0)]
    db("DROP FUNCTION {schema}.refuse CASCADE")
    refuse(db, "57014", only="new poison")
    outcome = store.rebuild("s", Scripted(newly))
    assert (outcome.rebuilt, outcome.failed, outcome.done) == (2, 1, True)
