"""An erasure in two steps: asked for by whoever knows the person, carried out once by whoever knows a number."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

from memory_kit import PATIENCE, Database, in_thread, say, until
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore, UnknownRequest, erasure_request
from parkkeeper.memory.extractors.chunks import Chunks

NONE = {"observation": 0, "turn_message": 0, "memory": 0, "idempotency_digest": 0}


def test_a_request_erases_nothing_and_names_nobody_until_it_is_carried_out(
    store: MemoryStore, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure_request, "SUBJECTS", 2)
    for number, subject in enumerate(("ann", "bob", "MARKER", "zoe")):
        store.append("s", say(f"word {number}"), subject=subject)
    store.append("t", say("elsewhere"), subject="MARKER")
    store.append("t", say("nobody's"))
    store.form_batch(Chunks())

    asked = store.request_erasure(subject="MARKER", reason="subject_request")
    assert (asked.turns, asked.by_subject, asked.by_ids, asked.scope, asked.receipt) == (
        2,
        True,
        False,
        None,
        None,
    )
    assert "MARKER" not in str(db("SELECT r::text FROM {schema}.erasure_request AS r"))
    assert store.erasure_request(str(asked.request_id)) == asked
    store.append("u", say("said since"), subject="MARKER")

    receipt = store.erase_requested(asked.request_id)
    assert receipt.request_id == asked.request_id
    assert receipt.deleted == {"observation": 3, "turn_message": 3, "memory": 2, "idempotency_digest": 0}
    assert (receipt.residual, receipt.clean) == (NONE, True)
    assert db("SELECT data_subject_id FROM {schema}.observation ORDER BY 1") == [
        ("ann",),
        ("bob",),
        ("zoe",),
        (None,),
    ]
    done = store.erasure_request(asked.request_id)
    assert (done.turns, done.receipt) == (0, receipt)


def test_requests_wait_in_their_order_until_they_are_carried_out(store: MemoryStore) -> None:
    store.append("s", say("x"), subject="ann")
    first, second = (store.request_erasure(subject=name, reason="subject_request") for name in ("ann", "bob"))
    store.erase(scope="elsewhere", reason="mistake")
    assert store.erasure_requests() == [first, second]
    assert store.erasure_requests(limit=1) == [first]
    store.erase_requested(first.request_id)
    assert store.erasure_requests() == [second]


def test_a_request_is_carried_out_once(store: MemoryStore, db: Database) -> None:
    store.append("s", say("x"), subject="ann")
    request_id = store.request_erasure(subject="ann", scope="s", reason="subject_request").request_id
    receipt = store.erase_requested(request_id)
    store.append("s", say("a new life"), subject="ann")
    again = store.erase_requested(request_id)
    assert (again, again.deleted_now) == (receipt, NONE)
    assert db("SELECT count(*) FROM {schema}.observation") == [(1,)]
    assert db("SELECT count(*) FROM {schema}.erasure_request") == [(1,)]


def test_turns_that_are_named_are_forgotten_with_the_request(store: MemoryStore, db: Database) -> None:
    ids = [store.append("s", say("x")).observation_id for _ in range(3)]
    asked = store.request_erasure(observation_ids=ids[:2], reason="mistake")
    assert (asked.turns, asked.by_ids) == (2, True)
    assert store.erase_requested(asked.request_id).deleted["observation"] == 2
    assert db("SELECT observation_ids FROM {schema}.erasure_request") == [(None,)]


def test_a_subject_of_whom_there_is_nothing_has_a_clean_receipt(store: MemoryStore) -> None:
    asked = store.request_erasure(subject="nobody", reason="subject_request")
    receipt = store.erase_requested(asked.request_id)
    assert (receipt.deleted, receipt.residual, receipt.clean) == (NONE, NONE, True)


def test_what_was_left_is_erased_by_the_next_try_and_the_receipt_has_both(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    store.append("s", say("x"), subject="ann")
    asked = store.request_erasure(subject="ann", reason="subject_request")
    erasing = another(application_name="erasing")
    with store.connection.transaction():
        store.connection.execute(
            f"SELECT 1 FROM {store.namespace.identifier}.observation FOR UPDATE".encode()  # noqa: S608
        )
        erasure = in_thread(lambda: erasing.erase_requested(asked.request_id))
        until(lambda: db.waiting_for_a_lock("erasing"))
        another().append("t", say("late"), subject="ann")
    first = erasure.result(PATIENCE)
    assert (first.deleted["observation"], first.clean) == (1, False)
    assert store.erasure_request(asked.request_id).turns == 1
    second = store.erase_requested(asked.request_id)
    assert (second.deleted["observation"], second.residual, second.clean) == (2, NONE, True)


def test_two_at_once_do_the_work_once(
    store: MemoryStore, another: Callable[..., MemoryStore], db: Database
) -> None:
    store.append("s", say("x"), subject="ann")
    asked = store.request_erasure(subject="ann", reason="subject_request")
    names = ("first", "second")
    with store.connection.transaction():
        store.connection.execute(
            f"SELECT 1 FROM {store.namespace.identifier}.observation FOR UPDATE".encode()  # noqa: S608
        )
        stores = [another(application_name=name) for name in names]
        erasures = [in_thread(lambda one=one: one.erase_requested(asked.request_id)) for one in stores]
        for name in names:
            until(lambda name=name: db.waiting_for_a_lock(name))
    receipts = [erasure.result(PATIENCE) for erasure in erasures]
    assert [(receipt.deleted["observation"], receipt.clean) for receipt in receipts] == [(1, True)] * 2
    assert sorted(receipt.deleted_now["observation"] for receipt in receipts) == [0, 1]


def test_what_is_no_request_is_refused_and_an_id_is_not_shown(store: MemoryStore) -> None:
    store.append("s", say("x"))
    with pytest.raises(InvalidArgument, match="request_id is refused") as refused:
        store.erase_requested("Ann Other")
    assert "Ann" not in str(refused.value)
    with pytest.raises(UnknownRequest, match="no erasure was requested"):
        store.erase_requested(uuid4())
    dropped = store.drop("s", reason="account_closed")
    with pytest.raises(UnknownRequest):
        store.erase_requested(dropped.request_id)
    with pytest.raises(InvalidArgument, match="at least one of scope, subject and observation_ids"):
        store.request_erasure(reason="subject_request")
