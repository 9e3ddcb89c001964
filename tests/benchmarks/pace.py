"""How fast memory's work goes, and how long programs take to start."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from growth import NAMESPACE, SCOPE, namespace

from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import load

BATCH = 1_000
SUBJECT = "bench-subject"
#: What is started, and what that is called.
PROGRAMS = {
    "python alone": ["-c", "pass"],
    "import parkkeeper": ["-c", "import parkkeeper"],
    "import parkkeeper.queue": ["-c", "import parkkeeper.queue"],
    "import parkkeeper.memory": ["-c", "import parkkeeper.memory"],
    "import parkkeeper.operators": ["-c", "import parkkeeper.operators"],
    "parkkeeper --help": [str(Path(sys.executable).with_name("parkkeeper")), "--help"],
}


def memory(dsn: str, turns: int, rounds: int) -> dict[str, dict[str, float]]:
    """Append, form, recall and erase a log of so many turns; return the median rate or time of each."""
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        with namespace(dsn, "memory") as connection:
            for name, figure in once(MemoryStore(connection, NAMESPACE), turns):
                taken.setdefault(name, []).append(figure)
    return {name: {"median": median(figures)} for name, figures in taken.items()}


def once(store: MemoryStore, turns: int) -> list[tuple[str, float]]:
    """Return the figures of one log: turns of two messages, all of one scope and of one subject."""
    said = [{"messages": messages(n), "subject": SUBJECT} for n in range(turns)]
    chunks = load("chunks")

    def append() -> None:
        for start in range(0, turns, BATCH):
            store.append_many(SCOPE, said[start : start + BATCH])

    def form() -> None:
        while store.form_batch(chunks, limit=BATCH).formed:
            pass

    figures = [
        ("append_many, turns/s", turns / seconds(append)),
        ("form_batch, turns/s", turns / seconds(form)),
        ("recall, ms", seconds(lambda: store.recall(SCOPE, "parcel 77")) * 1000),
        ("erase a subject, turns/s", turns / seconds(lambda: store.erase(subject=SUBJECT, reason="bench"))),
    ]
    if (left := store.freshness(SCOPE)).backlog or left.stored != turns:
        raise RuntimeError(f"not all was formed and erased: {left}")
    return figures


def messages(n: int) -> list[dict[str, str]]:
    """Return the two messages of turn `n`."""
    return [
        {"role": "user", "content": f"Where is parcel {n}?"},
        {"role": "assistant", "content": f"Parcel {n} is on its way."},
    ]


def starts(rounds: int) -> dict[str, float]:
    """Return how many milliseconds programs take from start to end, the median of so many starts in turns."""
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for name, arguments in PROGRAMS.items():

            def start(arguments: list[str] = arguments) -> Any:
                return subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

            taken[name].append(seconds(start) * 1000)
    return {name: median(times) for name, times in taken.items()}


def seconds(action: Callable[[], object]) -> float:
    """Return how long `action` takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
