"""What maintenance did, as a picture: a Vega-Lite description, drawn as SVG on the server. See ``docs/adr/0006``."""

from __future__ import annotations

from typing import Any

from parkkeeper.ui import models, words

_WIDTH, _HEIGHT = 640, 88

# Resolved by the page's own style, so that a drawing is right in both themes.
_CONFIG = {
    "background": None,
    "font": "inherit",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
    },
    "title": {"anchor": "start", "color": "var(--text)", "fontSize": 12, "fontWeight": 600, "offset": 6},
}


def draw(history: models.History) -> str:
    """Return one SVG with a chart for each figure of the history, over the same time."""
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(_description(history))
    return svg


def _description(history: models.History) -> dict[str, Any]:
    ends = history.ends_at.timestamp() * 1000
    domain = [ends - history.hours * 3_600_000, ends]
    values = [
        {"from": begins, "to": begins + history.step_seconds * 1000, **step.model_dump(exclude={"begins_at"})}
        for step in history.steps
        for begins in [step.begins_at.timestamp() * 1000]
    ]
    last = len(words.HISTORY) - 1
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "config": _CONFIG,
        "data": {"values": values},
        "spacing": 14,
        "vconcat": [
            _chart(figure, domain, labelled=place == last) for place, figure in enumerate(words.HISTORY)
        ],
    }


def _chart(figure: words.Figure, domain: list[float], *, labelled: bool) -> dict[str, Any]:
    axis = {"format": "~s", "tickCount": 3, "title": None}
    x = {
        "field": "from",
        "type": "temporal",
        "scale": {"domain": domain, "type": "utc"},
        "axis": {"title": "UTC", "tickCount": 6, "labelOverlap": True}
        if labelled
        else {"labels": False, "ticks": False, "title": None, "tickCount": 6},
    }
    bars = {
        "mark": {"type": "rect", "color": f"var(--{figure.colour})", "tooltip": False},
        "encoding": {
            "x": x,
            "x2": {"field": "to"},
            "y": {"field": figure.name, "type": "quantitative", "axis": axis, "scale": {"zero": True}},
            "y2": {"datum": 0},
        },
    }
    misses = {
        "transform": [{"filter": "datum.deadline_misses > 0"}],
        "mark": {"type": "rule", "color": "var(--red)", "strokeDash": [3, 3]},
        "encoding": {"x": x},
    }
    return {
        "title": f"{figure.heading} ({figure.unit})",
        "width": _WIDTH,
        "height": _HEIGHT,
        "layer": [bars, misses],
    }
