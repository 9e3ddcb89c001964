"""The page as people see it: one part of it at a time, each with an address of its own that holds its filters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
import psycopg

from parkkeeper.memory.extractors import ERROR_CLASSES
from parkkeeper.namespace import Namespace
from parkkeeper.ui import drawing, figures, history, models, overview, reading, ring, triage, words
from parkkeeper.ui.reading import Reader, Unreadable

#: Ranges that the page offers, in hours.
RANGES = {1: "1 hour", 6: "6 hours", 24: "1 day", 168: "7 days", 720: "30 days", 2160: "90 days"}
#: How many rows of a DAG's runs are listed, and among how many of the newest they are looked for.
MOST_RUNS = 100
MOST_LOOKED_AT = 20_000


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for: the part of the page, and the filters of that part."""

    namespace: str | None
    view: str = "overview"
    hours: int = 24
    queue: str | None = None
    kind: str | None = None
    scope: str | None = None
    error_class: str | None = None
    dag_id: str | None = None
    dag_run_id: str | None = None


def show(asked: Asked) -> tuple[int, str]:
    """Return the status and the HTML of the page."""
    names: list[str] = []
    try:
        with reading.session(asked.namespace) as (connection, names):
            chosen = asked.namespace or reading.default_namespace(names)
            if chosen is None:
                return 200, _render("nothing.html", asked, names, None)
            if asked.view not in _VIEWS:
                raise Unreadable(404, "There is no such part of the page.", "Choose one above.", names)
            found = _VIEWS[asked.view](asked, connection, names, chosen)
        return 200, _render(f"{asked.view}.html", asked, names, chosen, **found)
    except Unreadable as error:
        return error.status, _render(
            "unreadable.html", asked, error.names or names, asked.namespace, error=error
        )


def refuse(reason: str, remedy: str) -> str:
    """Return the HTML of a page that says why there is none and what to do."""
    error = Unreadable(0, reason, remedy, [])
    return _render("unreadable.html", Asked(namespace=None), [], None, error=error)


def _overview(
    asked: Asked, connection: psycopg.Connection[Any], names: list[str], chosen: str
) -> dict[str, Any]:
    found = overview.of(connection, names)
    reader = Reader(connection, Namespace(chosen))
    queue, memory = "queue" in reader.families, "memory" in reader.families
    detail = figures.Figures(
        namespace=chosen,
        taken_at=found.taken_at,
        queues=reader.rows("figures", "queues", figures.Queue) if queue else None,
        slots=None,
        memory=reader.row("figures", "memory_totals", figures.Memory) if memory else None,
        scopes=reader.rows("figures", "scopes", figures.Scope, limit=figures.SCOPES) if memory else None,
    )
    mine = next((one for one in found.namespaces if one.namespace == chosen and not one.problem), None)
    return {"found": found, "detail": detail, "mine": mine or overview.summary(reader)}


def _ring(asked: Asked, connection: psycopg.Connection[Any], names: list[str], chosen: str) -> dict[str, Any]:
    found = ring.read(Reader(connection, Namespace(chosen)))
    return {"found": found, "picture": words.ring([slot.state for slot in found.slots])}


def _history(
    asked: Asked, connection: psycopg.Connection[Any], names: list[str], chosen: str
) -> dict[str, Any]:
    found = history.read(Reader(connection, Namespace(chosen)), asked.hours)
    return {"found": found, "ranges": RANGES, "step": timedelta(seconds=found.step_seconds)}


def _triage(
    asked: Asked, connection: psycopg.Connection[Any], names: list[str], chosen: str
) -> dict[str, Any]:
    reader = Reader(connection, Namespace(chosen))
    failed: models.FailedJobs | None = None
    parked: models.ParkedTurns | None = None
    if "queue" in reader.families:
        failed = triage.failed_jobs(reader, asked.queue, asked.kind)
    if "memory" in reader.families:
        parked = triage.parked_turns(reader, asked.scope, asked.error_class)
    return {
        "failed": failed,
        "parked": parked,
        "classes": ERROR_CLASSES,
        "window": _window(failed),
        "most_parks": triage.MOST_PARKS,
    }


def _window(failed: models.FailedJobs | None) -> dict[str, str]:
    """Return the parameters of a redrive that say: what had failed when the page was made."""
    if failed is None or not failed.jobs:
        return {}
    since = min(group.oldest_failed_at for group in failed.groups)
    return {"finalized_from": since.isoformat(), "finalized_before": failed.taken_at.isoformat()}


def _runs(asked: Asked, connection: psycopg.Connection[Any], names: list[str], chosen: str) -> dict[str, Any]:
    def read(reader: Reader) -> list[models.Run]:
        return reader.rows(
            "ui/history",
            "of_dag",
            models.Run,
            dag_id=asked.dag_id or "",
            dag_run_id=asked.dag_run_id,
            looked=MOST_LOOKED_AT,
            limit=MOST_RUNS,
        )

    found = list(reading.each(connection, names[: overview.MOST_NAMESPACES], read))
    runs = [(name, run) for name, rows, _ in found for run in rows or []]
    runs.sort(key=lambda pair: pair[1].ended_at, reverse=True)
    return {"runs": runs[:MOST_RUNS], "problems": [problem for _, _, problem in found if problem]}


_VIEWS: dict[str, Callable[[Asked, psycopg.Connection[Any], list[str], str], dict[str, Any]]] = {
    "overview": _overview,
    "ring": _ring,
    "history": _history,
    "triage": _triage,
    "runs": _runs,
}

#: The parts that the page offers for a namespace, in their order.
PARTS = {"overview": "Overview", "ring": "Ring", "history": "Over time", "triage": "Triage"}


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(words=words, parts=PARTS, address=_address, arcs=drawing.arcs)
    return environment


def _address(**values: Any) -> str:
    """Return the address of a part of the page, relative to it."""
    return "./?" + urlencode({key: value for key, value in values.items() if value is not None})


def _render(template: str, asked: Asked, names: list[str], chosen: str | None, **values: Any) -> str:
    return _templates().get_template(template).render(asked=asked, names=names, chosen=chosen, **values)
