"""What the demo checks: right figures pass, and each wrong one fails a check of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from parkkeeper.demo import runs
from parkkeeper.demo.checks import PROVIDER, Found, Put, checks
from parkkeeper.demo.client import DagRun, TaskInstance
from parkkeeper.demo.runs import RunReport, TaskReport
from parkkeeper.memory import Freshness
from parkkeeper.queue.outcomes import QueueCounts

PUT = Put(
    turns={"english": 10, "ukrainian": 5},
    broken_scope="ukrainian",
    broken=[3, 4],
    jobs=40,
    failing=6,
    late=2,
    aged=1,
)
COUNTS = QueueCounts(available=0, running=0, terminal=42, pruned_failed=1, deferred=0, failed=5)


def run(dag_id: str, state: str = "success", **tasks: dict[str, Any]) -> RunReport:
    return RunReport(
        DagRun(dag_id, "manual__1", state, 1.0),
        tuple(
            TaskReport(TaskInstance(task_id, -1, "success", 1, 1.0), figures)
            for task_id, figures in tasks.items()
        ),
    )


def turn(outcome: str = "rotated", **prune: int) -> RunReport:
    return run(runs.MAINTENANCE, rotate={"outcome": outcome}, prune=prune)


def freshness(scope: str, **figures: Any) -> Freshness:
    stored = PUT.turns[scope]
    right: dict[str, Any] = {
        "stored": stored,
        "formed": stored - 1,
        "formed_strict": stored - 1,
        "parked": 0,
        "parked_ranges": (),
        "truncated": False,
        "oldest_parked_at": None,
        "backlog": 0,
        "by_class": {},
        "epoch": 0,
        "erased": 0,
    }
    return Freshness(scope=scope, **right | figures)


ENGLISH = freshness("english")
UKRAINIAN = freshness("ukrainian", formed_strict=2, parked=2, parked_ranges=((3, 4),))
FIRST = turn(carried_failed=4, pruned_failed=0, pruned_completed=14, pruned_failed_total=0)
LAST = turn(carried_failed=3, pruned_failed=1, pruned_completed=20, pruned_failed_total=1)
FORMED = run(runs.FORMATION, form={"formed": 10})
SWEPT = run(runs.SWEEP, sweep={"parked_total": 2})
RIGHT = Found(
    runs=[run(runs.MIGRATE), FIRST, LAST, FORMED, SWEPT],
    last_round=LAST,
    retried=2,
    counts=COUNTS,
    freshness={"english": ENGLISH, "ukrainian": UKRAINIAN},
    page={"figures": {"queues": [{"queue": "files", **asdict(COUNTS)}]}},
    import_errors=[],
    providers=["apache-airflow-providers-standard", PROVIDER],
)


def failed(found: Found) -> set[str]:
    return {check.what for check in checks(PUT, found) if not check.passed}


def test_right_figures_pass() -> None:
    assert failed(RIGHT) == set()


def scope(name: str, right: Freshness, **figures: Any) -> Callable[[], Found]:
    return lambda: replace(RIGHT, freshness={**RIGHT.freshness, name: replace(right, **figures)})


def other(**fields: Any) -> Callable[[], Found]:
    return lambda: replace(RIGHT, **fields)


def instead(old: RunReport, new: RunReport) -> Callable[[], Found]:
    return lambda: replace(
        RIGHT,
        runs=[new if report is old else report for report in RIGHT.runs],
        last_round=new if old is LAST else LAST,
    )


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (other(runs=[r for r in RIGHT.runs if r is not SWEPT]), "DAGs that ran"),
        (
            instead(FORMED, replace(FORMED, run=replace(FORMED.run, state="failed"))),
            "runs that did not succeed",
        ),
        (
            instead(SWEPT, replace(SWEPT, tasks=(replace(SWEPT.tasks[0], warnings=("careful",)),))),
            "warnings of ours in the tasks' logs",
        ),
        (other(import_errors=["dags/broken.py: SyntaxError"]), "import errors in the UI"),
        (other(providers=["apache-airflow-providers-standard"]), f"provider {PROVIDER} installed"),
        (other(counts=replace(COUNTS, running=1)), "jobs still waiting, running or deferred"),
        (other(counts=replace(COUNTS, terminal=41)), "jobs that ended, dropped ones too"),
        (other(counts=replace(COUNTS, failed=4)), "failed jobs that are retryable now"),
        (other(counts=replace(COUNTS, pruned_failed=0)), "failed jobs dropped past their retention"),
        (other(retried=1), "late jobs retried after all rotations"),
        (
            instead(
                LAST, turn(carried_failed=4, pruned_failed=1, pruned_completed=20, pruned_failed_total=1)
            ),
            "failed jobs carried, each of them once",
        ),
        (
            instead(
                LAST, turn(carried_failed=3, pruned_failed=2, pruned_completed=20, pruned_failed_total=1)
            ),
            "… as the tasks reported them",
        ),
        (
            instead(
                LAST, turn(carried_failed=3, pruned_failed=1, pruned_completed=20, pruned_failed_total=0)
            ),
            "… as the last total",
        ),
        (
            instead(
                LAST, turn(carried_failed=3, pruned_failed=1, pruned_completed=21, pruned_failed_total=1)
            ),
            "completed jobs dropped, as reported",
        ),
        (
            instead(FIRST, turn("skipped_busy", carried_failed=4, pruned_completed=14)),
            "rotations of a ring in use that opened no slot",
        ),
        (
            other(page={"figures": {"queues": [{"queue": "files", **asdict(COUNTS), "failed": 4}]}}),
            "the same figures on the page",
        ),
        (other(page={"figures": None}), "the same figures on the page"),
        (scope("english", ENGLISH, stored=11, formed=10), "turns stored, by scope"),
        (instead(FORMED, run(runs.FORMATION, form={"formed": 9})), "turns formed by the DAG"),
        (scope("english", ENGLISH, formed=8), "scopes not formed to the end"),
        (scope("english", ENGLISH, backlog=1), "turns still to be formed"),
        (scope("english", ENGLISH, parked=1), "parked turns, by scope"),
        (scope("ukrainian", UKRAINIAN, parked_ranges=((2, 3),)), "where they are in ukrainian"),
        (scope("ukrainian", UKRAINIAN, formed_strict=4), "formed_strict stops before the first"),
        (instead(SWEPT, run(runs.SWEEP, sweep={"parked_total": 0})), "parked_total of the sweep"),
    ],
)
def test_a_wrong_figure_fails_its_check(wrong: Callable[[], Found], what: str) -> None:
    assert what in failed(wrong())


def test_every_check_was_seen_to_fail() -> None:
    marks = [mark for mark in test_a_wrong_figure_fails_its_check.pytestmark if mark.name == "parametrize"]
    assert {check.what for check in checks(PUT, RIGHT)} == {what for _, what in marks[0].args[1]}
