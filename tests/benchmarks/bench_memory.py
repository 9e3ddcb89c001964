"""Turns from log to memory in one session: ``make bench``."""

from __future__ import annotations

import sys

from measure import Measurements, bench_namespace

from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import load

SCOPE = "bench"
BATCH = 1_000


def messages(n: int) -> list[dict[str, str]]:
    """Return the two messages of turn `n`."""
    return [
        {"role": "user", "content": f"Where is parcel {n}?"},
        {"role": "assistant", "content": f"Parcel {n} is on its way."},
    ]


def main(turns: int = 10_000) -> None:
    """Append `turns` turns of two messages to one scope, form them with ``chunks``, and ask for them."""
    measured = Measurements(f"Memory, {turns:,} turns of two messages, one scope, extractor chunks")
    with bench_namespace("memory") as (connection, namespace):
        store = MemoryStore(connection, namespace)
        said = [{"messages": messages(n)} for n in range(turns)]

        def append() -> None:
            for start in range(0, turns, BATCH):
                store.append_many(SCOPE, said[start : start + BATCH])

        def form() -> None:
            while store.form_batch(load("chunks"), limit=BATCH).formed:
                pass

        measured.take("append_many", turns, append)
        measured.take("form_batch", turns, form)
        measured.take("freshness", 1, lambda: store.freshness(SCOPE))
        measured.take("recall", 1, lambda: store.recall(SCOPE, "parcel 77"))
        freshness = store.freshness(SCOPE)
        assert (freshness.stored, freshness.formed, freshness.backlog) == (turns, turns - 1, 0), freshness
    measured.show()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
