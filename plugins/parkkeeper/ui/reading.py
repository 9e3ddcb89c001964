"""Sessions of the page: read only, short, and with errors that say what to do, never in the database's own words."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import psycopg
from airflow.sdk.exceptions import AirflowNotFoundException
from psycopg.rows import RowFactory, class_row, scalar_row

from parkkeeper import migrations
from parkkeeper.database import statements
from parkkeeper.errors import (
    DatabaseNewer,
    DatabaseUnavailable,
    InvalidArgument,
    MigrationError,
    ParkkeeperError,
    UnknownNamespace,
)
from parkkeeper.hooks import ParkkeeperHook
from parkkeeper.maintenance import database_time
from parkkeeper.namespace import Namespace
from parkkeeper.provider import option
from parkkeeper.ui import figures

log = logging.getLogger(__name__)

STATEMENT_TIMEOUT = timedelta(seconds=5)
LOCK_TIMEOUT = timedelta(seconds=1)
#: How long all namespaces together may take; those that are not read by then are named.
ALL_WITHIN = timedelta(seconds=10)

Row = TypeVar("Row")
Found = TypeVar("Found")

# What a database's error means for a reader, and what to do, by its sqlstate.
_REASONS = {
    "42501": "the connection's login may not read its tables; grant it the role of readers",
    "55P03": "another session holds a lock on its tables; try again when that has ended",
    "57014": "it did not answer in time; try again when there is less to do",
}


class Unreadable(Exception):
    """The figures cannot be had.

    Attributes
    ----------
    status
        The HTTP status of the answer.
    reason, remedy
        A sentence each for people: what is wrong and what to do.
    names
        The namespaces to choose from, if they could be read.
    """

    def __init__(self, status: int, reason: str, remedy: str, names: list[str]) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.remedy = remedy
        self.names = names


class Reader:
    """One namespace, read by named statements, each a transaction of its own, so that no lock outlasts it.

    Attributes
    ----------
    families
        Which of ``queue`` and ``memory`` the namespace has, of the release that this package knows.
    """

    def __init__(self, connection: psycopg.Connection[Any], space: Namespace) -> None:
        self.connection = connection
        self.space = space
        self.families = frozenset(self.values("figures", "families"))
        for family in sorted(self.families):
            if family not in migrations.FAMILIES:
                raise DatabaseNewer(
                    f"namespace {space} has the family {family}, which is unknown to this package: "
                    "upgrade airflow-provider-parkkeeper here"
                )
            migrations.require(connection, space, family)

    def rows(
        self, path: str, name: str, kind: type[Row], *, by_key: bool = False, **values: Any
    ) -> list[Row]:
        """Return what a statement finds; `by_key`: rows are probed by their keys, whatever statistics say."""
        return self._all(class_row(kind), path, name, by_key, values)

    def row(self, path: str, name: str, kind: type[Row], **values: Any) -> Row:
        """Return the one row of a statement."""
        (row,) = self.rows(path, name, kind, **values)
        return row

    def values(self, path: str, name: str, *, by_key: bool = False, **values: Any) -> list[Any]:
        """Return the first column of what a statement finds."""
        return self._all(scalar_row, path, name, by_key, values)

    def value(self, path: str, name: str, *, by_key: bool = False, **values: Any) -> Any:
        """Return the first column of a statement's one row, None without one."""
        return next(iter(self.values(path, name, by_key=by_key, **values)), None)

    def _all(
        self, factory: RowFactory[Any], path: str, name: str, by_key: bool, values: dict[str, Any]
    ) -> list[Any]:
        with self.connection.transaction(), self.connection.cursor(row_factory=factory) as cursor:
            cursor.execute(statements("figures").render("read_committed", self.space))
            if by_key:
                cursor.execute(statements("ui/ring").render("configure", self.space))
            return cursor.execute(statements(path).render(name, self.space), values or None).fetchall()

    def now(self) -> datetime:
        """Return the time by the database's clock."""
        return database_time(self.connection)


@contextmanager
def session(asked: str | None = None) -> Iterator[tuple[psycopg.Connection[Any], list[str]]]:
    """Open a session that cannot write, and list the namespaces that it may read.

    Parameters
    ----------
    asked
        The namespace that the request is about: one of those that there are.

    Raises
    ------
    Unreadable
        With what to tell the user; a database's own words go nowhere.
    """
    conn_id = option("conn_id")
    names: list[str] = []
    try:
        with ParkkeeperHook(conn_id).session(
            application_name="parkkeeper:ui",
            statement_timeout=STATEMENT_TIMEOUT,
            lock_timeout=LOCK_TIMEOUT,
            read_only=True,
        ) as connection:
            names = figures.namespaces(connection)
            if asked is not None and asked not in names:
                raise UnknownNamespace(f"there is no namespace {asked!r} in this database")
            yield connection, names
            return
    except UnknownNamespace:
        raise Unreadable(
            404,
            f"There is no namespace {asked!r} in this database, or not with these tables.",
            "Choose another one, or make it with the DAG parkkeeper_migrate.",
            names,
        ) from None
    except MigrationError as error:
        reason = f"The figures cannot be read: {error}."
        raise Unreadable(
            409, reason, "Bring the package and the namespace to the same release.", names
        ) from None
    except (AirflowNotFoundException, DatabaseUnavailable, InvalidArgument) as error:
        log.warning("The page cannot use connection %s: %s", conn_id, error)
        reason = f"The database of connection {conn_id} cannot be reached."
    except ParkkeeperError as error:
        log.warning("The page failed on connection %s: %s", conn_id, type(error).__name__)
        reason = f"The database of connection {conn_id} did not answer as it should ({type(error).__name__})."
    except psycopg.Error as error:
        log.warning("The page failed on connection %s: %s %s", conn_id, type(error).__name__, error.sqlstate)
        reason = f"The database of connection {conn_id} cannot be read: {_reason(error)}."
    raise Unreadable(
        503, reason, "The log of the API server says more. Nothing was changed; try again.", names
    )


@contextmanager
def reader(namespace: str) -> Iterator[Reader]:
    """Open a session that cannot write, about one namespace.

    Raises
    ------
    Unreadable
        With what to tell the user.
    """
    with session(namespace) as (connection, _):
        yield Reader(connection, Namespace(namespace))


def each(
    connection: psycopg.Connection[Any], names: Iterable[str], read: Callable[[Reader], Found]
) -> Iterator[tuple[str, Found | None, str | None]]:
    """Read one namespace after the other: its name, and what was found or why it cannot be read.

    One that cannot be read does not hide the others.
    """
    until = time.monotonic() + ALL_WITHIN.total_seconds()
    for name in names:
        if time.monotonic() >= until:
            yield (
                name,
                None,
                f"namespace {name} was not read: those before it took too long; choose it by name",
            )
            continue
        try:
            yield name, read(Reader(connection, Namespace(name))), None
        except (MigrationError, UnknownNamespace) as error:
            yield name, None, str(error)
        except psycopg.Error as error:
            if connection.closed:
                raise
            log.warning(
                "The page cannot read namespace %s: %s %s", name, type(error).__name__, error.sqlstate
            )
            yield name, None, f"namespace {name} cannot be read: {_reason(error)}"


def _reason(error: psycopg.Error) -> str:
    """Say what a database's error means, never in its own words."""
    code = error.sqlstate or "no code"
    return _REASONS.get(code, f"the database did not answer as it should ({code})")


def default_namespace(names: list[str]) -> str | None:
    """Return the namespace to show first: the site's own, else the first by name."""
    configured = option("namespace")
    return configured if configured in names else (names[0] if names else None)
