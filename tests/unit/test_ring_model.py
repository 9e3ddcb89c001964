"""Every order of the ring's steps, at a small size: the guarantees hold in each state, and a broken ring is caught."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ring_model import Broken, Fault, Model, State, check

pytestmark = pytest.mark.attack

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "ring-model.md"


def explore(model: Model) -> dict[State, list[State]]:
    """Visit every state that can be reached and check it; return what each one leads to.

    Raises
    ------
    Broken
        With the steps that led to the state.
    """
    with _uncollected():
        return _explore(model, State())


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep Python from looking for cycles among the states, again and again: there are none."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _explore(model: Model, start: State) -> dict[State, list[State]]:
    came_from: dict[State, tuple[str, State] | None] = {start: None}
    leads_to: dict[State, list[State]] = {}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        leads_to[state] = []
        for name, after in model.after(state):
            leads_to[state].append(after)
            if after in came_from:
                continue
            came_from[after] = (name, state)
            try:
                check(after, model.jobs)
            except Broken as broken:
                raise Broken(f"{broken}: {', '.join(path(came_from, after))}") from None
            queue.append(after)
    return leads_to


def path(came_from: dict[State, tuple[str, State] | None], state: State) -> list[str]:
    """Return the names of the steps that led to a state."""
    names = []
    while step := came_from[state]:
        names.append(step[0])
        state = step[1]
    return names[::-1]


@pytest.mark.parametrize("carry_to", ["floor", "live"])
def test_the_guarantees_hold_in_every_state_and_every_state_can_come_to_rest(
    carry_to: str,
) -> None:
    leads_to = explore(Model(carry_to))
    assert f"{len(leads_to):,}" in PAGE.read_text(encoding="utf-8")
    at_rest = {s for s in leads_to if not (s.bodies or s.done or s.enqueue or s.prune)}
    assert len(at_rest) > 1
    leading: dict[State, list[State]] = {}
    for state, afters in leads_to.items():
        for after in afters:
            leading.setdefault(after, []).append(state)
    reached, queue = set(at_rest), deque(at_rest)
    while queue:
        for before in leading.get(queue.popleft(), ()):
            if before not in reached:
                reached.add(before)
                queue.append(before)
    assert reached == set(leads_to)


CAUGHT = {
    Fault.NARROW_CARRY: "a terminal row has lost its arguments",
    Fault.NO_DELTAS: "the counters are not the rows",
    Fault.FOLD_CARRIED: "the rollups are not what has left",
    Fault.FOLD_AS_COMPLETED: "the rollups are not what has left",
    Fault.NO_SECOND_LOOK: "a claim has no body",
    Fault.IGNORE_CLAIMS: "a claim has no body",
    Fault.NO_LOCK_ON_ROWS: "a job stands in two places",
    Fault.TWO_CLOCKS: "the rollups are not what has left",
    Fault.SEGMENT_UNSEEN: "a failed row inside the floor was dropped",
    Fault.COMMIT_IN_BETWEEN: "a job stands in two places",
}


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_a_broken_ring_is_caught(fault: Fault) -> None:
    with pytest.raises(Broken, match=CAUGHT[fault]):
        explore(Model(fault=fault))
