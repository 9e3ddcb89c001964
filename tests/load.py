"""What the tests under load share: how many jobs they take, a bar that shows how far they are, tallies of many ids."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

#: Whether what looks for faults does so at length: ``make faults-full``.
FULL = os.environ.get("PARKKEEPER_FAULTS") == "full"
SOAKING = "PARKKEEPER_SOAK_JOBS" in os.environ
#: Jobs in a run: enough to meet each danger with every change; ``make soak`` asks for more.
JOBS = int(os.environ.get("PARKKEEPER_SOAK_JOBS", 20_000))
#: The time a test under load may take, in seconds; 0: as long as it needs.
TIMEOUT = 0 if SOAKING else 300

_CONSOLE = Console(stderr=True, quiet=not SOAKING)


class Tally:
    """How often each job was seen: a byte a job, so that millions fit. Safe to share if calls are not made at once."""

    def __init__(self) -> None:
        self._times = array("b")
        self.jobs = 0

    def add(self, job_ids: Iterable[int], times: int = 1) -> None:
        """See these jobs so many times more, or less."""
        for job_id in job_ids:
            if job_id >= len(self._times):
                self._times.frombytes(bytes(job_id + 1))
            self.jobs += not self._times[job_id]
            self._times[job_id] += times
            self.jobs -= not self._times[job_id]

    def seen(self) -> dict[int, int]:
        """Return how often each job was seen, but for those that were not."""
        return {job_id: times for job_id, times in enumerate(self._times) if times}


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` jobs have ended, when somebody waits for it; yield what to call with that number."""
    columns = (TextColumn("jobs ended"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_CONSOLE, disable=not SOAKING) as bar:
        task = bar.add_task("jobs", total=total)
        yield lambda ended: bar.update(task, completed=ended)


def report(text: str) -> None:
    """Tell what was measured to whoever waits for it."""
    _CONSOLE.print(text)
