"""Sessions with timeouts, transactions that say what they join, and named SQL from ``include/sql``.

A file of named statements holds blocks that begin with ``-- name: some_name``; the comment lines below it say
what the statement is for. Only ``{schema}`` and tokens that stand for whole numbers are replaced; values are
always bound.
"""

from __future__ import annotations

import hashlib
import logging
import re
import select
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from parkkeeper.errors import DatabaseUnavailable, InvalidArgument, TransactionOpen, UnknownNamespace
from parkkeeper.namespace import Namespace

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

_TOKEN = re.compile(r"\{([a-z_]+)\}")
_BLOCK = re.compile(r"^-- name: ([a-z_][a-z0-9_]*)[ \t]*$", re.MULTILINE)

#: What another attempt may cure: the transaction was rolled back whole and nothing of it stands.
TRANSIENT = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.SerializationFailure,
)

#: How long, in seconds, a statement that was interrupted has to end.
REST_WITHIN = 5.0

# How long one cancel has, in seconds: it may have come before the statement, and is then without effect.
_CANCEL_WITHIN = 0.5

# What psycopg can read times in: a role may like them otherwise.
_READABLE = {"datestyle": "ISO", "intervalstyle": "postgres"}

# In one statement, so that nothing is set where it must not be: a pooler makes up the process id that its client knows.
_CONFIGURE = (
    b"SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS setting (name, value)"
    b" WHERE pg_backend_pid() = %s"
)


def sql_root() -> Path:
    """Return the folder of the SQL: in the package when it is a wheel's, ``include/sql`` in a checkout."""
    package = Path(__file__).resolve().parent
    shipped = package / "_sql"
    return shipped if shipped.is_dir() else package.parents[1] / "include" / "sql"


