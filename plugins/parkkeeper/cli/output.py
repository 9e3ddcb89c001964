"""What a command prints: one JSON document, or a table for people.

A document's keys are the fields of the core's outcomes. Times are ISO 8601 in UTC, durations are seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_SHOWN = 20  # of a list in a table's cell
# Joiners are part of words in several scripts.
_KEPT = frozenset("\u200c\u200d")


def emit(document: Any, *, as_json: bool, empty: str = "nothing", notes: Sequence[str] = ()) -> None:
    """Print `document`: an outcome, a mapping, or a list of outcomes.

    Parameters
    ----------
    empty
        What people are told instead of a table without rows.
    notes
        Sentences for people, below the table; the figures that they are made of are in the document.
    """
    if as_json:
        # ASCII, whatever the terminal's encoding is.
        sys.stdout.write(json.dumps(document, default=_plain, indent=2) + "\n")
        return
    console = Console(
        width=None if sys.stdout.isatty() else 10_000,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )
    # Captured, not printed: rich would answer a closed pipe by itself.
    with console.capture() as capture:
        if isinstance(document, Sequence):
            console.print(_rows([_items(row) for row in document]) if document else Text(empty))
        else:
            console.print(_figures(_items(document)))
        for note in notes:
            console.print(Text(printable(note)))
    sys.stdout.write(capture.get())


def printable(text: str) -> str:
    """Escape what could steer a terminal: the text may be somebody else's."""
    return "".join(c if c.isprintable() or c in _KEPT else c.encode("unicode_escape").decode() for c in text)


def _items(row: Any) -> dict[str, Any]:
    if is_dataclass(row):
        return {field.name: getattr(row, field.name) for field in fields(row)}
    return dict(row)


def _plain(value: Any) -> Any:
    """Turn what JSON does not know into what it does."""
    if (is_dataclass(value) and not isinstance(value, type)) or isinstance(value, Mapping):
        return _items(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in rows[0]:
        numbers = all(isinstance(row[name], int | float) for row in rows)
        table.add_column(Text(name), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*[_cell(value) for value in row.values()])
    return table


def _figures(items: Mapping[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in items.items():
        table.add_row(Text(name), _cell(value))
    return table


def _cell(value: Any) -> Text:
    return Text(printable(_words(value)))


def _words(value: Any) -> str:
    match value:
        case None | () | []:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        case Mapping():
            return ", ".join(f"{key} {_words(item)}" for key, item in value.items()) or "-"
        case tuple() | list():
            more = [f"... ({len(value)} in all)"] if len(value) > _SHOWN else []
            return ", ".join([*map(_element, value[:_SHOWN]), *more])
        case _:
            return str(value)


def _element(value: Any) -> str:
    """Return one of a list; a pair there is a range, while a list of two is two."""
    match value:
        case (int(first), int(last)):
            return f"{first}-{last}"
        case _:
            return _words(value)
