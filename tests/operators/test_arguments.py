"""Every argument of every operator may be a template, and what breaks its rule is refused before there is a session."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from airflow.sdk import BaseOperator

from parkkeeper import operators, sensors
from parkkeeper.errors import InvalidArgument
from parkkeeper.operators import ParkkeeperOperator

OPERATORS = [name for name in operators.__all__ if name.endswith("Operator") and name != "ParkkeeperOperator"]
#: A value that breaks the rule of the argument.
REFUSED: dict[str, Any] = {
    "approved_pruned_failed": -1,
    "canary": -1,
    "carry_to": "elsewhere",
    "concurrency": 0,
    "dry_run": "perhaps",
    "error_class": "no such class",
    "expiring_within": "soon",
    "extractor": "no_such_extractor",
    "failed_retention": "soon",
    "family": "letters",
    "finalized_before": "2026-01-31",
    "finalized_from": "yesterday",
    "from_offset": -1,
    "ingested_before": "2026-01-31",
    "ingested_from": "yesterday",
    "job_ids": ["1"],
    "job_queue": "a\0",
    "kind": "a\0",
    "limit": 0,
    "llm_conn_id": "not_for_this_extractor",
    "lock_timeout": "soon",
    "max_attempts": 0,
    "max_blocked": -1,
    "max_expiring": -1,
    "max_park_count": 0,
    "max_parked_share": 2,
    "max_pending_age": "soon",
    "max_pinned_age": "soon",
    "max_pruned_failed": -1,
    "max_ready_age": "soon",
    "max_unpruned_age": "soon",
    "namespace": "pg_catalog",
    "namespaces": "orders",
    "older_than": "soon",
    "on_error": "shrug",
    "parallel": 0,
    "parked_for": "soon",
    "pattern": "orders; --",
    "queue_slots": 1,
    "request_id": "ann",
    "ring": "finger",
    "scope": "a\0",
    "shard": -1,
    "shards": 0,
    "target": 0,
    "to_offset": -1,
    "turn_budget": "soon",
    "unpark_classes": "no such class",
    "unpark_limit": 0,
    "wait_for_snapshots": "perhaps",
}
#: What makes the arguments of an operator whole, but for the one that is refused.
NEEDED: dict[str, dict[str, Any]] = {
    "EraseOperator": {"request_id": "0b8f4b0e-6f1c-4b0e-9a5e-2f6f4f6f6c51"},
    "MigrateOperator": {"family": "queue"},
    "RebuildOperator": {"scope": "a"},
    "RetryFailedOperator": {},
}
#: Arguments whose rule is the database's (`query`) or that are looked at by `execute` itself.
ELSEWHERE = {"conn_id", "skip_on_outcome", "query"}


def own_arguments(kind: type[BaseOperator]) -> list[str]:
    """Return the names of what the constructors of this package take."""
    found: dict[str, None] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("parkkeeper.") and "__init__" in vars(base):
            for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items():
                if name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
                    found[name] = None
    return list(found)


KINDS = [getattr(operators, name) for name in OPERATORS] + [
    getattr(sensors, name) for name in sensors.__all__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_argument_may_be_a_template_and_each_renderer_is_for_one(kind: type[BaseOperator]) -> None:
    # `dry_run` is a method of every operator; `mode` is Airflow's, which looks at it while the file is read.
    fields = ["is_dry_run" if name == "dry_run" else name for name in own_arguments(kind) if name != "mode"]
    assert len(fields) > 1
    assert set(fields) - set(kind.template_fields) == set()
    assert set(kind.template_fields) - set(fields) == set()
    assert set(kind.template_fields_renderers) <= set(kind.template_fields)


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        (name, argument)
        for name in OPERATORS
        for argument in own_arguments(getattr(operators, name))
        if argument not in ELSEWHERE
    ],
)
def test_what_breaks_its_rule_is_refused_before_there_is_a_session(name: str, argument: str) -> None:
    kind: type[ParkkeeperOperator] = getattr(operators, name)
    one_of_many = name == "MigrateOperator" and argument in ("namespaces", "pattern")
    given = {"namespace": None if one_of_many else "n", **NEEDED.get(name, {}), argument: REFUSED[argument]}
    operator = kind(task_id="task", **given)
    # A session would need the task instance, which there is none of.
    with pytest.raises(InvalidArgument):
        operator.work({})  # type: ignore[typeddict-item]
