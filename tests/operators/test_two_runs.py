"""Two runs of one operator at the same moment: what there was to do is done once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from parkkeeper.demo.client import until
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.errors import RebuildActive
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn, load
from parkkeeper.operators import (
    EraseOperator,
    ParkkeeperOperator,
    RebuildOperator,
    RetryFailedOperator,
    UnparkOperator,
)
from parkkeeper.operators.base import Figures
from parkkeeper.queue import QueueStorage

Connect = Callable[..., psycopg.Connection[Any]]

_WAITING = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Refuses:
    """An extractor that will not have any turn, though its provider answers."""

    name = "refuses"
    version = "1"

    def extract(self, turn: Turn) -> list[Memory]:
        if turn.log_offset < 0:
            return []
        raise ExtractionError("malformed", "no")


def both(
    connect: Connect, store: MemoryStore, table: str, make: Callable[[], ParkkeeperOperator]
) -> list[Figures | RebuildActive]:
    """Run what `make` returns in two sessions that have to wait for `table`, and let both go on at once."""
    patience = timedelta(minutes=1)
    sessions = [connect(lock_timeout=patience) for _ in range(2)]

    def run(session: psycopg.Connection[Any]) -> Figures | RebuildActive:
        try:
            return make().prepare(store.namespace)(session)
        except RebuildActive as other:
            return other

    with ThreadPoolExecutor(2) as threads:
        with connect() as holder, holder.transaction():
            holder.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(store.namespace.name, table)))
            started = [threads.submit(run, session) for session in sessions]
            waiting = until(
                lambda: store.connection.execute(_WAITING).fetchall(), lambda found: len(found) == 2, patience
            )
        done = [one.result() for one in started]
    assert len(waiting) == 2, f"they did not wait for {table}: {done}"
    return done


def test_the_work_is_done_once(
    storage: QueueStorage, store: MemoryStore, migrated: str, connect: Connect
) -> None:
    common = {"task_id": "task", "namespace": migrated}
    storage.enqueue_many("letters", "print", [None] * 3)
    storage.fail_many([(claim, "no paper") for claim in storage.claim("letters", 3)], terminal=True)
    figures = both(connect, store, "done_entries", lambda: RetryFailedOperator(job_queue="letters", **common))
    assert sum(one["retried"] for one in figures) == 3
    counts = storage.queue_counts("letters")
    assert (counts.available, counts.failed) == (3, 0)

    for scope in ("parked", "parked", "said"):
        store.append(scope, [{"role": "user", "content": "hello"}], subject="ann")
    assert store.form_batch(Refuses(), scope="parked", max_attempts=1).parked == 2
    figures = both(connect, store, "observation", lambda: UnparkOperator(**common))
    assert sum(one["unparked"] for one in figures) == 2
    assert [one["parked_total"] for one in figures if one["unparked"]] == [0]
    store.form_batch(load("chunks"))
    assert store.freshness("parked").formed == 1

    rebuilt = both(connect, store, "rebuild", lambda: RebuildOperator(scope="parked", **common))
    assert any(not isinstance(one, RebuildActive) and one["outcome"] == "rebuilt" for one in rebuilt)
    memories = sql.SQL("SELECT count(*) FROM {} WHERE scope = 'parked'").format(
        sql.Identifier(migrated, "memory")
    )
    assert store.connection.execute(memories).fetchone() == (2,)

    request = str(store.request_erasure(subject="ann", reason="test").request_id)
    figures = both(connect, store, "observation", lambda: EraseOperator(request_id=request, **common))
    assert {one["erased_total"] for one in figures} == {3}
    said = [(one["outcome"], one["matched"], one["erased"]) for one in figures]
    assert sorted(said) == [("erased", 3, 3), ("noop", 3, 0)]
