"""EraseOperator: it knows a request and nobody's name, carries it out once, and fails when something is left."""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_env import Ran, run_task
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore
from parkkeeper.namespace import Namespace
from parkkeeper.operators import EraseOperator


@pytest.fixture
def families() -> tuple[str, ...]:
    return ("memory",)


def append(store: MemoryStore, subject: str) -> None:
    store.append("s", [{"role": "user", "content": "hello"}], subject=subject)


def erase(namespace: str, request_id: object, **arguments: Any) -> Ran:
    return run_task(
        lambda: EraseOperator(
            task_id="erase",
            namespace=namespace,
            request_id="{{ dag_run.conf.request_id }}",
            retries=3,
            **arguments,
        ),
        conf={"request_id": str(request_id)},
    )


def test_a_request_is_looked_at_carried_out_and_found_done(
    store: MemoryStore, migrated: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for subject in ("MARKER", "MARKER", "bob"):
        append(store, subject)
    request_id = store.request_erasure(subject="MARKER", reason="subject_request").request_id
    figures = {"request_id": str(request_id), "matched": 2, "erased": 0, "residual": 0, "erased_total": 0}

    dry = erase(migrated, request_id, dry_run=True)
    assert (dry.state, dry.xcoms) == ("success", {"outcome": "requested", **figures})
    done = erase(migrated, request_id)
    assert done.xcoms == {"outcome": "erased", **figures, "erased": 2, "erased_total": 2}
    append(store, "MARKER")
    again = erase(migrated, request_id)
    assert again.xcoms == {"outcome": "noop", **figures, "matched": 0, "erased_total": 2}
    assert store.freshness("s").erased == 2
    output = capfd.readouterr()
    assert "MARKER" not in caplog.text + output.out + output.err


def test_a_task_that_leaves_something_fails_with_its_figures_and_is_retried(
    store: MemoryStore, migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something is appended to a scope of its own each time that the erasure has chosen what to erase."""
    append(store, "ann")
    request_id = store.request_erasure(subject="ann", reason="subject_request").request_id
    store.connection.execute(
        f"CREATE FUNCTION {store.namespace.identifier}.append_more() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "  # noqa: S608
        f"INSERT INTO {store.namespace.identifier}.observation (scope, log_offset, occurred_at, data_subject_id) "
        "VALUES (gen_random_uuid()::text, 0, now(), 'ann'); RETURN NULL; END $$".encode()
    )
    store.connection.execute(
        f"CREATE TRIGGER more AFTER DELETE ON {store.namespace.identifier}.observation "
        f"EXECUTE FUNCTION {store.namespace.identifier}.append_more()".encode()
    )
    ran = erase(migrated, request_id)
    assert ran.state == "up_for_retry" or isinstance(ran.error, AirflowException)
    assert not isinstance(ran.error, AirflowFailException)
    assert f"request {request_id}: 1 rows are left" in str(ran.error)
    assert (ran.xcoms["outcome"], ran.xcoms["residual"]) == ("left", 1)


def test_what_is_no_request_fails_for_good(migrated: str) -> None:
    unknown = erase(migrated, uuid4())
    assert isinstance(unknown.error, AirflowFailException)
    assert "UnknownRequest" in str(unknown.error)
    with pytest.raises(InvalidArgument, match="request_id is refused"):
        EraseOperator(task_id="erase", namespace="n", request_id="ann").prepare(Namespace("n"))
