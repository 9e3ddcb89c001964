"""What Airflow is told of a task's figures beside the XComs: metrics, and an event of an asset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Context
from airflow.sdk.observability import stats

from parkkeeper.assets import ALIASES, memory_asset, queue_asset

#: Figures that say how something stands; every other number counts what was done.
GAUGES = frozenset(
    {
        *(
            "backlog",
            "blocked_in_a_row",
            "expiring",
            "lock_ms",
            "matched",
            "namespaces",
            "parked_share",
            "pinned_slots",
            "residual",
        ),
        *("scopes", "scopes_behind", "stored", "version"),
    }
)
#: Actions all of whose numbers do: one of a run adds up to nothing with that of the next.
STANDING = frozenset({"freshness", "lag_check", "rebuild", "verify"})
#: Numbers for people, which no metric is made of.
UNTOLD = frozenset({"slot", "generation", "through_offset"})


def count(action: str, namespace: str, figures: Mapping[str, Any]) -> None:
    """Report figures to what Airflow's metrics go to; see ``docs/reference/metrics.md``."""
    tags = {"namespace": namespace}
    stats.incr(f"parkkeeper.{action}.outcome.{figures['outcome']}", tags=tags)
    for key, figure in figures.items():
        if isinstance(figure, bool) or not isinstance(figure, int | float) or key in UNTOLD:
            continue
        name = f"parkkeeper.{action}.{key}"
        if action in STANDING or key in GAUGES or key.endswith(("_total", "_seconds")):
            stats.gauge(name, figure, tags=tags)
        elif figure:
            stats.incr(name, int(figure), tags=tags)


def announce(
    context: Context, family: str, namespace: str, ring: str, action: str, figures: Mapping[str, Any]
) -> None:
    """Let what the action worked on have an event with the figures."""
    asset = memory_asset(namespace) if family == "memory" else queue_asset(namespace, ring)
    extra = {**figures, "action": action, "namespace": namespace}
    context["outlet_events"][ALIASES[family]].add(asset, extra=extra)
