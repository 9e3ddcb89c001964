"""What must have come out, compared with what did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from parkkeeper.demo import runs
from parkkeeper.demo.runs import RunReport
from parkkeeper.memory import Freshness
from parkkeeper.queue.outcomes import QueueCounts

PROVIDER = "airflow-provider-parkkeeper"


@dataclass(frozen=True, slots=True)
class Check:
    """A figure that must have a certain value."""

    what: str
    expected: Any
    found: Any

    @property
    def passed(self) -> bool:
        """Whether it has."""
        return bool(self.expected == self.found)


@dataclass(frozen=True, slots=True)
class Put:
    """What was put in.

    Attributes
    ----------
    turns
        How many were appended, by scope.
    broken
        The offsets in `broken_scope` of the turns that cannot be formed by pairs.
    jobs, failing
        How many were enqueued in all rounds, and how many of them must fail.
    late
        Further jobs, which fail at first and succeed when they are retried.
    aged
        How many of the failed ones were made older than their retention.
    """

    turns: Mapping[str, int]
    broken_scope: str
    broken: Sequence[int]
    jobs: int
    failing: int
    late: int
    aged: int


@dataclass(frozen=True, slots=True)
class Found:
    """What came out."""

    runs: Sequence[RunReport]
    last_round: RunReport
    retried: int
    counts: QueueCounts
    freshness: Mapping[str, Freshness]
    page: Mapping[str, Any]
    import_errors: Sequence[str]
    providers: Sequence[str]


def checks(put: Put, found: Found) -> list[Check]:
    """Return every check of the demo."""
    return [*airflow_checks(found), *queue_checks(put, found), *memory_checks(put, found)]


def airflow_checks(found: Found) -> list[Check]:
    """Compare what Airflow says of itself and of the runs."""
    states = Counter(report.run.state for report in found.runs)
    return [
        Check("DAGs that ran", sorted(runs.DAGS), sorted({report.run.dag_id for report in found.runs})),
        Check("runs that did not succeed", 0, states.total() - states["success"]),
        Check(
            "warnings of ours in the tasks' logs",
            [],
            [warning for report in found.runs for task in report.tasks for warning in task.warnings],
        ),
        Check("import errors in the UI", [], list(found.import_errors)),
        Check(f"provider {PROVIDER} installed", True, PROVIDER in found.providers),
    ]


def queue_checks(put: Put, found: Found) -> list[Check]:
    """Compare the queue's counts, and what the tasks that turned the ring reported."""
    ring = [report for report in found.runs if report.run.dag_id == runs.MAINTENANCE]
    turned = sum(report.figure("rotate", "outcome") in ("rotated", "skipped_idle") for report in ring)
    counts = found.counts
    return [
        Check(
            "jobs still waiting, running or deferred", 0, counts.available + counts.running + counts.deferred
        ),
        Check("jobs that ended, dropped ones too", put.jobs + put.late, counts.terminal),
        Check(
            "failed jobs carried, each of them once",
            put.failing - put.aged + put.late,
            _total(ring, "prune", "carried_failed"),
        ),
        Check("late jobs retried after all rotations", put.late, found.retried),
        Check("failed jobs that are retryable now", put.failing - put.aged, counts.failed),
        Check("failed jobs dropped past their retention", put.aged, counts.pruned_failed),
        Check("… as the tasks reported them", put.aged, _total(ring, "prune", "pruned_failed")),
        Check("… as the last total", put.aged, found.last_round.figure("prune", "pruned_failed_total")),
        Check("the same figures on the page", asdict(counts), _page_queue(found.page)),
        Check(
            "completed jobs dropped, as reported",
            put.jobs - put.failing,
            _total(ring, "prune", "pruned_completed"),
        ),
        Check("rotations of a ring in use that opened no slot", 0, len(ring) - turned),
    ]


def memory_checks(put: Put, found: Found) -> list[Check]:
    """Compare the freshness of each scope, and what the tasks that formed and swept reported."""
    formation = [report for report in found.runs if report.run.dag_id == runs.FORMATION]
    sweeps = [report for report in found.runs if report.run.dag_id == runs.SWEEP]
    fresh = found.freshness
    broken = fresh[put.broken_scope]
    by_dag = sum(put.turns.values()) - put.turns[put.broken_scope]
    return [
        Check("turns stored, by scope", dict(put.turns), {scope: f.stored for scope, f in fresh.items()}),
        Check("turns formed by the DAG", by_dag, _total(formation, "form", "formed")),
        Check("scopes not formed to the end", [], [s for s, f in fresh.items() if f.formed != f.stored - 1]),
        Check("turns still to be formed", 0, sum(f.backlog for f in fresh.values())),
        Check(
            "parked turns, by scope",
            {put.broken_scope: len(put.broken)},
            {s: f.parked for s, f in fresh.items() if f.parked},
        ),
        Check(f"where they are in {put.broken_scope}", list(put.broken), _offsets(broken)),
        Check("formed_strict stops before the first", min(put.broken) - 1, broken.formed_strict),
        Check(
            "parked_total of the sweep",
            len(put.broken),
            sweeps[-1].figure("sweep", "parked_total") if sweeps else None,
        ),
    ]


def _total(reports: Sequence[RunReport], task_id: str, key: str) -> int:
    return sum(report.figure(task_id, key) or 0 for report in reports)


def _offsets(freshness: Freshness) -> list[int]:
    return [offset for first, last in freshness.parked_ranges for offset in range(first, last + 1)]


def _page_queue(page: Mapping[str, Any]) -> dict[str, Any]:
    queues: Sequence[Mapping[str, Any]] = (page.get("figures") or {}).get("queues") or [{}]
    return {name: figure for name, figure in queues[0].items() if name != "queue"}
