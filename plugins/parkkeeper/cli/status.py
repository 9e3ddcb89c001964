"""What shows people, on a terminal, how a command that takes its time is getting on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from parkkeeper.cli.output import printable

if TYPE_CHECKING:
    from rich.progress import Progress


def progress_bar() -> Progress:
    """Return a bar on stderr that counts what is done, if that is a terminal, and leaves nothing of itself."""
    # Only here: it is a fifth of the time that every other command takes to start.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def status_line(say: Callable[[], str]) -> Iterator[None]:
    """Show what `say` returns, anew four times a second, on stderr if that is a terminal, and leave nothing of it."""
    if not sys.stderr.isatty():
        yield
        return
    # Only here: every other command would start later for it.
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(
        get_renderable=lambda: Text(printable(say())),
        console=Console(stderr=True),
        refresh_per_second=4,
        transient=True,
        # What a handler prints stands above the line, but for a stdout that leads elsewhere.
        redirect_stdout=sys.stdout.isatty(),
    ):
        yield
