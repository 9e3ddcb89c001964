"""An operator may be mapped, over namespaces for one."""

from __future__ import annotations

from typing import Any

from airflow_env import known_dag
from parkkeeper.memory import MemoryStore
from parkkeeper.operators import FormationBatchOperator, PruneWithCarryOperator


def states(dag: Any) -> list[tuple[int, str]]:
    return sorted((ti.map_index, str(ti.state)) for ti in dag.test().get_task_instances())


def test_one_task_a_namespace_each_with_its_own_end(store: MemoryStore, migrated: str) -> None:
    store.append("a", [{"role": "user", "content": "hello"}])
    dag, _ = known_dag(
        lambda: FormationBatchOperator.partial(task_id="form", limit=5, retries=0).expand(
            namespace=[migrated, "nowhere"]
        )
    )
    assert states(dag) == [(0, "success"), (1, "failed")]
    assert store.freshness("a").formed == 0


def test_every_argument_may_be_mapped(migrated: str) -> None:
    dag, _ = known_dag(
        lambda: PruneWithCarryOperator.partial(task_id="prune", namespace=migrated).expand_kwargs(
            [{"dry_run": True, "failed_retention": 0}, {"skip_on_outcome": "noop"}]
        )
    )
    assert states(dag) == [(0, "success"), (1, "skipped")]
