"""What Airflow is told beside the XComs: an event of an asset with the figures, and a link to the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.xcom import XComModel
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk.observability import stats
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_env import known_dag, metadata, run_task
from parkkeeper import operators
from parkkeeper.assets import memory_asset, queue_asset
from parkkeeper.memory import MemoryStore
from parkkeeper.operators import (
    FormationBatchOperator,
    FreshnessOperator,
    PruneWithCarryOperator,
    RotateRingOperator,
    reporting,
)
from parkkeeper.queue import QueueStorage


def events(uri: str) -> list[dict[str, Any]]:
    """Return what the events of an asset carry, oldest first."""
    metadata()
    with create_session() as session:
        return list(
            session.scalars(
                select(AssetEvent.extra)
                .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
                .where(AssetModel.uri == uri)
                .order_by(AssetEvent.id)
            )
        )


def test_work_that_was_done_is_an_event_with_its_figures(
    storage: QueueStorage, store: MemoryStore, migrated: str
) -> None:
    before = {ring: len(events(queue_asset(migrated, ring).uri)) for ring in ("queue", "lease")}
    storage.enqueue("letters", "print")
    rotated = run_task(
        lambda: RotateRingOperator(task_id="rotate", namespace="{{ dag_run.conf.n }}"), {"n": migrated}
    )
    run_task(lambda: RotateRingOperator(task_id="rotate", namespace=migrated, ring="lease"))
    store.append("a", [{"role": "user", "content": "hello"}])
    dag, _ = known_dag(
        lambda: FormationBatchOperator.partial(task_id="form", retries=0).expand(namespace=[migrated])
    )
    assert str(dag.test().state) == "success"

    (queue,) = events(queue_asset(migrated).uri)[before["queue"] :]
    assert queue == {**rotated.xcoms, "action": "rotate_ring", "namespace": migrated}
    *_, memory = events(memory_asset(migrated).uri)
    assert (memory["formed"], memory["parked"], memory["outcome"]) == (1, 0, "formed")
    # The lease ring is idle: nothing was done.
    assert len(events(queue_asset(migrated, "lease").uri)) == before["lease"]


def test_what_did_nothing_or_only_looked_is_no_event(store: MemoryStore, migrated: str) -> None:
    before = [events(asset(migrated).uri) for asset in (memory_asset, queue_asset)]
    run_task(lambda: FormationBatchOperator(task_id="form", namespace=migrated))
    store.append("a", [{"role": "user", "content": "hello"}])
    run_task(lambda: FreshnessOperator(task_id="freshness", namespace=migrated))
    run_task(lambda: PruneWithCarryOperator(task_id="prune", namespace=migrated, dry_run=True))
    assert [events(asset(migrated).uri) for asset in (memory_asset, queue_asset)] == before


class Sink(NoStatsLogger):
    """A backend for Airflow's metrics that keeps what it is told."""

    def __init__(self) -> None:
        self.told: dict[str, float] = {}
        self.gauges: set[str] = set()

    def incr(  # type: ignore[override]
        self, stat: str, count: int = 1, rate: float = 1, *, tags: dict[str, str] | None = None
    ) -> None:
        self.told[stat] = count

    def gauge(  # type: ignore[override]
        self,
        stat: str,
        value: float,
        rate: float = 1,
        delta: bool = False,
        *,
        tags: dict[str, str] | None = None,
    ) -> None:
        self.told[stat] = value
        self.gauges.add(stat)


@pytest.fixture
def sink() -> Iterator[Sink]:
    """What Airflow's metrics go to meanwhile."""
    sink = Sink()
    stats.initialize(factory=lambda: sink, export_legacy_names=False)
    yield sink
    stats.initialize(factory=NoStatsLogger, export_legacy_names=False)


def told(sink: Sink) -> dict[str, float]:
    return {name: value for name, value in sink.told.items() if name.startswith("parkkeeper.")}


def test_a_dry_run_is_counted_nowhere_and_what_only_stands_is_never_added_up(
    store: MemoryStore, migrated: str, sink: Sink
) -> None:
    run_task(lambda: PruneWithCarryOperator(task_id="prune", namespace=migrated, dry_run="true"))
    assert told(sink) == {}
    store.append("a", [{"role": "user", "content": "hello"}])
    run_task(lambda: FormationBatchOperator(task_id="form", namespace=migrated))
    assert told(sink)["parkkeeper.formation_batch.formed"] == 1
    assert "parkkeeper.formation_batch.formed" not in sink.gauges
    run_task(lambda: FreshnessOperator(task_id="freshness", namespace=migrated))
    assert told(sink)["parkkeeper.freshness.formed"] == 1
    assert {"parkkeeper.freshness.formed", "parkkeeper.freshness.erased"} <= sink.gauges


def test_deltas_are_counters_totals_are_gauges_and_names_are_documented(sink: Sink) -> None:
    figures = {
        "outcome": "pruned",
        "slot": 3,
        "pruned_failed": 2,
        "carried_failed": 0,
        "pruned_failed_total": 9,
    }
    reporting.count("prune_with_carry", "orders", figures)
    assert sink.told == {
        "parkkeeper.prune_with_carry.outcome.pruned": 1,
        "parkkeeper.prune_with_carry.pruned_failed": 2,
        "parkkeeper.prune_with_carry.pruned_failed_total": 9,
    }
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    documented = set(re.findall(r"`(\w+)`", page))
    assert {
        action(getattr(operators, name)) for name in operators.__all__ if name.endswith("Operator")
    } <= documented | {"parkkeeper"}
    assert documented >= reporting.GAUGES


def action(operator: type[operators.ParkkeeperOperator]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operator.__name__.removesuffix("Operator")).lower()


def test_a_task_links_to_the_page_of_its_namespace(connection: psycopg.Connection, migrated: str) -> None:
    ran = run_task(
        lambda: FreshnessOperator(task_id="linked", namespace="{{ dag_run.conf.n }}"), {"n": migrated}
    )
    assert ran.state == "success"
    with create_session() as session:
        (link,) = [
            XComModel.deserialize_value(row)
            for row in session.scalars(
                select(XComModel).where(XComModel.key == "_link_NamespaceLink", XComModel.task_id == "linked")
            )
        ]
    assert link.endswith(f"/parkkeeper/?namespace={migrated}")
