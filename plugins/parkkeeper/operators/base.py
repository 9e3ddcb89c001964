"""What operators share: arguments that are checked first, figures that are told everywhere, a record of the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, ClassVar

import psycopg
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, AirflowTaskTimeout

from parkkeeper import maintenance, migrations
from parkkeeper.assets import ALIASES
from parkkeeper.errors import ParkkeeperError
from parkkeeper.namespace import Namespace
from parkkeeper.operators import arguments, reporting
from parkkeeper.operators.errors import translated
from parkkeeper.operators.task import NamespaceTask, TaskKilled

#: What an operator pushes: one XCom per key.
Figures = dict[str, int | float | str | None]
Work = Callable[[psycopg.Connection[Any]], Figures]

# Where a word begins in the name of a class.
_ACTION = re.compile(r"(?<=[a-z])(?=[A-Z])")


class ParkkeeperOperator(NamespaceTask):
    """One action on one namespace.

    Parameters
    ----------
    namespace
        The schema to work on.
    conn_id
        An Airflow connection of type Parkkeeper or Postgres.
    skip_on_outcome
        Outcomes, one or several, on which the task is skipped instead of successful; a skipped task pushes no
        figures and, by default, skips what follows it.
    """

    template_fields: Sequence[str] = ("namespace", "conn_id", "skip_on_outcome")
    ui_color = "#dcebe0"

    #: Every value that the figure `outcome` can have.
    outcomes: ClassVar[tuple[str, ...]]
    #: The family whose tables must be exactly as this package knows them; None: whatever is there.
    requires: ClassVar[str | None] = None
    #: Whether what was done is an event of an asset, the one of the family that is required.
    announces: ClassVar[bool] = True

    def __init__(
        self,
        *,
        namespace: str | None,
        conn_id: str = "parkkeeper_default",
        skip_on_outcome: str | Collection[str] = (),
        **kwargs: Any,
    ) -> None:
        if self.announces and self.requires:
            kwargs["outlets"] = [*(kwargs.get("outlets") or ()), ALIASES[self.requires]]
        super().__init__(multiple_outputs=True, **kwargs)
        self.namespace = namespace
        self.conn_id = conn_id
        self.skip_on_outcome = skip_on_outcome

    def prepare(self, namespace: Namespace) -> Work:
        """Validate the arguments before anything is sent anywhere, and return what to do with a session."""
        raise NotImplementedError

    def execute(self, context: Context) -> Figures:
        """Do the work and return its figures."""
        with self._killable(), translated():
            skip_on = arguments.names("skip_on_outcome", self.skip_on_outcome, self.outcomes)
            figures = self.work(context)
        where = f"Namespace {self.namespace}: " if self.namespace else ""
        self.log.info("%s%s", where, ", ".join(f"{k}={v}" for k, v in figures.items()))
        self._report(context, figures)
        if failure := self.failure(figures):
            for key, figure in {**figures, "return_value": figures}.items():
                context["ti"].xcom_push(key, figure)
            raise failure
        if figures["outcome"] in skip_on:
            raise AirflowSkipException(f"outcome {figures['outcome']}, which skip_on_outcome names")
        return figures

    def _report(self, context: Context, figures: Figures) -> None:
        """Tell metrics of the figures, and an asset of work that was done."""
        if arguments.flag("dry_run", getattr(self, "is_dry_run", False)):
            return
        namespace = str(self.namespace or "several")
        reporting.count(self._action(), namespace, figures)
        if not (self.announces and self.requires) or figures["outcome"] in maintenance.NOTHING_DONE:
            return
        if self.failure(figures) is None:
            ring = str(getattr(self, "ring", "queue"))
            reporting.announce(context, self.requires, namespace, ring, self._action(), figures)

    def failure(self, figures: Figures) -> AirflowException | None:
        """Return what to fail with although there are figures, which are pushed first; None: nothing."""
        return None

    def work(self, context: Context) -> Figures:
        """Do what `prepare` returns in the one namespace, and return its figures."""
        namespace = Namespace.of(self.namespace)  # type: ignore[arg-type]
        work = self.prepare(namespace)
        open_session = self._sessions(context)
        with open_session() as connection:
            if self.requires:
                migrations.require(connection, namespace, self.requires)
            with self._recorded(context, connection, open_session, namespace) as figures:
                figures |= work(connection)
        return figures

    @contextmanager
    def _recorded(
        self,
        context: Context,
        connection: psycopg.Connection[Any],
        open_session: Callable[[], AbstractContextManager[psycopg.Connection[Any]]],
        namespace: Namespace,
    ) -> Iterator[Figures]:
        """Put on record the work whose figures the block fills in, and that which fails or is ended in it."""
        started_at = maintenance.database_time(connection)
        figures: Figures = {}
        try:
            yield figures
        except Exception:
            self._record(context, connection, namespace, started_at, {"outcome": "failed"})
            raise
        except (TaskKilled, AirflowTaskTimeout) as end:
            reason = "killed" if isinstance(end, TaskKilled) else "timed_out"
            try:
                # Of its own: in that of the work a statement may still run.
                with open_session() as other:
                    self._record(
                        context, other, namespace, started_at, {"outcome": "failed", "reason": reason}
                    )
            except (ParkkeeperError, psycopg.Error) as error:
                self.log.warning("The run is missing from maintenance_run: %s", type(error).__name__)
            raise
        if not arguments.flag("dry_run", getattr(self, "is_dry_run", False)):
            self._record(context, connection, namespace, started_at, figures)

    def _action(self) -> str:
        # The first class of ours: one that a site derives does the same action.
        ours = next(kind for kind in type(self).__mro__ if kind.__module__.startswith("parkkeeper."))
        return _ACTION.sub("_", ours.__name__.removesuffix("Operator")).lower()

    def _record(
        self,
        context: Context,
        connection: psycopg.Connection[Any],
        namespace: Namespace,
        started_at: datetime,
        figures: Figures,
    ) -> None:
        about: Figures = {name: value for name in ("ring", "scope") if (value := getattr(self, name, None))}
        try:
            maintenance.record_run(
                connection,
                namespace,
                self._action(),
                str(figures["outcome"]),
                started_at=started_at,
                figures=about | figures,
                run=maintenance.AirflowRun(context["ti"].dag_id, context["ti"].run_id, self.task_id),
            )
        except psycopg.Error as error:
            # What was done is done, and what failed fails with its own error.
            self.log.warning("The run is missing from maintenance_run: %s", error.sqlstate or "no session")
