"""Where the demo runs, and the namespace that it makes anew each time."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from parkkeeper.database import statements
from parkkeeper.errors import ParkkeeperError
from parkkeeper.namespace import Namespace

#: What Airflow's DAGs look after unless a site says otherwise.
NAMESPACE = Namespace("parkkeeper")

_SQL = statements("demo")


class DemoRefused(ParkkeeperError):
    """The demo would have to touch what is not its own, or lacks what it needs."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """The folders of a checkout, which is what the demo runs from; `state` is kept from run to run."""

    dags: Path
    plugins: Path
    state: Path


def checkout() -> Checkout:
    """Return the checkout that this package was imported from, with its state folder made.

    Raises
    ------
    DemoRefused
        The package was installed: there are no DAG files then. Or the state folder is another user's.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / "dags").is_dir() or not (root / "Makefile").is_file():
        raise DemoRefused(
            "the demo runs from a checkout, with its dags folder: clone the project and run make demo"
        )
    state = _state(root)
    state.mkdir(mode=0o755, exist_ok=True)
    if state.stat().st_uid != os.geteuid():
        raise DemoRefused(f"{state} belongs to another user: have it removed, or run the demo as that user")
    return Checkout(root / "dags", root / "plugins", state)


def _state(root: Path) -> Path:
    """Return ``.demo`` in the checkout; elsewhere if that is closed to user nobody, who runs Postgres for root."""
    if os.geteuid() != 0 or all(_open_to_all(folder) for folder in (root, *root.parents)):
        return root / ".demo"
    return Path("/var/tmp") / f"parkkeeper-demo-{hashlib.sha256(str(root).encode()).hexdigest()[:12]}"


def _open_to_all(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def renew(connection: psycopg.Connection[Any], namespace: Namespace) -> None:
    """Drop the namespace of an earlier demo, and make an empty one with the demo's mark.

    Raises
    ------
    DemoRefused
        There is one without the mark: somebody else's. Nothing was touched.
    """
    with connection.transaction():
        made_by_demo = connection.execute(
            _SQL.render("made_by_demo", namespace), {"namespace": namespace.name}
        ).fetchone()
        if made_by_demo == (False,):
            raise DemoRefused(
                f"namespace {namespace} in this database was not made by the demo, which would drop it: "
                "name another database in PARKKEEPER_DSN"
            )
        for name in ("drop", "create", "mark"):
            connection.execute(_SQL.render(name, namespace))
