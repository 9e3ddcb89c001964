"""Sessions that the database refuses something: one clear error, which shows no row, and nothing half done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from parkkeeper.queue import InvalidArgument, QueueStorage
from parkkeeper.queue.dead_letters import list_dead_letters
from parkkeeper.queue.jobs import list_jobs
from ringside import differences, end_jobs, query

Connect = Callable[..., psycopg.Connection[Any]]

SECRET = "a customer's words"
SNOW = "snow ☃"


def every_action(queue: str) -> dict[str, Callable[[QueueStorage], object]]:
    return {
        "enqueue": lambda storage: storage.enqueue(queue, "work", {"words": SECRET}),
        "claim": lambda storage: storage.claim(queue),
        "cancel": lambda storage: storage.cancel(1),
        "rescue": lambda storage: storage.rescue(),
        "rotate": lambda storage: storage.rotate(),
        "rotate the claim ring": lambda storage: storage.rotate(ring="claim"),
        "evacuate": lambda storage: storage.evacuate(),
        "prune": lambda storage: storage.prune_oldest(),
        "prune the lease ring": lambda storage: storage.prune_oldest(ring="lease"),
        "look what a prune would do": lambda storage: storage.prune_oldest(dry_run=True),
        "grow": lambda storage: storage.grow(5),
        "roll up": lambda storage: storage.roll_up(),
        "rebuild": lambda storage: storage.rebuild_terminal_counters(),
        "count": lambda storage: storage.queue_counts(queue),
        "retry by queue": lambda storage: storage.retry_failed_by_queue(queue),
        "retry by id": lambda storage: storage.retry_failed([1]),
        "retry dead letters": lambda storage: storage.retry_dead_letters(queue),
        "purge dead letters": lambda storage: storage.purge_dead_letters(queue, older_than=0),
        "list dead letters": lambda storage: list_dead_letters(storage.connection, storage.namespace),
        "set a queue": lambda storage: storage.set_queue(queue, dead_letter=True),
        "set the namespace": lambda storage: storage.set_namespace(failed_retention=60),
        "pause": lambda storage: storage.pause(queue),
        "ring": lambda storage: storage.ring_status(),
        "job": lambda storage: storage.job(1),
        "list": lambda storage: list_jobs(storage.connection, storage.namespace, "failed"),
        "list what waits": lambda storage: list_jobs(storage.connection, storage.namespace, "available"),
    }


@pytest.fixture
def grant(storage: QueueStorage, connect: Connect) -> Iterator[Callable[..., QueueStorage]]:
    """The queue for a login that has the rights it is given on all tables, and else none."""
    role, schema = (sql.Identifier(storage.namespace.name + suffix) for suffix in ("_role", ""))
    owner = storage.connection
    owner.execute(sql.SQL("CREATE ROLE {}").format(role))
    owner.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, role))

    def login(rights: str | None = None) -> QueueStorage:
        if rights:
            granted = sql.SQL("GRANT {} ON ALL TABLES IN SCHEMA {} TO {}")
            owner.execute(granted.format(sql.SQL(rights), schema, role))  # type: ignore[arg-type]
        session = connect()
        session.execute(sql.SQL("SET ROLE {}").format(role))
        return QueueStorage(session, storage.namespace)

    yield login
    owner.execute(sql.SQL("DROP OWNED BY {}").format(role))
    owner.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.mark.parametrize("action", every_action("q"))
def test_a_right_that_is_missing_is_named_and_no_value_is(
    storage: QueueStorage, grant: Callable[..., QueueStorage], action: str
) -> None:
    end_jobs(storage, 2)
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
        every_action("q")[action](grant())
    said = str(caught.value)
    assert "failed in the database: 42501, permission denied for " in said
    assert said.count("\n") == 0 and SECRET not in said
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    assert differences(storage) == []


def test_a_prune_without_the_right_to_truncate_leaves_the_ring_as_it_was(
    storage: QueueStorage, grant: Callable[..., QueueStorage]
) -> None:
    failed = end_jobs(storage, 3)
    storage.rotate()
    maintainer = grant("SELECT, INSERT, UPDATE, DELETE")
    with pytest.raises(
        psycopg.errors.InsufficientPrivilege, match="prune_oldest failed in the database: 42501"
    ):
        maintainer.prune_oldest()
    assert query(storage, "SELECT DISTINCT ready_slot FROM {ns}.done_entries") == [(0,)]
    assert differences(storage) == []
    assert storage.prune_oldest().carried_failed_rows == len(failed)


def test_a_text_that_the_sessions_encoding_cannot_carry_is_an_argument_that_is_refused(
    storage: QueueStorage, connect: Connect
) -> None:
    storage.enqueue(SNOW, "work")
    latin = QueueStorage(connect(), storage.namespace)
    latin.connection.execute("SET client_encoding TO latin1")
    actions = every_action(SNOW)
    for action in (
        "enqueue",
        "claim",
        "count",
        "retry by queue",
        "purge dead letters",
        "set a queue",
        "pause",
    ):
        with pytest.raises(InvalidArgument, match="cannot carry the text: use UTF8") as caught:
            actions[action](latin)
        assert SNOW not in str(caught.value)
    with pytest.raises(psycopg.errors.UntranslatableCharacter) as refused:
        actions["list what waits"](latin)
    assert str(refused.value) == "list_jobs failed in the database: 22P05"
    assert storage.queue_counts(SNOW).available == 1
