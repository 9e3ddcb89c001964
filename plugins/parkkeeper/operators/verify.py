"""Ask the rows of a namespace whether what is promised of them is true, and fail when it is not."""

from __future__ import annotations

from typing import Any

import psycopg
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from parkkeeper import verification
from parkkeeper.namespace import Namespace
from parkkeeper.operators.base import Figures, ParkkeeperOperator, Work


class VerifyOperator(ParkkeeperOperator):
    """Fail when an invariant does not hold, after all figures are pushed; it changes nothing, and no retry cures it.

    It asks every family that the namespace has, and reads every row. Nobody waits for it but prunes of the queue's
    rings, which say ``blocked`` meanwhile: run it when the ring has time, once a day for example. The exception names
    each invariant that is broken, and how often; ``parkkeeper verify`` shows where. `outcome` is ``holds`` or
    ``broken``.
    """

    outcomes = ("holds", "broken")

    def prepare(self, namespace: Namespace) -> Work:
        """Return the check; there is nothing to validate."""

        def work(connection: psycopg.Connection[Any]) -> Figures:
            found = verification.broken_invariants(connection, namespace)
            return {
                "outcome": "broken" if found else "holds",
                "broken": len(found),
                "violations": sum(one.violations for one in found),
                "invariants": ", ".join(f"{one.invariant} ({one.violations})" for one in found) or None,
            }

        return work

    def failure(self, figures: Figures) -> AirflowException | None:
        """Name each invariant that is broken."""
        if figures["outcome"] == "broken":
            return AirflowFailException(
                f"namespace {self.namespace}: {figures['invariants']}: "
                f"run `parkkeeper verify --namespace {self.namespace}`"
            )
        return None
