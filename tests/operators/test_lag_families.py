"""LagCheckOperator in a namespace that has one family, or none: what it cannot look at is no limit that was kept."""

from __future__ import annotations

import pytest

from parkkeeper.errors import ParkkeeperError
from parkkeeper.memory import MemoryStore
from parkkeeper.namespace import Namespace
from parkkeeper.operators import LagCheckOperator
from parkkeeper.operators.base import Figures
from parkkeeper.operators.lag import LIMITS, NOTHING


@pytest.fixture
def families() -> tuple[str, ...]:
    return ("memory",)


def test_a_limit_about_a_family_that_is_not_there_is_refused(store: MemoryStore) -> None:
    def look(namespace: Namespace, **limits: int) -> Figures:
        return LagCheckOperator(task_id="lag", namespace=namespace.name, **limits).prepare(namespace)(
            store.connection
        )

    of_memory = {name: 1 for name, (_, family) in LIMITS.items() if family == "memory"}
    figures = look(store.namespace, **of_memory)
    assert figures["outcome"] == "within_limits"
    assert {name: figures[name] for name in NOTHING["queue"]} == NOTHING["queue"]
    assert None not in [figures[name] for name in NOTHING["memory"]]
    for name in LIMITS.keys() - of_memory.keys():
        with pytest.raises(ParkkeeperError):
            look(store.namespace, **{name: 1})
    with pytest.raises(ParkkeeperError):
        look(Namespace("nowhere"))
