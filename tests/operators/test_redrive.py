"""RetryFailedOperator and UnparkOperator: what was chosen comes back, nothing else, and the figures add up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from psycopg import sql

from airflow_env import Ran, run_task
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn
from parkkeeper.namespace import Namespace
from parkkeeper.operators import RetryFailedOperator, UnparkOperator
from parkkeeper.queue import QueueStorage

NOW = datetime.now(UTC)
FIGURES = {"conflicts": 0, "raced": 0, "pruned_failed_total": 0}


def fail_job(
    storage: QueueStorage, queue: str, kind: str, days_ago: int = 0, unique_key: str | None = None
) -> int:
    job_id = storage.enqueue(queue, kind, unique_key=unique_key)
    (claim,) = storage.claim(queue)
    storage.fail(claim, "no paper", terminal=True)
    storage.connection.execute(
        sql.SQL("UPDATE {} SET finalized_at = %s WHERE job_id = %s").format(
            sql.Identifier(storage.namespace.name, "done_entries")
        ),
        (NOW - timedelta(days=days_ago), job_id),
    )
    return job_id


def retry(namespace: str, conf: dict[str, Any] | None = None, **chosen: Any) -> Ran:
    return run_task(
        lambda: RetryFailedOperator(task_id="redrive", namespace=namespace, retries=3, **chosen), conf=conf
    )


def test_a_redrive_takes_what_was_chosen_and_nothing_else(storage: QueueStorage, migrated: str) -> None:
    for queue, kind, days_ago in (
        ("letters", "print", 0),
        ("letters", "fold", 1),
        ("parcels", "print", 2),
        ("parcels", "weigh", 3),
    ):
        fail_job(storage, queue, kind, days_ago)
    named = fail_job(storage, "letters", "seal", 4)

    day = {"from": (NOW - timedelta(days=2, hours=12)), "to": (NOW - timedelta(days=1, hours=12))}
    window = retry(
        migrated,
        {name: moment.isoformat() for name, moment in day.items()},
        finalized_from="{{ dag_run.conf.from }}",
        finalized_before="{{ dag_run.conf.to }}",
    )
    assert window.xcoms == {"outcome": "retried", "matched": 1, "retried": 1, "failed_total": 4, **FIGURES}
    assert storage.queue_counts("parcels").available == 1

    dry = retry(migrated, kind="print", dry_run="{{ true }}")
    assert dry.xcoms == {"outcome": "matched", "matched": 1, "retried": 0, "failed_total": 4, **FIGURES}
    by_kind = retry(migrated, kind="print")
    assert by_kind.xcoms == {"outcome": "retried", "matched": 1, "retried": 1, "failed_total": 3, **FIGURES}
    by_id = retry(migrated, {"ids": [named]}, job_ids="{{ dag_run.conf.ids }}")
    assert by_id.xcoms == {"outcome": "retried", "matched": 1, "retried": 1, "failed_total": 2, **FIGURES}
    by_queue = retry(migrated, job_queue="letters", limit="{{ 5 }}")
    assert by_queue.xcoms == {"outcome": "retried", "matched": 1, "retried": 1, "failed_total": 1, **FIGURES}
    assert retry(migrated, job_queue="letters").xcoms["outcome"] == "noop"
    assert storage.queue_counts("parcels").failed == 1


def test_a_job_whose_key_another_holds_is_counted_and_stays_failed(
    storage: QueueStorage, migrated: str
) -> None:
    fail_job(storage, "letters", "print", unique_key="once")
    storage.enqueue("letters", "print", unique_key="once")
    ran = retry(migrated, job_queue="letters")
    assert ran.state == "success"
    assert ran.xcoms == {
        "outcome": "none_retried",
        "matched": 1,
        "retried": 0,
        "failed_total": 1,
        **FIGURES,
        "conflicts": 1,
    }


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({}, "give job_queue, kind, job_ids, finalized_from or finalized_before"),
        ({"job_queue": "letters", "kind": "print"}, "give one of job_queue, kind and job_ids"),
        ({"job_ids": [1], "limit": 1}, "job_ids says which jobs, alone"),
        ({"job_ids": '["a"]'}, "job_ids is refused: a list of whole numbers"),
        ({"job_queue": "letters", "limit": 0}, "limit 0 is refused"),
        ({"finalized_from": "2026-01-31"}, "finalized_from '2026-01-31' is refused: a time with a zone"),
        ({"finalized_from": NOW, "finalized_before": NOW}, "finalized_from .* is refused: it is not before"),
        ({"job_queue": "letters", "dry_run": "perhaps"}, "dry_run 'perhaps' is refused"),
    ],
)
def test_a_bad_choice_is_refused_before_there_is_a_session(chosen: dict[str, Any], message: str) -> None:
    operator = RetryFailedOperator(task_id="redrive", namespace="jobs", **chosen)
    with pytest.raises(InvalidArgument, match=message):
        operator.prepare(Namespace("jobs"))


class Refuses:
    """An extractor that will not have any turn, though its provider answers."""

    name = "refuses"
    version = "1"

    def extract(self, turn: Turn) -> list[Memory]:
        if turn.log_offset < 0:
            return []
        raise ExtractionError("malformed", "no")


def test_an_unparking_takes_what_all_conditions_allow(store: MemoryStore, migrated: str) -> None:
    for scope in ("a", "a", "b"):
        store.append(scope, [{"role": "user", "content": "hello"}])
    assert store.form_batch(Refuses(), max_attempts=1).parked == 3
    parked = sql.Identifier(migrated, "observation")
    store.connection.execute(
        sql.SQL("UPDATE {} SET parked_at = parked_at - interval '2 days' WHERE log_offset = 0").format(parked)
    )

    def unpark(**which: Any) -> dict[str, Any]:
        ran = run_task(lambda: UnparkOperator(task_id="unpark", namespace=migrated, **which))
        assert ran.state == "success"
        return ran.xcoms

    chosen = {"scope": "{{ 'a' }}", "older_than": timedelta(days=1), "error_class": "malformed"}
    nothing = {"outcome": "noop", "unparked": 0, "parked_total": 3, "backlog": 0}
    assert unpark(error_class="timeout") == nothing
    assert unpark(**chosen, dry_run=True) == {**nothing, "outcome": "unparked", "unparked": 1}
    one = {"outcome": "unparked", "unparked": 1, "parked_total": 2, "backlog": 1}
    assert unpark(**chosen) == one
    assert unpark(max_park_count="{{ 1 }}", limit="{{ 1 }}") == {**one, "parked_total": 1, "backlog": 2}


def test_an_unknown_class_is_refused_and_nothing_is_unparked(store: MemoryStore, migrated: str) -> None:
    store.append("a", [{"role": "user", "content": "hello"}])
    assert store.form_batch(Refuses(), max_attempts=1).parked == 1
    ran = run_task(lambda: UnparkOperator(task_id="unpark", namespace=migrated, error_class="bad", retries=3))
    assert isinstance(ran.error, AirflowFailException)
    assert "error_class 'bad' is refused: one of " in str(ran.error)
    assert store.freshness("a").parked == 1