class Statements:
    """The named statements of one file below ``include/sql``.

    Parameters
    ----------
    path
        Relative to the SQL folder and without suffix, e.g. ``"queue/prune"``.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        parts = _BLOCK.split((sql_root() / f"{path}.sql").read_text(encoding="utf-8"))
        names, bodies = parts[1::2], parts[2::2]
        if len(set(names)) != len(names):
            raise ValueError(f"{path}.sql: a statement name occurs twice")
        self._texts: Mapping[str, str] = MappingProxyType(
            {name: body.strip() for name, body in zip(names, bodies, strict=True)}
        )
        self._rendered: dict[tuple[Any, ...], bytes] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def render(self, name: str, namespace: Namespace, **numbers: int) -> bytes:
        """Return statement `name` for `namespace`, ready for ``execute``.

        Parameters
        ----------
        numbers
            Whole numbers for the statement's other tokens, ``slot=3`` for ``{slot}``. They become literals,
            which is what lets a plan name one partition.
        """
        key = (name, namespace.name, *sorted(numbers.items()))
        rendered = self._rendered.get(key)
        if rendered is None:
            rendered = self._rendered[key] = render(self._texts[name], namespace, **numbers).encode()
        return rendered


def render(text: str, namespace: Namespace, **numbers: int) -> str:
    """Replace ``{schema}`` and the tokens in `numbers`; a token that is not given is an error."""
    tokens = {name: str(int(number)) for name, number in numbers.items()}
    tokens["schema"] = namespace.identifier
    return _TOKEN.sub(lambda match: tokens[match.group(1)], text)


@cache
def statements(path: str) -> Statements:
    """Return the named statements of ``include/sql/<path>.sql``, read once a process."""
    return Statements(path)


def connect(
    dsn: str,
    *,
    application_name: str = "parkkeeper",
    statement_timeout: timedelta = timedelta(minutes=5),
    lock_timeout: timedelta = timedelta(seconds=10),
    idle_in_transaction_session_timeout: timedelta = timedelta(minutes=1),
    connect_timeout: timedelta = timedelta(seconds=10),
    connection_class: type[psycopg.Connection[Any]] = psycopg.Connection,
) -> psycopg.Connection[Any]:
    """Open a session in autocommit mode, with a timeout on everything that can hang.

    Returns
    -------
    psycopg.Connection
        Its backend ends by itself soon after this process dies (``client_connection_check_interval``). Behind a pooler
        none of this holds, see :func:`configure`.

    Raises
    ------
    DatabaseUnavailable
        The server was not reached or refused the login. The message names host, port and database, never the
        password.
    InvalidArgument
        The connection string cannot be read.
    """
    given = _parsed(dsn)
    settings = {
        "statement_timeout": f"{milliseconds(statement_timeout)}ms",
        "lock_timeout": f"{milliseconds(lock_timeout)}ms",
        "idle_in_transaction_session_timeout": f"{milliseconds(idle_in_transaction_session_timeout)}ms",
        "client_connection_check_interval": "500ms",
    }
    try:
        connection = connection_class.connect(
            dsn,
            autocommit=True,
            application_name=application_name,
            connect_timeout=max(2, round(connect_timeout.total_seconds())),
        )
        try:
            configure(connection, settings)
        except BaseException:
            connection.close()
            raise
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(_unavailable(given, error)) from None
    return connection


def configure(connection: psycopg.Connection[Any], settings: Mapping[str, str]) -> None:
    """Give the session `settings`, and times in a form that psycopg reads, unless it is a pooler's.

    That may hand it to others in a moment. Such a session is left as it is, and nothing is prepared in it: its next
    statement may go to another server process. A warning is logged when it has no ``statement_timeout`` of its role or
    database either. ``docs/how-to/poolers.md``
    tells what else a pooler breaks.
    """
    settings = {**_READABLE, **settings}
    values = (list(settings), list(settings.values()), connection.info.backend_pid)
    if connection.execute(_CONFIGURE, values).rowcount:
        return
    connection.prepare_threshold = None
    limit = connection.execute("SELECT current_setting('statement_timeout')").fetchone()
    if limit is not None and limit[0] == "0":
        _LOG.warning(
            "a pooler stands before the database: the session's timeouts were not set, and its role has none; "
            "give it some with ALTER ROLE ... SET statement_timeout"
        )


def _parsed(dsn: str) -> dict[str, Any]:
    """Take a connection string apart; refuse one whose password would in part be taken for a host."""
    try:
        given = conninfo.conninfo_to_dict(dsn)
    except (psycopg.ProgrammingError, UnicodeError):
        given = {}
    place = [str(given.get(name) or "") for name in ("host", "port", "dbname")]
    if "\0" in dsn or any("@" in part for part in place) or not re.fullmatch("[0-9,]*", place[1]):
        given = {}
    if dsn and not given:
        raise InvalidArgument(
            "dsn is refused: neither a postgresql:// address nor key=value pairs; in an address, "
            "write %40 for @, %2F for / and %3A for : in a password"
        )
    return given


def _unavailable(given: Mapping[str, Any], error: psycopg.OperationalError) -> str:
    """Say which server was not reached, in one line and without the password."""
    # A line that is indented is advice; the last one that is not tells of the last server tried.
    lines = [line for line in str(error).splitlines() if line and not line[0].isspace()]
    reason = lines[-1].removeprefix("connection failed: ") if lines else type(error).__name__
    if secret := str(given.get("password") or ""):
        reason = reason.replace(secret, "***")
    host, port = given.get("host") or "localhost", given.get("port") or 5432
    return f"database {given.get('dbname') or '(default)'} at {host}:{port} cannot be reached: {reason}"


def milliseconds(duration: timedelta) -> int:
    """Return a timedelta as whole milliseconds, rounded up, for Postgres's timeouts (0 would mean: none)."""
    return -(-duration // timedelta(milliseconds=1))


def in_transaction(connection: psycopg.Connection[Any]) -> bool:
    """Tell whether the caller has a transaction open on this connection; a lost session has none."""
    return connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


def refuse_open_transaction(connection: psycopg.Connection[Any], action: str) -> None:
    """Refuse to run `action`, which commits by itself, as part of a transaction of the caller.

    Raises
    ------
    TransactionOpen
        The caller has a transaction open: what is committed here could then be undone, or wait for it.
    """
    if in_transaction(connection) or not connection.autocommit:
        raise TransactionOpen(
            f"{action} is a transaction of its own: call it on a connection in autocommit mode with no transaction open"
        )


@contextmanager
def transaction(connection: psycopg.Connection[Any], action: str) -> Iterator[None]:
    """Open a transaction of our own for `action`; refuse to become part of the caller's.

    Raises
    ------
    TransactionOpen
        See :func:`refuse_open_transaction`.
    """
    refuse_open_transaction(connection, action)
    with connection.transaction():
        yield


def bring_to_rest(connection: psycopg.Connection[Any]) -> None:
    """End the statement and the transaction that an interrupt has left open, so that others can be run.

    What signals and timeouts raise may come between the sending of a statement and the reading of its results; psycopg
    cancels it for some exceptions only, and not at every moment. Whether the statement was done is open afterwards. For
    methods that run no transaction of the caller's: it would be rolled back. It takes :data:`REST_WITHIN` at most; a
    session that does not come to rest by then is closed, and its server does the same with the transaction.
    """
    try:
        if connection.info.transaction_status == TransactionStatus.ACTIVE:
            _end_statement(connection, time.monotonic() + REST_WITHIN)
        if in_transaction(connection):
            connection.rollback()
    except psycopg.Error:
        connection.close()


def session_lost(connection: psycopg.Connection[Any], error: BaseException) -> bool:
    """Return whether `error` came of the loss of the session, which is then closed.

    psycopg may see that the socket is closed before libpq does, and then calls a session open in which a statement
    stays under way for ever.
    """
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        status = connection.info.transaction_status
        if status in (TransactionStatus.ACTIVE, TransactionStatus.UNKNOWN):
            connection.close()
    return connection.closed


def _end_statement(connection: psycopg.Connection[Any], end: float) -> None:
    """Cancel what runs, and read all that is still to come of it, until `end` of the monotonic clock."""
    server = connection.pgconn
    if server.pipeline_status != PipelineStatus.OFF:
        server.pipeline_sync()  # or the server may keep for itself what it has answered so far
    cancel_at = 0.0
    while not _drained(server):
        now = time.monotonic()
        if now >= end:
            raise psycopg.OperationalError("a statement that was interrupted did not end")
        # It cannot be cancelled before all of it was sent.
        events = select.POLLIN | (select.POLLOUT if server.flush() else 0)
        if events == select.POLLIN and now >= cancel_at:
            connection.cancel_safe(timeout=end - now)
            cancel_at = time.monotonic() + _CANCEL_WITHIN
        poll = select.poll()
        poll.register(server.socket, events)
        poll.poll(min(end - now, _CANCEL_WITHIN) * 1000)
        server.consume_input()


def _drained(server: PGconn) -> bool:
    """Throw away the results that are there; whether no more will come."""
    while not server.is_busy():
        if server.get_result() is not None:
            continue
        if server.pipeline_status == PipelineStatus.OFF:
            return True
        # None stands between two statements of a pipeline, too. It can be left when nothing is behind it.
        with suppress(psycopg.OperationalError):
            server.exit_pipeline_mode()
            return True
    return False


def retried(connection: psycopg.Connection[Any], work: Callable[[], T], *, attempts: int = 8) -> T:
    """Run `work`, one whole transaction, again when a deadlock, lock timeout or serialization undid it.

    Inside the caller's transaction it runs once: only the caller can repeat that. So it does on a connection
    that is not in autocommit mode, where `work` itself opens that transaction.
    """
    if in_transaction(connection) or not connection.autocommit:
        return work()
    try:
        return work()
    except TRANSIENT:
        # Made only when it is needed: every call of a queue comes by here.
        again = Retrying(
            retry=retry_if_exception_type(TRANSIENT),
            stop=stop_after_attempt(attempts - 1),
            wait=wait_random_exponential(multiplier=0.01, max=1),
            reraise=True,
        )
    return again(work)


def advisory_key(*parts: str) -> int:
    """Return a stable signed 64-bit key for an advisory lock named by `parts` (e.g. namespace and action)."""
    digest = hashlib.sha256("\x1f".join(("parkkeeper", *parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


@contextmanager
def known_namespace(namespace: Namespace, family: str) -> Iterator[None]:
    """Turn Postgres's "no such schema, table, column or function" into an :class:`UnknownNamespace`."""
    try:
        yield
    except (
        psycopg.errors.InvalidSchemaName,
        psycopg.errors.UndefinedTable,
        psycopg.errors.UndefinedColumn,
        psycopg.errors.UndefinedFunction,
    ) as error:
        raise UnknownNamespace(
            f"namespace {namespace} lacks tables of the {family} family ({error.sqlstate}): "
            f"run `parkkeeper migrate --family {family} --namespace {namespace}`"
        ) from None


@contextmanager
def without_rows(
    connection: psycopg.Connection[Any], namespace: Namespace, family: str, action: str
) -> Iterator[None]:
    """Let no error of the database out of `action` that could print a row, a key or a parameter.

    Raises
    ------
    UnknownNamespace
        The namespace lacks the family's tables.
    InvalidArgument
        The connection's ``client_encoding`` cannot carry a text.
    psycopg.Error
        Of the class that Postgres's error had, with its sqlstate and the name of the constraint, and without detail
        and context.
    """
    try:
        with known_namespace(namespace, family):
            yield
    except psycopg.Error as error:
        raise without_values(error, action) from None
    except UnicodeError:
        raise InvalidArgument(
            f"{action}: client_encoding {connection.info.encoding} cannot carry the text: use UTF8"
        ) from None


def without_values(error: psycopg.Error, action: str) -> psycopg.Error:
    """Return an error of the same class that says what failed and shows no value."""
    said = [error.sqlstate or type(error).__name__]
    if error.diag.constraint_name:
        said.append(f"constraint {error.diag.constraint_name}")
    if isinstance(error, psycopg.OperationalError | psycopg.errors.InsufficientPrivilege):
        # Timeouts, deadlocks, lost connections, missing rights: their first line names the session or a table, no row.
        said.append(error.diag.message_primary or str(error).strip())
    return type(error)(f"{action} failed in the database: {', '.join(said)}")
