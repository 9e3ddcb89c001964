"""A lock that comes free is waited for, whatever the method: its timeout alone never reaches the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from memory_kit import Database, failing, in_thread, say, until
from outages import outage
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors.chunks import Chunks

CALLS: dict[str, tuple[str, Callable[[MemoryStore], Any]]] = {
    "append": ("watermark", lambda s: s.append("s", say("x"))),
    "append by key": ("settings", lambda s: s.append("s", say("x"), idempotency_key="k")),
    "form_batch": ("observation", lambda s: s.form_batch(Chunks())),
    "form_batch, its last step": ("watermark", lambda s: s.form_batch(Chunks(), scope="nobody")),
    "form_batch, a failure": ("formation_circuit", lambda s: s.form_batch(failing("auth"))),
    "form_batch, an outage": ("formation_circuit", lambda s: s.form_batch(outage("500"))),
    "circuits": ("formation_circuit", lambda s: s.circuits()),
    "freshness": ("parked_class", lambda s: s.freshness("s")),
    "turn_status": ("observation", lambda s: s.turn_status("s", 0)),
    "parked": ("observation", lambda s: s.parked()),
    "unpark": ("observation", lambda s: s.unpark()),
    "sweep": ("observation", lambda s: s.sweep()),
    "sweep, its last step": ("parked_class", lambda s: s.sweep()),
    "verify": ("observation", lambda s: s.verify()),
    "rebuild": ("rebuild", lambda s: s.rebuild("s", Chunks())),
    "rebuild, in the middle": ("watermark_formed", lambda s: s.rebuild("s", Chunks())),
    "cancel_rebuild": ("rebuild", lambda s: s.cancel_rebuild("s")),
    "expire": ("erasure_request", lambda s: s.expire(timedelta(days=1), reason="test")),
    "drop": ("watermark_formed", lambda s: s.drop("s", reason="test")),
    "pause": ("scope_setting", lambda s: s.pause("s")),
    "resume": ("extractor_pause", lambda s: s.resume(extractor="e")),
    "set_backlog_cap": ("settings", lambda s: s.set_backlog_cap(9)),
    "settings": ("scope_setting", lambda s: s.settings()),
    "erase": ("settings", lambda s: s.erase(subject="ann", reason="test")),
    "recall": ("memory", lambda s: s.recall("s", "word")),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_lock_that_comes_free_is_waited_for(
    another: Callable[..., MemoryStore], db: Database, case: str
) -> None:
    table, call = CALLS[case]
    waiting = another(application_name="waiting", lock_timeout=timedelta(milliseconds=300))
    waiting.append_many("s", [{"messages": say("word")}] * 2)
    waiting.form_batch(Chunks(), limit=1)
    tries: set[object] = set()

    def tried_again() -> bool:
        tries.update(
            db(
                "SELECT query_start FROM pg_stat_activity "
                "WHERE application_name = 'waiting' AND wait_event_type = 'Lock'"
            )
        )
        return len(tries) >= 2 or ended.is_set()

    ended = threading.Event()
    # A session of its own: what pg_stat_activity shows does not change within a transaction.
    holder = Database(another().connection, db.namespace.name)
    with holder.connection.transaction():
        holder(f"LOCK TABLE {{schema}}.{table} IN ACCESS EXCLUSIVE MODE")
        result = in_thread(lambda: call(waiting))
        result.add_done_callback(lambda _: ended.set())
        until(tried_again)
    result.result(30)
    assert len(tries) >= 2
