"""Arguments that are not what they must be: refused by name, before anything is sent to the database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from memory_kit import failing, say
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore, SweepPolicy

BAD: dict[str, tuple[str, Callable[[MemoryStore], Any]]] = {
    "a truth as offset": ("log_offset", lambda s: s.turn_status("s", True)),
    "a text as offset": ("log_offset", lambda s: s.turn_status("s", "0")),  # type: ignore[arg-type]
    "a fraction as offset": ("log_offset", lambda s: s.turn_status("s", 0.5)),  # type: ignore[arg-type]
    "half a place": ("after", lambda s: s.parked(after=("s",))),  # type: ignore[arg-type]
    "a place the wrong way round": ("after", lambda s: s.parked(after=(0, "s"))),  # type: ignore[arg-type]
    "a text as place": ("after", lambda s: s.parked(after="s:0")),  # type: ignore[arg-type]
    "one id to unpark": ("observation_ids", lambda s: s.unpark(observation_ids=1)),  # type: ignore[arg-type]
    "a text of ids to unpark": ("observation_ids", lambda s: s.unpark(observation_ids="12")),  # type: ignore[arg-type]
    "no number among the ids": ("observation_ids", lambda s: s.unpark(observation_ids=[1, "MARKER"])),  # type: ignore[list-item]
    "an id that none can be": ("observation_ids", lambda s: s.unpark(observation_ids=[2**63])),
    "seconds as age": ("older_than", lambda s: s.unpark(older_than=5)),  # type: ignore[arg-type]
    "one id to erase": ("observation_ids", lambda s: s.erase(observation_ids=1, reason="test")),  # type: ignore[arg-type]
    "a text among ids to erase": (
        "observation_ids",
        lambda s: s.erase(observation_ids=["MARKER"], reason="test"),  # type: ignore[list-item]
    ),
    "a number as subject": ("subject", lambda s: s.erase(subject=5, reason="test")),  # type: ignore[arg-type]
    "a shard beyond the last": ("shard", lambda s: s.form_batch(failing("other"), shard=(2, 2))),
    "a shard of none": ("shard", lambda s: s.form_batch(failing("other"), shard=(0, 0))),
    "half a shard": ("shard", lambda s: s.form_batch(failing("other"), shard=(0.5, 2))),  # type: ignore[arg-type]
    "a shard of one scope": ("shard", lambda s: s.form_batch(failing("other"), scope="s", shard=(0, 2))),
    "a policy without a number": ("max_attempts", lambda s: SweepPolicy(max_attempts="6")),  # type: ignore[arg-type]
    "a policy without a limit": ("limit", lambda s: SweepPolicy(limit=None)),  # type: ignore[arg-type]
    "a page without an end": ("limit", lambda s: s.parked(limit=None)),  # type: ignore[arg-type]
    "a policy with half a number": ("limit", lambda s: SweepPolicy(limit=1.5)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", BAD)
def test_an_argument_of_the_wrong_kind_is_refused_by_name(store: MemoryStore, case: str) -> None:
    store.append("s", say("x"))
    store.form_batch(failing("refusal"))
    field, call = BAD[case]
    with pytest.raises(InvalidArgument, match=f"^{field} ") as refused:
        call(store)
    assert "MARKER" not in str(refused.value)
    assert store.turn_status("s", 0) == "parked"


def test_turns_may_come_from_anything_that_yields_them(store: MemoryStore) -> None:
    appended = store.append_many("s", ({"messages": say(word)} for word in ("one", "two")))
    assert [turn.log_offset for turn in appended] == [0, 1]


def test_ids_may_come_from_anything_that_yields_them(store: MemoryStore) -> None:
    ids = [turn.observation_id for turn in store.append_many("s", [{"messages": say("x")}] * 4)]
    store.form_batch(failing("refusal"))
    assert store.unpark(observation_ids={ids[0], ids[1]}) == 2
    assert store.unpark(observation_ids=iter(ids[2:3]), older_than=timedelta(0)) == 1
    assert store.erase(observation_ids=iter(ids), reason="test").deleted["observation"] == 4
