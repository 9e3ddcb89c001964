"""Carry out an erasure that was requested from the command line or from Python: whom it is about stays there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from airflow.sdk.exceptions import AirflowException

from parkkeeper.memory import MemoryStore
from parkkeeper.memory.erasure_request import checked_id
from parkkeeper.namespace import Namespace
from parkkeeper.operators import arguments
from parkkeeper.operators.base import Figures, ParkkeeperOperator, Work
from parkkeeper.operators.totals import totals

#: How often what was appended meanwhile is gone after before that is left to another try.
TRIES = 3


def _outcome(matched: int, erased: int, *, clean: bool) -> str:
    """Say what a task made of a request that was not carried out when it began, with `matched` turns then."""
    if not clean:
        return "left"
    # Of nothing there is a receipt too; but turns that somebody else has erased are not this task's.
    return "erased" if erased or not matched else "noop"


class EraseOperator(ParkkeeperOperator):
    """Carry out the erasure of a request, which ``parkkeeper memory request-erasure`` or `request_erasure` has made.

    The request is all that the task, its run and its approval know: a subject must not stand in any of them, since
    Airflow keeps them for as long as it likes. A request is carried out once; another run finds it done.

    `outcome` is ``erased``, or ``noop`` when another run has carried it out; ``left`` when something was appended
    while the task ran, again and again: the task fails then, with its figures, and may be retried. Of a dry run
    ``requested`` or ``noop``. Further figures: `request_id`, `matched`, `erased`, `residual`, `erased_total`.

    Parameters
    ----------
    request_id
        The id that the request returned.
    dry_run
        Erase nothing; `matched` says how many turns would go.
    """

    template_fields: Sequence[str] = (*ParkkeeperOperator.template_fields, "request_id", "is_dry_run")
    outcomes = ("erased", "noop", "left", "requested")
    requires = "memory"

    def __init__(self, *, request_id: str, dry_run: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.request_id = request_id
        # Not self.dry_run: that is a method of every operator.
        self.is_dry_run = dry_run

    def prepare(self, namespace: Namespace) -> Work:
        """Validate the arguments and return the erasure."""
        request_id = checked_id(self.request_id)
        dry_run = arguments.flag("dry_run", self.is_dry_run)

        def work(connection: psycopg.Connection[Any]) -> Figures:
            store = MemoryStore(connection, namespace)
            request = store.erasure_request(request_id)
            receipt, erased = request.receipt, 0
            if receipt is not None and receipt.clean:
                outcome = "noop"
            elif dry_run:
                outcome = "requested"
            else:
                for _ in range(TRIES):
                    receipt = store.erase_requested(request_id)
                    erased += receipt.deleted_now["observation"]
                    if receipt.clean:
                        break
                outcome = _outcome(request.turns, erased, clean=receipt is not None and receipt.clean)
            return {
                "outcome": outcome,
                "request_id": str(request_id),
                "matched": request.turns,
                "erased": erased,
                "residual": 0 if receipt is None else sum(receipt.residual.values()),
                "erased_total": totals(connection, namespace, "memory_totals")["erased"],
            }

        return work

    def failure(self, figures: Figures) -> AirflowException | None:
        """Fail when something is left."""
        if figures["outcome"] != "left":
            return None
        return AirflowException(
            f"request {figures['request_id']}: {figures['residual']} rows are left, of turns that were appended "
            "while it was carried out; another try erases them"
        )
