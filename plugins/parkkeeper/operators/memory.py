"""Form turns into memory, and see to those that are parked.

Both operators push `outcome`, `formed`, `failed`, `parked`, `deferred` (what this task did), `parked_total`
and `backlog` (what the namespace holds after it), and each some more; see ``docs/reference/xcom.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

from parkkeeper.database import statements
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import Extractor, load
from parkkeeper.namespace import Namespace
from parkkeeper.operators import arguments
from parkkeeper.operators.base import Figures, ParkkeeperOperator, Work


def _totals(connection: psycopg.Connection[Any], namespace: Namespace) -> dict[str, int]:
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(statements("figures").render("memory_totals", namespace)).fetchone()
    assert row is not None
    return row


class FormationBatchOperator(ParkkeeperOperator):
    """Form one batch of the turns that are due.

    The retries of the task are for the database; a turn that fails spends an attempt of its own and fails no
    task. A batch that is killed hands back the turn in its hands.

    `outcome` is ``formed`` if any turn was, ``none_formed`` if turns were tried and none was, ``circuit_open`` if
    none was tried because the provider does not answer, ``noop`` if none was due. Further figures: `discarded`,
    `circuit`.

    Parameters
    ----------
    extractor
        The name of an extractor: ``chunks``, ``llm``, or another that an installed distribution registers.
    llm_conn_id
        For the extractor ``llm``: the Airflow connection with its address (host), key (password) and model (extra).
        None: what the environment of the worker names.
    scope
        Only this scope; None: all, fairly.
    limit
        How many turns at most.
    max_attempts
        After how many failed attempts a turn is parked.
    turn_budget
        How long one extraction may take: a timedelta or seconds.
    concurrency
        How many extractions run at once.
    """

    template_fields: Sequence[str] = (
        *ParkkeeperOperator.template_fields,
        "extractor",
        "llm_conn_id",
        "scope",
        "limit",
        "max_attempts",
        "turn_budget",
        "concurrency",
    )
    outcomes = ("formed", "none_formed", "circuit_open", "noop")
    requires = "memory"

    def __init__(
        self,
        *,
        extractor: str = "chunks",
        llm_conn_id: str | None = None,
        scope: str | None = None,
        limit: int | str = 100,
        max_attempts: int | str = 6,
        turn_budget: timedelta | float | str = timedelta(minutes=5),
        concurrency: int | str = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.extractor = extractor
        self.llm_conn_id = llm_conn_id
        self.scope = scope
        self.limit = limit
        self.max_attempts = max_attempts
        self.turn_budget = turn_budget
        self.concurrency = concurrency

    def prepare(self, namespace: Namespace) -> Work:
        """Validate the arguments and return the batch."""
        extractor = self._extractor()
        options: dict[str, Any] = {
            "scope": arguments.optional_text(self.scope),
            "limit": arguments.whole("limit", self.limit, 1),
            "max_attempts": arguments.whole("max_attempts", self.max_attempts, 1),
            "turn_budget": arguments.duration("turn_budget", self.turn_budget),
            "concurrency": arguments.whole("concurrency", self.concurrency, 1),
        }

        def work(connection: psycopg.Connection[Any]) -> Figures:
            done = MemoryStore(connection, namespace).form_batch(extractor, **options)
            tried = done.formed + done.failed + done.deferred + done.discarded
            idle = "circuit_open" if done.circuit == "open" else "noop"
            totals = _totals(connection, namespace)
            return {
                "outcome": "formed" if done.formed else "none_formed" if tried else idle,
                "formed": done.formed,
                "failed": done.failed,
                "parked": done.parked,
                "deferred": done.deferred,
                "parked_total": totals["parked"],
                "backlog": totals["backlog"],
                "discarded": done.discarded,
                "circuit": done.circuit,
            }

        return work

    def _extractor(self) -> Extractor:
        conn_id = arguments.optional_text(self.llm_conn_id)
        if conn_id is None:
            return load(self.extractor)
        if self.extractor != "llm":
            raise InvalidArgument(f"llm_conn_id is refused: extractor {self.extractor!r} has no use for it")
        # Here and not above: the hook's imports would double what a DAG file takes to parse.
        from parkkeeper.hooks.llm import llm_extractor

        return llm_extractor(conn_id)


class ParkSweepOperator(ParkkeeperOperator):
    """Park what has spent its attempts, hand back expired claims, unpark what the provider was to blame for.

    `outcome` is ``swept`` if anything of that was done, else ``noop``. Further figures: `unparked`,
    `claims_returned`.
    """

    outcomes = ("swept", "noop")
    requires = "memory"

    def prepare(self, namespace: Namespace) -> Work:
        """Return the sweep; there is nothing to validate."""

        def work(connection: psycopg.Connection[Any]) -> Figures:
            done = MemoryStore(connection, namespace).sweep()
            return {
                "outcome": "swept" if done.parked or done.unparked or done.claims_returned else "noop",
                "formed": 0,
                "failed": 0,
                "parked": done.parked,
                "deferred": 0,
                "parked_total": done.parked_total,
                "backlog": _totals(connection, namespace)["backlog"],
                "unparked": done.unparked,
                "claims_returned": done.claims_returned,
            }

        return work


class FreshnessOperator(ParkkeeperOperator):
    """Say how far the memory of a namespace reaches, over all its scopes and in one snapshot.

    Figures: `outcome` (``fresh`` when every scope is caught up, else ``behind``), `scopes`, `scopes_behind`,
    and in turns `stored`, `formed`, `erased`, `parked_total`, `backlog`.
    """

    outcomes = ("fresh", "behind")
    requires = "memory"

    def prepare(self, namespace: Namespace) -> Work:
        """Return the reading; there is nothing to validate."""

        def work(connection: psycopg.Connection[Any]) -> Figures:
            totals = _totals(connection, namespace)
            parked = totals.pop("parked")
            return {
                "outcome": "behind" if totals["scopes_behind"] else "fresh",
                "parked_total": parked,
                **totals,
            }

        return work
