"""The example of each operator works, and the reference of XComs names exactly the keys and outcomes that there are."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_env import run_task
from parkkeeper import operators, sensors
from parkkeeper.memory import MemoryStore
from parkkeeper.queue import QueueStorage

DOCS = Path(__file__).parents[2] / "docs"
KINDS: dict[str, Any] = {
    name: getattr(module, name)
    for module in (operators, sensors)
    for name in module.__all__
    if name not in ("ParkkeeperOperator", "TaskKilled")
}
#: Keys of a table that two operators share and that this one does not push.
NOT_OF = {
    "FormationBatchOperator": {"unparked", "claims_returned"},
    "ParkSweepOperator": {"discarded", "circuit"},
    "PruneWithCarryOperator": {"evacuated"},
    "RotateRingOperator": {"lock_ms"},
}


def section(operator: str) -> str:
    """Return what stands below the heading that names `operator`."""
    parts = re.split(
        r"^## (.+)$", (DOCS / "reference" / "xcom.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    (found,) = [body for heading, body in zip(parts[1::2], parts[2::2], strict=True) if operator in heading]
    return found


def example(operator: str, namespace: str) -> Any:
    """Make the task of the example that the how-to gives of `operator`, in a namespace of the test's."""
    how_to = (DOCS / "how-to" / "operators.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf"^```python\n({operator}\(.*?\))\n```$", how_to, flags=re.MULTILINE | re.DOTALL)
    return eval(code.replace('"orders"', repr(namespace)), {"timedelta": timedelta, **KINDS})


@pytest.mark.parametrize("name", KINDS)
def test_the_example_works_and_the_reference_is_true(
    storage: QueueStorage, store: MemoryStore, migrated: str, name: str
) -> None:
    storage.enqueue("letters", "print")
    request = store.request_erasure(scope="s", reason="test")
    ran = run_task(lambda: example(name, migrated), conf={"request_id": str(request.request_id)})
    assert ran.state == "success"

    text = section(name)
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    listed = {key for cell in rows for key in re.findall(r"`(\w+)`", cell)}
    if name == "FreshnessOperator":
        listed.add("outcome")  # told in the sentence above the table
    assert set(ran.xcoms) == listed - NOT_OF.get(name, set())
    outcomes = getattr(KINDS[name], "outcomes", ("reached",))
    assert set(outcomes) <= set(re.findall(r"`(\w+)`", text))
