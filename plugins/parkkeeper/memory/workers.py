"""Threads that extract. They never touch the connection: claims go in, results come out."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from parkkeeper.memory.claims import Claim
from parkkeeper.memory.extractors import Extractor, Memory, Turn


@dataclass(frozen=True, slots=True)
class Extraction:
    """What came of a claim: memories, or the exception that ended it. `finished_at` is of the monotonic clock."""

    claim: Claim
    memories: Sequence[Memory]
    error: BaseException | None
    finished_at: float


class Workers:
    """A number of threads around one extractor.

    They are daemons: an extractor that never returns must hold up neither the batch, which stops waiting at the turn's
    deadline, nor the end of the process.
    """

    def __init__(self, extractor: Extractor, threads: int) -> None:
        self._extractor = extractor
        self._todo: SimpleQueue[tuple[Claim, Turn, contextvars.Context] | None] = SimpleQueue()
        self._done: SimpleQueue[Extraction] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"parkkeeper-extract-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, claim: Claim, turn: Turn) -> None:
        """Let the next free thread extract `turn`."""
        self._todo.put((claim, turn, contextvars.copy_context()))

    def next(self, timeout: float) -> Extraction | None:
        """Return the next result, in the order in which they come; None after `timeout` seconds without one."""
        try:
            return self._done.get(timeout=max(timeout, 0))
        except Empty:
            return None

    def close(self) -> None:
        """Let every thread end when it has finished what it is at."""
        for _ in self._threads:
            self._todo.put(None)

    def _work(self) -> None:
        while (item := self._todo.get()) is not None:
            claim, turn, context = item
            memories: Sequence[Memory] = ()
            error: BaseException | None = None
            try:
                memories = context.run(self._extractor.extract, turn)
            except BaseException as raised:  # handed to the calling thread, which sorts it
                error = raised
            self._done.put(Extraction(claim, memories, error, time.monotonic()))
