"""The page on benchmarks, made from the results that are kept beside it: ``python tests/benchmarks/report.py``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import vl_convert
from queues import OURS, QUEUES

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
IMAGES = REFERENCE.parent / "images"
BEGIN = "<!-- Made by tests/benchmarks/report.py from benchmarks.json: change neither here. -->"
END = "<!-- End of what is made. -->"

#: What the table of queues has a column of: the figure, its heading, and how many places it is given with.
COLUMNS = (
    ("enqueue, jobs/s", "enqueue, jobs/s", 0),
    ("enqueue one, jobs/s", "one at a time", 0),
    ("drain, jobs/s", "drain, jobs/s", 0),
    ("drain failing, jobs/s", "failing drain, jobs/s", 0),
    ("latency p50, ms", "p50, ms", 1),
    ("latency p99, ms", "p99, ms", 1),
    ("WAL", "WAL a job, bytes", 0),
    ("dead tuples a completed job", "dead tuples a job", 2),
)
PEERS = ("pgqueuer", "awa-pg", "oban", "procrastinate")
#: The plots: the file, the figure and its title.
PLOTS = (
    ("bench-drain.svg", "drain, jobs/s", "Drain, handler does nothing: jobs a second"),
    ("bench-failing.svg", "drain failing, jobs/s", "Failing drain: jobs a second"),
    ("bench-enqueue.svg", "enqueue, jobs/s", "Enqueue, 1,000 at once: jobs a second"),
    ("bench-wal.svg", "WAL", "Enqueue and drain: bytes of WAL a job"),
)


def figure(queue: dict[str, Any], name: str) -> float | None:
    """Return a figure of a queue; the WAL is that of enqueueing and draining together."""
    known = queue["median"]
    if name != "WAL":
        return known.get(name)
    parts = [known.get(f"{work}, bytes of WAL a job") for work in ("enqueue", "drain")]
    return None if None in parts else sum(parts)


def section(results: dict[str, Any]) -> str:
    """Return the part of the page that is made from the results."""
    load = ", ".join(map(str, results["load after"]))
    parts = [
        f"Taken {results['taken']} on {results['machine']}; at the end the load was {load}. The fastest queues "
        f"were given {results['jobs']:,} jobs; rounds: {results['rounds']}.\n",
        queues(results),
        targets(results),
        growth(results["growth"]),
        prunes(results["prune"]),
        pace(results),
    ]
    return "\n".join(parts)


def table(headings: Iterable[str], rows: Iterable[Iterable[str]], *, text_columns: int = 1) -> str:
    """Return a table of Markdown; all columns but the first ones are numbers."""
    named = list(headings)
    ruled = ["---" if place < text_columns else "---:" for place in range(len(named))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (named, ruled, *rows))


def queues(results: dict[str, Any]) -> str:
    """Return the table of all queues, and the plots."""
    rows = []
    for name, queue in results["queues"].items():
        told = [shown(figure(queue, key), places) for key, _, places in COLUMNS]
        rows.append([name, "; ".join(filter(None, (queue["settings"], queue["trouble"]))), *told])
    images = "\n".join(f"![{title}](../images/{file})" for file, _, title in PLOTS)
    headings = ["queue", "as", *(heading for _, heading, _ in COLUMNS)]
    return f"{table(headings, rows, text_columns=2)}\n{images}\n"


def targets(results: dict[str, Any]) -> str:
    """Return what Parkkeeper is measured by, with the figure."""
    known = results["queues"]

    def of(name: str, key: str) -> float | None:
        return figure(known[name], key)

    def best(key: str, choose: Callable[[list[float]], float] = max) -> float | None:
        found = [value for name in PEERS if (value := of(name, key)) is not None]
        return choose(found) if found else None

    ours = {key: of(OURS, key) for key, _, _ in COLUMNS}
    rows = [
        ("drain, to the best other queue", ratio(ours["drain, jobs/s"], best("drain, jobs/s")), "2 or more"),
        (
            "drain, to a plain table",
            ratio(ours["drain, jobs/s"], of("plain table", "drain, jobs/s")),
            "0.8 or more",
        ),
        (
            "failing drain, to the best other queue",
            ratio(ours["drain failing, jobs/s"], best("drain failing, jobs/s")),
            "2 or more",
        ),
        ("WAL a job, to the best other queue", ratio(ours["WAL"], best("WAL", min)), "below 1"),
        (
            "enqueue, to the best other queue",
            ratio(ours["enqueue, jobs/s"], best("enqueue, jobs/s")),
            "3 or more",
        ),
        (
            "enqueue, to COPY into the same table",
            ratio(ours["enqueue, jobs/s"], of("plain COPY", "enqueue, jobs/s")),
            "0.85 or more",
        ),
        ("dead tuples a completed job", shown(ours["dead tuples a completed job"], 2), "0.00"),
    ]
    return table(("batches of 1,000", "measured", "aim"), rows)


def growth(costs: dict[str, Any]) -> str:
    """Return what calls cost with little and with much behind them."""
    rows = []
    for name, by_size in costs.items():
        (small, little), (large, much) = by_size.items()
        cells = [
            shown(cost[unit], places) for unit, places in (("ms", 2), ("pages", 0)) for cost in (little, much)
        ]
        rows.append([name, *cells, ratio(much["pages"], little["pages"]), ratio(much["ms"], little["ms"])])
    sizes = [f"{int(size):,}" for size in (small, large)]
    headings = [f"{unit}, {size}" for unit in ("ms", "pages") for size in sizes]
    return table(["call", *headings, "pages, ratio", "ms, ratio"], rows)


def prunes(slots: list[dict[str, Any]]) -> str:
    """Return what prunes take."""
    names = list(slots[0])
    rows = [
        [shown(slot[name], 1 if isinstance(slot[name], float) else 0) for name in names] for slot in slots
    ]
    return table(names, rows, text_columns=0)


def pace(results: dict[str, Any]) -> str:
    """Return memory's rates and how long programs take to start."""
    memory = [[name, shown(told["median"], 0)] for name, told in results["memory"].items()]
    starts = [[name, shown(ms, 0)] for name, ms in results["starts"].items()]
    return f"{table(('memory', ''), memory)}\n{table(('start to end of a program', 'ms'), starts)}"


