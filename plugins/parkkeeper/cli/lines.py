"""Reading JSON Lines: in batches, with a progress bar for people, and a bad line named by its number alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from parkkeeper.cli.parsing import json_object
from parkkeeper.cli.status import progress_bar
from parkkeeper.errors import InvalidArgument

#: How many lines are sent at once: enough to make round trips cheap, and not to make others wait for a scope's lock.
BATCH = 1_000
#: What a batch holds in memory: a line that makes it longer than this is its last.
BATCH_BYTES = 16 * 2**20
#: The longest line in bytes. Without a bound a file without line ends would be read whole into memory.
LONGEST = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank: its number from 1, and its object, or what is wrong with it."""

    number: int
    value: dict[str, Any]
    problem: str | None = None


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """Open a file to read; ``-`` is stdin."""
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = open(name, "rb")  # noqa: SIM115 (only what opening raises is about the name)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no name for a file"
        raise InvalidArgument(f"input {name!r} cannot be read: {reason}") from None
    with stream:
        yield stream


def batches(stream: BinaryIO, what: str) -> Iterator[list[Line]]:
    """Yield lines in lists of up to :data:`BATCH`, fewer of long ones; one with a problem is the last of all.

    A bar on stderr, when that is a terminal, counts the lines whose batch is done with.
    """
    with progress_bar() as progress:
        task = progress.add_task(what, total=None)
        batch: list[Line] = []
        size = 0
        for line, length in _lines(stream):
            batch.append(line)
            size += length
            if len(batch) == BATCH or size >= BATCH_BYTES:
                yield batch
                progress.update(task, advance=len(batch))
                batch, size = [], 0
        if batch:
            yield batch


def _lines(stream: BinaryIO) -> Iterator[tuple[Line, int]]:
    """Yield each line and its length in bytes."""
    try:
        for number, raw in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), start=1):
            if raw.isspace():
                continue
            try:
                if len(raw) > LONGEST:
                    raise ValueError(f"it is longer than {LONGEST:,} bytes")
                yield Line(number, json_object(raw.strip())), len(raw)
            except ValueError as error:
                yield Line(number, {}, str(error)), len(raw)
                return
    except OSError as error:
        raise InvalidArgument(f"input cannot be read: {error.strerror}") from None
