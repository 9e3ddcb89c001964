"""Which errors a retry of the task may cure, and which it cannot: said once, for every operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException

from parkkeeper.errors import DatabaseUnavailable, MigrationBlocked, ParkkeeperError
from parkkeeper.memory.errors import RebuildActive

#: A lock that was not had, a deadlock, a lost connection, a timeout, a server that is full or shutting down.
_PASSING = (psycopg.OperationalError, psycopg.InterfaceError)


@contextmanager
def translated() -> Iterator[None]:
    """Turn Parkkeeper's and the database's errors into Airflow's.

    A database's message may hold the content of a row, so it goes no further: the task's log has the name,
    the sqlstate and the constraint.

    Raises
    ------
    AirflowException
        The database is at fault, and the next try may find it well.
    AirflowFailException
        The request is at fault, or something is broken: another try would do the same.
    """
    try:
        yield
    except AirflowNotFoundException as error:
        raise AirflowFailException(f"{error}: define it in Airflow, or name another one") from None
    except (DatabaseUnavailable, MigrationBlocked, RebuildActive) as error:
        raise AirflowException(str(error)) from None
    except ParkkeeperError as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from None
    except _PASSING as error:
        raise AirflowException(f"{_describe(error)}: it may pass, the task is retried as it says") from None
    except psycopg.Error as error:
        raise AirflowFailException(f"{_describe(error)}: another try would meet it again") from None


def _describe(error: psycopg.Error) -> str:
    constraint = f", constraint {error.diag.constraint_name}" if error.diag.constraint_name else ""
    return f"database error {type(error).__name__} (sqlstate {error.sqlstate or 'none'}{constraint})"
