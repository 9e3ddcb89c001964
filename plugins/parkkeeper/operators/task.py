"""What operators and sensors share: one session a task, and its end when the task is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
from airflow.sdk import BaseOperator, Context

from parkkeeper.operators.links import NamespaceLink

#: The longest statement of a task without an `execution_timeout`.
STATEMENT_TIMEOUT = timedelta(hours=1)


class TaskKilled(KeyboardInterrupt):
    """The task was told to end while it worked.

    A kind of KeyboardInterrupt, because psycopg then cancels the running statement, and because no ``except
    Exception`` between here and there takes it for a failure of its own.
    """


class NamespaceTask(BaseOperator):
    """A task that works with one session on a namespace, and ends when it is told to."""

    operator_extra_links = (NamespaceLink(),)

    conn_id: str
    _working = False
    _killed = False

    def on_kill(self) -> None:
        """End the work: the running statement is cancelled and `execute` raises.

        Airflow calls this from the handler of the signal, and goes on where it was if nothing is raised. It
        calls it too after an `execution_timeout`, when `execute` has been left already: there is nothing to
        end then, and an exception would hide the timeout.
        """
        repeated, self._killed = self._killed, True
        if self._working and not repeated:
            raise TaskKilled(
                "the task was told to end: its statement is cancelled and what it had open rolled back"
            )

    @contextmanager
    def _killable(self) -> Iterator[None]:
        self._working = True
        try:
            self._stop_if_killed()
            yield
            self._stop_if_killed()
        finally:
            self._working = False

    def _stop_if_killed(self) -> None:
        # Also for an exception that was raised in the handler and lost: in a finaliser or a callback Python
        # drops it.
        if self._killed:
            raise TaskKilled("the task was told to end")

    def _sessions(
        self, context: Context, *, read_only: bool = False
    ) -> Callable[[], AbstractContextManager[psycopg.Connection[Any]]]:
        """Return what opens a session, also from another thread: Airflow is asked for the connection here."""
        # Here and not above: the hook's imports would double what a DAG file takes to parse.
        from parkkeeper.hooks import ParkkeeperHook

        ti = context["ti"]
        airflow_connection = ParkkeeperHook.get_connection(self.conn_id)

        def open_session() -> AbstractContextManager[psycopg.Connection[Any]]:
            hook = ParkkeeperHook(self.conn_id, connection=airflow_connection)
            return hook.session(
                application_name=f"af:{ti.dag_id}:{ti.task_id}:{ti.run_id}:{ti.try_number}",
                # Below the task's own limit, so that the server says which statement it was and the task cleans
                # up.
                statement_timeout=self.execution_timeout * 0.9
                if self.execution_timeout
                else STATEMENT_TIMEOUT,
                read_only=read_only,
            )

        return open_session
