"""The plans of the hot statements, as they ran inside of the functions: ``make bench-plans``.

It needs the module auto_explain, which Debian's Postgres has and the embedded one has not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import growth
import psycopg
from server import HERE

from parkkeeper import embedded

PLANS = HERE / "plans"
ROWS = 10_000
#: No timings, since they differ from run to run, and no values, since they are content.
SETTINGS = (
    "LOAD 'auto_explain'",
    "SET auto_explain.log_min_duration = 0",
    "SET auto_explain.log_nested_statements = on",
    "SET auto_explain.log_analyze = on",
    "SET auto_explain.log_buffers = on",
    "SET auto_explain.log_wal = on",
    "SET auto_explain.log_timing = off",
    "SET auto_explain.log_level = notice",
)


@contextmanager
def explained(connection: psycopg.Connection[Any]) -> Iterator[list[str]]:
    """Yield a list that the plans of the statements of the block are appended to."""
    plans: list[str] = []

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        _, _, plan = (notice.message_primary or "").partition("plan:\n")
        if plan:
            plans.append(plan)

    connection.add_notice_handler(hear)
    for setting in SETTINGS:
        connection.execute(setting)  # type: ignore[call-overload]
    yield plans
    connection.execute("SET auto_explain.log_min_duration = -1")
    connection.remove_notice_handler(hear)


def written(plans: list[str]) -> str:
    """Return plans as the text of a file, without what has no buffers to tell of, and none twice."""
    told = [re.sub(r"[ \t]+$", "", plan, flags=re.MULTILINE).strip() for plan in plans if "Buffers:" in plan]
    return "\n\n".join(dict.fromkeys(told)) + "\n"


def main() -> None:
    """Write a file for each call that is measured for growth."""
    bindir = Path(f"/usr/lib/postgresql/{os.environ.get('PG', '15')}/bin")
    PLANS.mkdir(exist_ok=True)
    with embedded.resolve_dsn(bindir=bindir) as dsn:
        for calls in (growth.queue_calls, growth.memory_calls):
            with calls(dsn, ROWS) as (connection, named):
                for name, call in named.items():
                    call()  # The first one plans, which looks at the catalogs.
                    with explained(connection) as plans:
                        call()
                    file = re.sub(r"[^a-z0-9]+", "-", name).strip("-") + ".txt"
                    (PLANS / file).write_text(written(plans), encoding="utf-8")


if __name__ == "__main__":
    main()
