"""Draw what it costs to keep failed jobs: ``python -m peers.plot FILE``, the measurements on stdin as JSON."""

from __future__ import annotations

import json
import sys
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams |= {"svg.hashsalt": "parkkeeper", "font.size": 9}  # The same figures make the same file.

from matplotlib import pyplot  # noqa: E402

#: A panel each: what it shows, and the figure of a measurement.
PANELS = {
    "rewrites of a kept job, a minute": lambda one: one["rewritten"] / one["failed"] * 60 / one["seconds"],
    "WAL, MB a minute": lambda one: one["wal"] / 1e6 * 60 / one["seconds"],
    "pg_class updates, a minute": lambda one: one["pg_class"] * 60 / one["seconds"],
}
COLOURS = {"parkkeeper, floor": "#1a7f5a", "parkkeeper, live": "#8fc7ae", "awa-pg": "#c8643c"}


def main(path: str) -> None:
    """Draw bars of what was written, and lines of how long a prune keeps readers out."""
    kept: list[dict[str, Any]] = json.load(sys.stdin)
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    for (title, value), panel in zip(PANELS.items(), axes.flat[:3], strict=True):
        bars(panel, title, [(one, value(one)) for one in kept if "wal" in one and one["failed"]])
    locks(axes.flat[3], [one for one in kept if one["held"] == "traffic" and one["prunes"]])
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(COLOURS), frameon=False)
    figure.savefig(path, metadata={"Date": None})


def bars(panel: Any, title: str, values: list[tuple[dict[str, Any], float]]) -> None:
    """Draw a group of bars for each number of failed jobs, idle and with traffic; zero is shown, so no pure log."""
    places = list(dict.fromkeys((one["failed"], one["held"]) for one, _ in values))
    for shift, (name, colour) in enumerate(COLOURS.items(), start=-1):
        of_queue = {(one["failed"], one["held"]): value for one, value in values if one["queue"] == name}
        found = [(place, of_queue[key]) for place, key in enumerate(places) if key in of_queue]
        drawn = panel.bar(
            [place + shift * 0.27 for place, _ in found],
            [y for _, y in found],
            0.25,
            color=colour,
            label=name,
        )
        panel.bar_label(drawn, labels=[label(y) for _, y in found], fontsize=7, padding=1)
    panel.set_xticks(range(len(places)), [f"{failed:,}\n{held}" for failed, held in places])
    panel.set_yscale("symlog", linthresh=0.1)
    panel.margins(y=0.15)
    panel.set_title(title)
    panel.spines[["top", "right"]].set_visible(False)


def label(value: float) -> str:
    """Return a figure in as few characters as say what it is."""
    if 0 < value < 0.01:
        return "<0.01"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def locks(panel: Any, kept: list[dict[str, Any]]) -> None:
    """Draw the time under exclusive locks by how many failed jobs are kept."""
    for name, colour in COLOURS.items():
        of_queue = [one for one in kept if one["queue"] == name]
        panel.plot(
            [f"{one['failed']:,}" for one in of_queue],
            [median(prune["exclusive_ms"] for prune in one["prunes"]) for one in of_queue],
            color=colour,
            marker="o",
        )
    panel.set_ylim(bottom=0)
    panel.set_title("exclusive lock of a prune, with traffic, median ms")
    panel.set_xlabel("failed jobs kept")
    panel.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main(*sys.argv[1:])
