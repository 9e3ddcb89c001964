"""The tables at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from parkkeeper.demo.checks import Check, Found
from parkkeeper.demo.runs import RunReport


def show(console: Console, found: Found, checks: Sequence[Check]) -> None:
    """Print what came out of the runs, the queue and the memory, and whether it is what it must be."""
    for table in (
        _runs(found.runs),
        _figures(found.runs),
        _counts(asdict(found.counts)),
        _freshness(found),
        _checks(checks),
    ):
        console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        name = column.rstrip("#")
        table.add_column(name, justify="right" if column.endswith("#") else "left", overflow="fold")
    return table


def _runs(reports: Sequence[RunReport]) -> Table:
    table = _table("DAG runs, by the scheduler", "dag", "run", "state", "seconds#")
    for report in reports:
        run = report.run
        table.add_row(
            run.dag_id, _short(run.run_id), _colour(run.state, run.state == "success"), _seconds(run.duration)
        )
    return table


def _figures(reports: Sequence[RunReport]) -> Table:
    table = _table("What their tasks reported (XCom)", "dag", "run", "task", "state", "seconds#", "figures")
    for report in reports:
        for one in report.tasks:
            task = one.task
            figures = "  ".join(f"{name}={value}" for name, value in one.figures.items())
            table.add_row(
                report.run.dag_id.removeprefix("parkkeeper_"),
                _short(report.run.run_id),
                task.task_id,
                _colour(str(task.state), task.state == "success"),
                _seconds(task.duration),
                escape(figures),
            )
    return table


def _counts(counts: Mapping[str, Any]) -> Table:
    table = _table("Queue counts", *[f"{name}#" for name in counts])
    table.add_row(*map(str, counts.values()))
    return table


def _freshness(found: Found) -> Table:
    table = _table(
        "Freshness", "scope", "stored#", "formed#", "formed_strict#", "parked#", "parked at", "backlog#"
    )
    for scope, fresh in found.freshness.items():
        ranges = ", ".join(
            f"{first}" if first == last else f"{first}-{last}" for first, last in fresh.parked_ranges
        )
        table.add_row(
            scope,
            str(fresh.stored),
            str(fresh.formed),
            str(fresh.formed_strict),
            str(fresh.parked),
            ranges,
            str(fresh.backlog),
        )
    return table


def _checks(checks: Sequence[Check]) -> Table:
    table = _table("What must be", "", "figure", "must be", "is")
    for check in checks:
        sign = _colour("✓" if check.passed else "✗", check.passed)
        table.add_row(sign, escape(check.what), escape(_words(check.expected)), escape(_words(check.found)))
    return table


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {figure}" for name, figure in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _short(run_id: str) -> str:
    """Return how the run was started and the time of day."""
    kind, _, when = run_id.partition("__")
    return f"{kind} {when[11:19]}"


def _colour(text: str, good: bool) -> str:
    return f"[{'green' if good else 'red'}]{escape(text)}[/]"


def _seconds(duration: float | None) -> str:
    return "-" if duration is None else f"{duration:.1f}"
