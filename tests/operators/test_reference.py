"""The reference of XComs names exactly the keys and outcomes that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_env import run_task
from parkkeeper import operators
from parkkeeper.memory import MemoryStore
from parkkeeper.operators import ParkkeeperOperator

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "xcom.md"
OPERATORS = [name for name in operators.__all__ if name.endswith("Operator") and name != "ParkkeeperOperator"]
#: What an operator cannot do without.
MORE = {
    "MigrateOperator": {"family": "queue"},
    "RebuildOperator": {"scope": "s"},
    "RetryFailedOperator": {"kind": "print"},
}
#: Keys of a table that two operators share and that this one does not push.
NOT_OF = {
    "FormationBatchOperator": {"unparked", "claims_returned"},
    "ParkSweepOperator": {"discarded", "circuit"},
    "PruneWithCarryOperator": {"evacuated"},
}


def section(operator: str) -> str:
    """Return what stands below the heading that names `operator`."""
    parts = re.split(r"^## (.+)$", REFERENCE.read_text(), flags=re.MULTILINE)
    (found,) = [body for heading, body in zip(parts[1::2], parts[2::2], strict=True) if operator in heading]
    return found


@pytest.mark.parametrize("name", OPERATORS)
def test_the_reference_is_true(store: MemoryStore, migrated: str, name: str) -> None:
    operator: type[ParkkeeperOperator] = getattr(operators, name)
    more = MORE.get(name, {})
    if name == "EraseOperator":
        more = {"request_id": store.request_erasure(scope="s", reason="test").request_id}
    ran = run_task(lambda: operator(task_id="task", namespace=migrated, **more))

    text = section(name)
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    listed = {key for cell in rows for key in re.findall(r"`(\w+)`", cell)}
    if name == "FreshnessOperator":
        listed.add("outcome")  # told in the sentence above the table
    assert set(ran.xcoms) == listed - NOT_OF.get(name, set())
    assert set(operator.outcomes) <= set(re.findall(r"`(\w+)`", text))
