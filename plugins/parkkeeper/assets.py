"""The assets whose events carry the figures of maintenance: one a ring of a queue, one a memory namespace.

A DAG that is to react schedules itself on one of them and looks at ``extra`` of the event.
"""

from __future__ import annotations

from airflow.sdk import Asset, AssetAlias

#: What every operator's events come through. A DAG scheduled on it reacts to all namespaces.
ALIASES = {family: AssetAlias(f"parkkeeper_{family}") for family in ("queue", "memory")}


def queue_asset(namespace: str, ring: str = "queue") -> Asset:
    """Return the asset of a ring, ``queue`` (jobs and their history), ``lease`` or ``claim``."""
    return _asset(f"{namespace}/queue/{ring}")


def memory_asset(namespace: str) -> Asset:
    """Return the asset of the memory of a namespace."""
    return _asset(f"{namespace}/memory")


def _asset(path: str) -> Asset:
    return Asset(name=f"parkkeeper/{path}", uri=f"parkkeeper://{path}", group="parkkeeper")
