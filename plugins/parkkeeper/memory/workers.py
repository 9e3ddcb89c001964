"""Threads that extract. They never touch the connection: turns go in, results come out."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from queue import Empty, SimpleQueue
from uuid import UUID

from parkkeeper.memory.canary import canary
from parkkeeper.memory.extractors import ExtractionError, Extractor, Memory, Turn
from parkkeeper.memory.results import checked, classed

# Python hears of a signal that comes just before a wait begins only when that is over: no wait is longer, in seconds.
_LOOK_UP = 0.2


@dataclass(frozen=True, slots=True)
class Extraction:
    """What came of the turn under `token`: memories, or a failure. `finished_at` is of the monotonic clock."""

    token: UUID
    memories: Sequence[Memory]
    failure: ExtractionError | None
    finished_at: float


class Workers:
    """A number of threads around one extractor, and one more for each canary.

    They are daemons: an extractor that never returns must hold up neither the batch, which stops waiting at the turn's
    deadline, nor the end of the process.
    """

    def __init__(self, extractor: Extractor, threads: int) -> None:
        self._extractor = extractor
        self._todo: SimpleQueue[tuple[UUID, Callable[[], Turn], contextvars.Context] | None] = SimpleQueue()
        self._done: SimpleQueue[Extraction] = SimpleQueue()
        self._threads = [_started(self._work, f"parkkeeper-extract-{number}") for number in range(threads)]

    def submit(self, token: UUID, turn: Turn) -> None:
        """Let the next free thread extract `turn`."""
        self._todo.put((token, lambda: turn, contextvars.copy_context()))

    def send_canary(self, token: UUID, deadline: datetime) -> None:
        """Extract the canary in a thread of its own: all others may be waiting for a provider that does not answer."""
        context = contextvars.copy_context()
        _started(
            lambda: self._extract(token, lambda: canary(self._extractor, deadline), context),
            "parkkeeper-extract-canary",
        )

    def next(self, timeout: float) -> Extraction | None:
        """Return the next result, in the order in which they come; None after `timeout` seconds without one."""
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                return self._done.get(timeout=max(min(left, _LOOK_UP), 0))
            except Empty:
                if left <= _LOOK_UP:
                    return None

    def close(self) -> None:
        """Let every thread end when it has finished what it is at."""
        for _ in self._threads:
            self._todo.put(None)

    def _work(self) -> None:
        while (item := self._todo.get()) is not None:
            self._extract(*item)

    def _extract(self, token: UUID, make: Callable[[], Turn], context: contextvars.Context) -> None:
        memories: Sequence[Memory] = ()
        failure: ExtractionError | None = None
        try:
            memories = context.run(lambda: checked(self._extractor.extract(make())))
        except BaseException as raised:  # no interrupt: those come to the main thread
            failure = classed(raised)
        self._done.put(Extraction(token, memories, failure, time.monotonic()))


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread
