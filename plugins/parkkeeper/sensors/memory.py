"""Wait until a memory namespace has caught up, or until there is something to see to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue

from parkkeeper import migrations
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore
from parkkeeper.names import checked_name
from parkkeeper.namespace import Namespace
from parkkeeper.operators import arguments
from parkkeeper.operators.errors import translated
from parkkeeper.operators.task import NamespaceTask
from parkkeeper.operators.totals import totals


class ThresholdSensor(NamespaceTask, BaseSensorOperator):
    """Wait until a number of turns is at most, or at least, so many.

    Give one of `at_most` and `at_least`. Each look is a session of its own that may not write; between two looks there
    is none, and in the mode ``reschedule``, which is the default, no worker either. What Airflow's sensors understand
    (`poke_interval`, `timeout`, `soft_fail`, ...) may be given too. Arguments that are refused fail the task
    at once, also with `soft_fail`.

    Figures, pushed when the threshold is reached: `outcome` (always ``reached``), `backlog` and `parked_total`, of the
    scope if one was given.

    Parameters
    ----------
    namespace
        The schema to look at.
    at_most
        Go on once there are so many turns or fewer.
    at_least
        Go on once there are so many turns or more.
    scope
        Only this scope; None: all. A scope that has no turn yet has no backlog either.
    conn_id
        An Airflow connection of type Parkkeeper or Postgres.
    mode
        ``reschedule`` or ``poke``, which keeps the worker while it waits.
    """

    template_fields: Sequence[str] = ("namespace", "conn_id", "at_most", "at_least", "scope")
    ui_color = "#dcebe0"

    #: The figure that is compared.
    figure: ClassVar[str]

    def __init__(
        self,
        *,
        namespace: str,
        at_most: int | str | None = None,
        at_least: int | str | None = None,
        scope: str | None = None,
        conn_id: str = "parkkeeper_default",
        mode: str = "reschedule",
        **kwargs: Any,
    ) -> None:
        super().__init__(mode=mode, multiple_outputs=True, **kwargs)
        self.namespace = namespace
        self.at_most = at_most
        self.at_least = at_least
        self.scope = scope
        self.conn_id = conn_id

    def execute(self, context: Context) -> Any:
        """Look, and wait or be rescheduled until the threshold is reached; return the figures."""
        with self._killable():
            # Here as well: what `poke` raises may be taken for a reason to skip.
            with translated():
                self.wanted()
            return super().execute(context)

    def wanted(self) -> tuple[Namespace, str | None, int | None, int | None]:
        """Validate the arguments; return the namespace, the scope, and both bounds, of which one is None."""
        namespace = Namespace.of(self.namespace)
        scope = arguments.optional_text(self.scope)
        if scope is not None:
            checked_name("scope", scope)
        at_most = arguments.optional_whole("at_most", self.at_most, 0)
        at_least = arguments.optional_whole("at_least", self.at_least, 1)
        if (at_most is None) == (at_least is None):
            raise InvalidArgument("give one of at_most and at_least")
        return namespace, scope, at_most, at_least

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        with translated():
            namespace, scope, at_most, at_least = self.wanted()
            figures = self._look(context, namespace, scope)
        number = figures[self.figure]
        done = number <= at_most if at_most is not None else number >= (at_least or 0)
        self.log.info("Namespace %s: %s", namespace, ", ".join(f"{k}={v}" for k, v in figures.items()))
        return PokeReturnValue(done, {"outcome": "reached", **figures})

    def _look(self, context: Context, namespace: Namespace, scope: str | None) -> dict[str, int]:
        with self._sessions(context, read_only=True)() as connection:
            migrations.require(connection, namespace, "memory")
            if scope is not None:
                now = MemoryStore(connection, namespace).freshness(scope)
                return {"backlog": now.backlog, "parked_total": now.parked}
            both = totals(connection, namespace, "memory_totals")
            return {"backlog": both["backlog"], "parked_total": both["parked"]}


class BacklogSensor(ThresholdSensor):
    """Wait for the number of turns that are still to be formed.

    With ``at_most=0`` for a memory that has caught up; parked turns are no backlog, so look at `parked_total` too where
    they matter. With `at_least` for a backlog that is worth a start.
    """

    figure = "backlog"


class ParkedSensor(ThresholdSensor):
    """Wait for the number of turns that are parked.

    With ``at_least=1`` for something to see to; with `at_most` until it has been seen to.
    """

    figure = "parked_total"
