"""LagCheckOperator: an alarm that names each limit that was passed, and pushes its figures before it fails."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from psycopg import sql

from airflow_env import Ran, run_task
from parkkeeper import maintenance
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn
from parkkeeper.namespace import Namespace
from parkkeeper.operators import LagCheckOperator
from parkkeeper.queue import QueueStorage


class Refuses:
    """An extractor that will not have any turn, though its provider answers."""

    name = "refuses"
    version = "1"

    def extract(self, turn: Turn) -> list[Memory]:
        if turn.log_offset < 0:
            return []
        raise ExtractionError("malformed", "no")


def check(namespace: str, **limits: Any) -> Ran:
    return run_task(lambda: LagCheckOperator(task_id="lag", namespace=namespace, retries=3, **limits))


def age(storage: QueueStorage, table: str, column: str, hours: int, where: str = "true") -> None:
    """Move a stamp back."""
    storage.connection.execute(
        sql.SQL("UPDATE {} SET {column} = {column} - make_interval(hours => %s) WHERE {where}").format(
            sql.Identifier(storage.namespace.name, table),
            column=sql.Identifier(column),
            where=sql.SQL(where),  # type: ignore[arg-type]
        ),
        (hours,),
    )


def hours(figure: object) -> int:
    assert isinstance(figure, int)
    return figure // 3600


def test_each_limit_that_is_passed_is_named_with_its_figure(
    storage: QueueStorage, store: MemoryStore, migrated: str
) -> None:
    quiet = check(migrated, **{name: 0 for name in ("max_ready_age", "max_blocked", "max_parked_share")})
    assert (quiet.state, quiet.xcoms["outcome"]) == ("success", "within_limits")

    storage.enqueue("letters", "print")  # ends: its slot could be pruned
    storage.fail(storage.claim("letters")[0], "no paper", terminal=True)
    storage.rotate()
    pinning = storage.enqueue("parcels", "weigh")  # waits: it pins its slot
    storage.enqueue("parcels", "weigh")
    storage.rotate()
    age(storage, "queue_ring_slots", "sealed_at", 5, "slot = 0")
    age(storage, "queue_ring_slots", "sealed_at", 4, "slot = 1")
    age(storage, "ready_entries", "run_at", 3)
    age(storage, "done_entries", "finalized_at", 60)
    for scope in ("a", "a", "b", "b"):
        store.append(scope, [{"role": "user", "content": "hello"}])
    assert store.form_batch(Refuses(), scope="a", max_attempts=1).parked == 2
    age(storage, "observation", "ingested_at", 2)
    now = maintenance.database_time(storage.connection)
    for outcome in ("blocked", "pruned", "blocked", "failed", "blocked"):
        maintenance.record_run(
            storage.connection,
            Namespace(migrated),
            "prune_with_carry",
            outcome,
            started_at=now,
            figures={"ring": "queue"},
        )

    ran = check(
        migrated,
        max_ready_age="{{ 3600 }}",
        max_unpruned_age=3600,
        max_pinned_age=3600,
        max_blocked=1,
        max_expiring=0,
        max_pending_age=3600,
        max_parked_share="0.25",
    )
    figures = ran.xcoms
    assert (ran.state, figures["outcome"]) == ("failed", "exceeded")
    assert isinstance(ran.error, AirflowFailException)
    message = str(ran.error)
    for said in (
        "(parcels) is above max_ready_age 3600",
        "is above max_unpruned_age 3600",
        f"(available job {pinning} of queue parcels) is above max_pinned_age 3600",
        "blocked_in_a_row 2 is above max_blocked 1",
        "expiring 1 is above max_expiring 0",
        "is above max_pending_age 3600",
        "parked_share 0.5 is above max_parked_share 0.25",
    ):
        assert said in message
    assert (hours(figures["oldest_ready_seconds"]), figures["oldest_ready_queue"]) == (3, "parcels")
    assert hours(figures["oldest_unpruned_seconds"]) == 5
    assert (hours(figures["oldest_pinned_seconds"]), figures["pinned_slots"]) == (4, 1)
    assert (figures["blocked_in_a_row"], figures["expiring"]) == (2, 1)
    assert hours(figures["oldest_pending_seconds"]) == 2
    assert (figures["parked_share"], figures["parked_total"], figures["backlog"]) == (0.5, 2, 2)

    one = check(migrated, max_parked_share=0.25, max_blocked=2)
    assert str(one.error) == f"namespace {migrated}: parked_share 0.5 is above max_parked_share 0.25"


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"max_parked_share": 2}, "max_parked_share 2 is refused: a number from 0 to 1"),
        ({"max_blocked": -1}, "max_blocked -1 is refused"),
        ({"max_ready_age": "soon"}, "max_ready_age 'soon' is refused"),
    ],
)
def test_a_limit_that_is_none_is_refused_before_there_is_a_session(
    limit: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        LagCheckOperator(task_id="lag", namespace="n", **limit).prepare(Namespace("n"))
