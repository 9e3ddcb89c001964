"""What the demo says while it works: one line a step, with how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

Say = Callable[[str], None]


class Progress:
    """Prints a line when a step has ended; on a terminal, what goes on meanwhile too."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    @contextmanager
    def step(self, title: str) -> Iterator[Say]:
        """Show `title` while the body runs; what the body says last stays beside it."""
        began = time.monotonic()
        last = ""
        if not self._console.is_terminal:
            self._console.print(f"  … {title}", markup=False)
        with self._console.status(title) as status:

            def say(text: str) -> None:
                nonlocal last
                last = text
                status.update(f"{title} [dim]· {escape(text)}[/dim]")

            try:
                yield say
            except BaseException:
                self._line("[red]✗[/red]", title, last, began)
                raise
        self._line("[green]✓[/green]", title, last, began)

    def _line(self, sign: str, title: str, last: str, began: float) -> None:
        took = time.monotonic() - began
        told = f" · {escape(last)}" if last else ""
        self._console.print(f"  {sign} {title}[dim]{told}[/dim] · [cyan]{took:.1f} s[/cyan]", highlight=False)
