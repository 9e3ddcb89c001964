"""The benchmarks work, and the page states what was measured: at sizes of which the figures say nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import growth
import pace
import prune
import psycopg
import pytest
import queues
import report
import server

RESULTS = json.loads((report.REFERENCE / "benchmarks.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def no_database_is_left(server_dsn: str) -> Iterator[None]:
    """Look for databases that a benchmark has made and not dropped."""
    yield
    with psycopg.connect(server_dsn) as connection:
        assert not connection.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'bench\\_%'"
        ).fetchall()


def test_a_queue_is_given_work_of_each_kind(server_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "RATE", 20)
    monkeypatch.setattr(queues, "STEADY", 1)
    told = queues.Rounds()
    queues.run(told, queues.OURS, server_dsn, 100)
    assert told.trouble == ""
    figures = {name: figure for name, [figure] in told.figures.items()}
    assert figures.pop("dead tuples a completed job") == 0
    assert all(figure > 0 for figure in figures.values())
    assert {key for key, _, _ in report.COLUMNS if report.figure(told.medians(), key) is None} == set()


def test_what_is_updated_is_left_behind(server_dsn: str) -> None:
    told = queues.Rounds()
    queues.run(told, "plain table", server_dsn, 100)
    assert told.trouble == ""
    assert told.figures["dead tuples a completed job"] == [2.0]


def test_a_queue_that_is_not_there_costs_only_its_own_figures(
    server_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = server.HERE / "nowhere" / "bin" / "python"
    monkeypatch.setattr(queues, "QUEUES", {"pgqueuer": ("pgqueuer_queue", nowhere)})
    told = queues.measure(server_dsn, 10, 2)
    assert told["pgqueuer"]["trouble"] == "skipped: there is no nowhere"
    written = report.section({**RESULTS, "queues": {**RESULTS["queues"], **told}})
    assert "| pgqueuer | skipped: there is no nowhere | - |" in written


def test_calls_are_measured_by_time_and_pages(server_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "ROUNDS", 1)
    costs = growth.measure(server_dsn, (200,))
    assert len(costs) == 13
    assert all(
        cost["ms"] > 0 and cost["pages"] > 0 for by_size in costs.values() for cost in by_size.values()
    )


def test_a_slot_is_pruned_again_and_again(server_dsn: str) -> None:
    slot = prune.slot(server_dsn, 20, 10, 2)
    assert (slot["carried"], slot["carried before, at last"]) == (10, 10)
    assert slot["under exclusive locks, ms"] > 0


def test_a_log_is_appended_formed_and_erased(server_dsn: str) -> None:
    assert all(told["median"] > 0 for told in pace.memory(server_dsn, 10, 1).values())


def test_the_page_is_made_from_the_results() -> None:
    page = (report.REFERENCE / "benchmarks.md").read_text(encoding="utf-8")
    assert f"{report.BEGIN}\n\n{report.section(RESULTS)}\n{report.END}" in page


def test_every_queue_is_told_of() -> None:
    told: dict[str, Any] = RESULTS["queues"]
    assert list(told) == list(queues.QUEUES)
    assert [name for name, queue in told.items() if not queue["median"] and not queue["trouble"]] == []
