"""Every action, hit at each of its statements: nothing is lost, doubled, leaked or left open, and the next try does it.

An error is always tried; ``make faults-full`` tries every kind of fault.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import psycopg
import pytest

from copies import NAMESPACE, Copies
from fault_scenarios import MEMORY, MIGRATIONS, NOT_HIT, QUEUE
from injector import (
    Fault,
    Injector,
    Scenario,
    World,
    client_killed,
    disk_full,
    fails_with,
    server_crashes,
    terminated_by,
)
from load import FULL
from parkkeeper import database, embedded, memory, migrations
from parkkeeper.memory import MemoryStore
from parkkeeper.queue import QueueStorage, retry

pytestmark = pytest.mark.attack

Connection = psycopg.Connection[Any]
SCENARIOS = {"queue": QUEUE, "memory": MEMORY, "migrations": MIGRATIONS}
FAMILIES = ("queue", "memory")

KINDS: dict[str, Callable[[Connection], Fault]] = {
    "error": lambda killer: fails_with("57014"),
    "terminated": terminated_by,
    "lock timeout": lambda killer: fails_with("55P03"),
    "serialization failure": lambda killer: fails_with("40001"),
    "client killed": lambda killer: client_killed,
}
HARD = {"server crash": server_crashes, "disk full": disk_full}


def functions(module: Any) -> set[str]:
    """Return the names of the functions that a module exports."""
    return {name for name in module.__all__ if isinstance(getattr(module, name), FunctionType)}


def methods(kind: type) -> set[str]:
    """Return the names of the public methods of a class."""
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def test_no_action_is_left_out() -> None:
    public = {
        "queue": methods(QueueStorage),
        "memory": methods(MemoryStore) | functions(memory),
        "migrations": functions(migrations) - NOT_HIT,
    }
    hit = {family: {name.partition(",")[0] for name in scenarios} for family, scenarios in SCENARIOS.items()}
    assert hit == public


def survive(
    world: World, family: str, kind: str, fault: Fault, record: Callable[[str, object], None]
) -> None:
    """Hit every action of a family, and report at how many statements each was."""
    failures, hits = [], {}
    for name, scenario in SCENARIOS[family].items():
        try:
            hits[name] = Injector(world, fault).survive(scenario)
        except AssertionError as error:
            failures.append(f"{name}: {error}")
    each = "; ".join(f"{name} {hit}" for name, hit in hits.items())
    record("covered", f"{family}, {kind}, at {sum(hits.values())} statements: {each}")
    assert failures == []


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a retry of three jobs be more than one transaction."""
    monkeypatch.setattr(retry, "CHUNK", 2)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("kind", list(KINDS)[: None if FULL else 1])
@pytest.mark.parametrize("family", SCENARIOS)
def test_each_action_survives_a_fault_at_each_statement(
    migrated: str,
    dsn: str,
    connect: Callable[..., Connection],
    family: str,
    kind: str,
    record_property: Callable[[str, object], None],
) -> None:
    world = World(dsn, migrated, connect, FAMILIES)
    survive(world, family, kind, KINDS[kind](connect()), record_property)


@pytest.fixture
def own_dsn(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of the test's own, which may crash: what is committed is in its log, and the log is kept."""
    bindir = os.environ.get("PARKKEEPER_TEST_BINDIR")
    monkeypatch.delenv(embedded.DSN_VARIABLE, raising=False)
    with embedded.resolve_dsn(settings={"fsync": "off"}, bindir=Path(bindir) if bindir else None) as dsn:
        yield dsn


if FULL:

    @pytest.mark.usefixtures("small_chunks")
    @pytest.mark.parametrize("kind", HARD)
    @pytest.mark.parametrize("family", SCENARIOS)
    def test_each_action_survives_a_server_that_goes_down_at_each_statement(
        own_dsn: str, family: str, kind: str, record_property: Callable[[str, object], None]
    ) -> None:
        dsn = Copies(own_dsn).make(FAMILIES)
        world = World(dsn, NAMESPACE, partial(database.connect, dsn), FAMILIES)
        try:
            survive(world, family, kind, HARD[kind], record_property)
        finally:
            world.connection.close()


def count_by_hand(world: World, session: Connection, *, together: bool) -> None:
    """Change a count and change it back: in one transaction or, as no action may, in two."""
    add = f"INSERT INTO {world.namespace}.queue_terminal_count_deltas SELECT 0, %s, 0, %s, 'failed', 0"
    lane = world.query("SELECT max(lane_id) FROM {ns}.queue_lanes")[0][0]
    if together:
        with session.transaction():
            session.execute(add, (1, lane))
            session.execute(add, (-1, lane))
    else:
        session.execute(add, (1, lane))
        session.execute(add, (-1, lane))


def test_an_action_that_can_be_cut_in_two_is_caught(
    migrated: str, dsn: str, connect: Callable[..., Connection]
) -> None:
    world = World(dsn, migrated, connect, FAMILIES)
    injector = Injector(world, fails_with("57014"))
    whole, cut = (
        Scenario(partial(count_by_hand, together=together), lambda w: w.queue.enqueue(w.name, "work"))
        for together in (True, False)
    )
    assert injector.survive(whole) == 4
    with pytest.raises(AssertionError, match="hit before statement 2"):
        injector.survive(cut)
