"""The hook: Postgres sessions with a timeout on all that can hang, and a name that tells whose they are."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.sdk import Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from parkkeeper.database import configure, milliseconds
from parkkeeper.errors import DatabaseUnavailable, InvalidArgument

#: How long to wait for the server when the connection does not say.
CONNECT_TIMEOUT = timedelta(seconds=10)
LOCK_TIMEOUT = timedelta(seconds=10)
IDLE_IN_TRANSACTION_SESSION_TIMEOUT = timedelta(minutes=1)

# Postgres keeps 63 bytes of an application_name.
_NAME_BYTES = 63


log = logging.getLogger(__name__)


def _cancel(connection: psycopg.Connection[Any]) -> None:
    """End the running statement, if the server can be asked to; it may have gone with what interrupted this."""
    try:
        connection.cancel_safe(timeout=CONNECT_TIMEOUT.total_seconds())
    except psycopg.Error as error:
        log.warning("The running statement was not cancelled: %s", type(error).__name__)


class ParkkeeperHook(PostgresHook):
    """Open sessions for Parkkeeper on an Airflow connection of type Parkkeeper or Postgres.

    Parameters
    ----------
    parkkeeper_conn_id
        The id of the connection. Its fields and extras mean what they mean to ``PostgresHook``.
    """

    conn_name_attr = "parkkeeper_conn_id"
    default_conn_name = "parkkeeper_default"
    conn_type = "parkkeeper"
    hook_name = "Parkkeeper (Postgres)"

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """Return the Airflow connection, with a ``connect_timeout`` if it has none of its own."""
        connection: Connection = super().get_connection(conn_id)
        extra = {"connect_timeout": round(CONNECT_TIMEOUT.total_seconds())} | connection.extra_dejson
        connection.extra = json.dumps(extra)
        return connection

    @contextmanager
    def session(
        self,
        *,
        application_name: str,
        statement_timeout: timedelta,
        lock_timeout: timedelta = LOCK_TIMEOUT,
        read_only: bool = False,
    ) -> Iterator[psycopg.Connection[Any]]:
        """Open a session in autocommit mode for the length of the context.

        A statement that still runs when the context is left is cancelled; when this process dies, the server ends it
        within about a second. Behind a pooler it has neither timeouts nor the latter, see ``docs/how-to/poolers.md``.

        Parameters
        ----------
        application_name
            What ``pg_stat_activity`` shows; cut to 63 bytes.
        read_only
            Whether the server refuses every write.

        Raises
        ------
        DatabaseUnavailable
            The server was not reached or refused the login.
        InvalidArgument
            An extra of the connection is none that libpq knows.
        """
        settings = {
            "application_name": application_name.encode()[:_NAME_BYTES].decode(errors="ignore"),
            "statement_timeout": f"{milliseconds(statement_timeout)}ms",
            "lock_timeout": f"{milliseconds(lock_timeout)}ms",
            "idle_in_transaction_session_timeout": f"{milliseconds(IDLE_IN_TRANSACTION_SESSION_TIMEOUT)}ms",
            "client_connection_check_interval": "500ms",
        }
        if read_only:
            settings["default_transaction_read_only"] = "on"
        connection = self._connect()
        try:
            # Set, not sent as startup options: options in the connection's extra would replace those.
            configure(connection, settings)
            yield connection
        finally:
            if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
                # Left by what psycopg takes for no interrupt, as the end of an `execution_timeout`.
                _cancel(connection)
            connection.close()

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            connection: psycopg.Connection[Any] = self.get_conn()  # type: ignore[assignment]
        except psycopg.OperationalError as error:
            reason = str(error).strip().splitlines()[-1]
            raise DatabaseUnavailable(f"connection {self.get_conn_id()} cannot be used: {reason}") from None
        except psycopg.ProgrammingError as error:
            raise InvalidArgument(f"extra of connection {self.get_conn_id()} is refused: {error}") from None
        connection.autocommit = True
        # A "cursor" extra of the connection would change what rows look like.
        connection.row_factory = tuple_row
        return connection