def shown(value: float | None, places: int) -> str:
    """Return a figure as a cell of a table."""
    return "-" if value is None else f"{value:,.{places}f}"


def ratio(value: float | None, other: float | None) -> str:
    """Return how many times the other a figure is."""
    return "-" if value is None or not other else f"{value / other:.2f}"


def draw(results: dict[str, Any]) -> None:
    """Write the plots."""
    for file, name, title in PLOTS:
        values = [
            {"queue": queue, "value": value, "ours": queue.startswith(OURS)}
            for queue in QUEUES
            if (value := figure(results["queues"][queue], name)) is not None
        ]
        bars = {"field": "queue", "type": "nominal", "sort": None, "title": None}
        length = {"field": "value", "type": "quantitative", "title": None, "axis": {"format": "~s"}}
        colour = {
            "field": "ours",
            "type": "nominal",
            "legend": None,
            "scale": {"range": ["#c8643c", "#1a7f5a"]},
        }
        label = {"field": "value", "type": "quantitative", "format": ",.0f"}
        plot = {
            "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
            "background": "white",
            "title": {"text": title, "anchor": "start"},
            "width": 460,
            "data": {"values": values},
            "encoding": {"y": bars, "x": length},
            "layer": [
                {"mark": "bar", "encoding": {"color": {**colour, "sort": [False, True]}}},
                {"mark": {"type": "text", "align": "left", "dx": 3}, "encoding": {"text": label}},
            ],
        }
        (IMAGES / file).write_text(vl_convert.vegalite_to_svg(plot) + "\n", encoding="utf-8")


def main() -> None:
    """Write the plots and the part of the page between its two marks."""
    results = json.loads((REFERENCE / "benchmarks.json").read_text(encoding="utf-8"))
    page = REFERENCE / "benchmarks.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n\n{section(results)}\n{END}{after}", encoding="utf-8")
    draw(results)


if __name__ == "__main__":
    main()
