"""One family in many namespaces: a few at a time, on after a failure, and a summary that leaves none out."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from parkkeeper.database import session_lost, statements
from parkkeeper.errors import DatabaseUnavailable, InvalidArgument, MigrationBlocked, ParkkeeperError
from parkkeeper.migrations.apply import bring
from parkkeeper.migrations.files import check
from parkkeeper.migrations.ledger import plan, status
from parkkeeper.migrations.locking import Patience
from parkkeeper.namespace import Namespace

MOST_AT_ONCE: int = 4
"""How many namespaces at once: making a queue takes some 700 locks, of about 6,400 that a server has by default."""

ON_ERROR = ("continue", "stop")

Connect = Callable[[], AbstractContextManager[psycopg.Connection[Any]]]

_SQL = statements("namespace")
_PATTERN = re.compile(r"[a-z0-9_*?]{1,63}")
_LIKE = {"_": r"\_", "*": "%", "?": "_"}


class _Interrupted(BaseException):
    """The run was interrupted: what a thread was about to try is not tried."""


@dataclass(frozen=True, slots=True)
class NamespaceOutcome:
    """What became of one namespace.

    `outcome` is ``migrated``, ``noop``, ``failed`` (see `reason`; migrations before the one that failed stand) or
    ``not_tried``. `applied` is how many migrations this run applied, or would in a dry run; `version` the newest that
    there is, None if there is none or it cannot be told. `retryable` says of a failure that the next run may succeed.
    """

    namespace: str
    outcome: str
    applied: int = 0
    version: int | None = None
    reason: str | None = None
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class FanOut:
    """Every namespace that was asked for, in that order; `stopped` says why some were not tried."""

    family: str
    namespaces: tuple[NamespaceOutcome, ...]
    stopped: str | None = None

    def count(self, outcome: str) -> int:
        """How many namespaces had `outcome`."""
        return sum(found.outcome == outcome for found in self.namespaces)

    @property
    def failures(self) -> tuple[NamespaceOutcome, ...]:
        """Those that failed."""
        return tuple(found for found in self.namespaces if found.outcome == "failed")


@dataclass(frozen=True, slots=True)
class Course:
    """How a run over many namespaces goes.

    Parameters
    ----------
    parallel
        How many namespaces at once, 1 to 4.
    canary
        How many to do first; unless all of these succeed, no other is tried.
    on_error
        ``continue`` with the others after a failure, or ``stop``: then those that are at work are finished.
    dry_run
        Only say what would be applied.

    Raises
    ------
    InvalidArgument
        One of them is out of range.
    """

    parallel: int = MOST_AT_ONCE
    canary: int = 0
    on_error: str = "continue"
    dry_run: bool = False

    def __post_init__(self) -> None:
        if type(self.parallel) is not int or not 1 <= self.parallel <= MOST_AT_ONCE:
            raise InvalidArgument(
                f"parallel {self.parallel!r} is refused: 1 to {MOST_AT_ONCE}, because each takes hundreds of locks"
            )
        if type(self.canary) is not int or self.canary < 0:
            raise InvalidArgument(f"canary {self.canary!r} is refused: a whole number from 0")
        if self.on_error not in ON_ERROR:
            raise InvalidArgument(f"on_error {self.on_error!r} is refused: one of {', '.join(ON_ERROR)}")


def migrate_all(
    connect: Connect,
    namespaces: Iterable[str | Namespace],
    family: str,
    *,
    target: int | None = None,
    queue_slots: int = 16,
    patience: Patience = Patience(),  # noqa: B008 (frozen)
    course: Course = Course(),
    progress: Callable[[NamespaceOutcome], None] | None = None,
) -> FanOut:
    """Bring many namespaces to the newest migration of `family`, or to `target`.

    A namespace that fails does not keep the others from being done. A run that was cut off is resumed by another:
    what is done already costs it one look.

    Parameters
    ----------
    connect
        Opens a session; called once for each of those that work at once, and again when a session was lost.
    namespaces
        Their names; all are validated before the first session is opened. One that is named twice is done once.
    target, queue_slots, patience
        As :func:`migrate` has them, for each namespace.
    course
        How many at once, which first, and what a failure does.
    progress
        Called with each outcome as it comes, in the caller's thread.

    Returns
    -------
    FanOut

    Raises
    ------
    InvalidNamespace, InvalidArgument
        Before a session is opened.
    """
    if isinstance(namespaces, str):
        raise InvalidArgument(f"namespaces {namespaces!r} is refused: a list of names, not one name")
    spaces = list(dict.fromkeys(Namespace.of(name) for name in namespaces))
    check(family, target, queue_slots)

    def work(connection: psycopg.Connection[Any], space: Namespace) -> NamespaceOutcome:
        if course.dry_run:
            pending = plan(connection, space, family, target=target)
            found = status(connection, space, family).applied
            outcome = "migrated" if pending else "noop"
            return NamespaceOutcome(space.name, outcome, len(pending), found[-1].version if found else None)
        done = bring(connection, space, family, target, queue_slots, patience, run.rest)
        found = status(connection, space, family).applied
        return NamespaceOutcome(
            space.name, "migrated" if done else "noop", len(done), found[-1].version if found else None
        )

    run = _Run(connect, work, family, course, progress)
    run.over(spaces[: course.canary])
    if run.failed and course.canary and run.stopped is None:
        run.stopped = "a canary failed"
    run.over(spaces[course.canary :])
    outcomes = (run.outcomes.get(space, NamespaceOutcome(space.name, "not_tried")) for space in spaces)
    return FanOut(family, tuple(outcomes), run.stopped)


class _Run:
    """A few threads, each with a session, that take namespaces until there are none left or the run is stopped."""

    def __init__(
        self,
        connect: Connect,
        work: Callable[[psycopg.Connection[Any], Namespace], NamespaceOutcome],
        family: str,
        course: Course,
        progress: Callable[[NamespaceOutcome], None] | None,
    ) -> None:
        self.connect, self.work, self.family, self.course = connect, work, family, course
        self.progress = progress
        self.outcomes: dict[Namespace, NamespaceOutcome] = {}
        self.stopped: str | None = None
        self.failed = False
        self._open: set[psycopg.Connection[Any]] = set()
        self._interrupt = threading.Event()

    def over(self, spaces: Sequence[Namespace]) -> None:
        """Do `spaces`, unless the run is stopped."""
        if not spaces or self.stopped is not None:
            return
        todo: queue.SimpleQueue[Namespace] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[Namespace, NamespaceOutcome] | None] = queue.SimpleQueue()
        for space in spaces:
            todo.put(space)
        threads = min(self.course.parallel, len(spaces))
        with ThreadPoolExecutor(threads, thread_name_prefix="migrate") as pool:
            futures = [pool.submit(self._worker, todo, done) for _ in range(threads)]
            try:
                for _ in range(threads):
                    while (found := done.get()) is not None:
                        self._note(*found)
            except BaseException:
                # Ctrl-C, or a task that is told to end: what runs is cancelled and rolls back.
                self.stopped = "interrupted"
                self._interrupt.set()
                self._cancel(futures)
                raise
        for future in futures:
            future.result()

    def rest(self, seconds: float) -> None:
        """Wait, in a thread that works, until the time is over or the run is interrupted."""
        if self._interrupt.wait(seconds):
            raise _Interrupted

    def _cancel(self, futures: Sequence[Future[None]]) -> None:
        """Cancel what the sessions do until all have stopped: one may have been between two statements."""
        while wait(futures, timeout=0.1).not_done:
            for connection in list(self._open):
                with suppress(psycopg.Error):
                    connection.cancel_safe()

    def _note(self, space: Namespace, outcome: NamespaceOutcome) -> None:
        self.outcomes[space] = outcome
        self.failed = self.failed or outcome.outcome == "failed"
        if self.progress:
            self.progress(outcome)

    def _worker(
        self,
        todo: queue.SimpleQueue[Namespace],
        done: queue.SimpleQueue[tuple[Namespace, NamespaceOutcome] | None],
    ) -> None:
        with ExitStack() as sessions:
            connection: psycopg.Connection[Any] | None = None
            try:
                while self.stopped is None:
                    try:
                        space = todo.get_nowait()
                    except queue.Empty:
                        return
                    try:
                        if connection is None or connection.closed:
                            connection = sessions.enter_context(self.connect())
                            self._open.add(connection)
                        outcome = self.work(connection, space)
                    except DatabaseUnavailable as error:
                        # Not the namespace's fault, and the next one would wait for as long.
                        self.stopped = "the database cannot be reached"
                        outcome = self._failure(None, space, error)
                    except (ParkkeeperError, psycopg.Error) as error:
                        outcome = self._failure(connection, space, error)
                        if self.course.on_error == "stop":
                            self.stopped = f"namespace {space} failed"
                    done.put((space, outcome))
            finally:
                done.put(None)

    def _failure(
        self, connection: psycopg.Connection[Any] | None, space: Namespace, error: Exception
    ) -> NamespaceOutcome:
        """Describe a failure without what a row holds, and how far the namespace is."""
        version = None
        with suppress(ParkkeeperError, psycopg.Error):
            if connection is not None and not session_lost(connection, error):
                applied = status(connection, space, self.family).applied
                version = applied[-1].version if applied else None
        if isinstance(error, psycopg.Error):
            said = "; ".join([f"{error.sqlstate or 'no sqlstate'}", *getattr(error, "__notes__", [])])
        else:
            said = str(error)
        passes = isinstance(error, MigrationBlocked | DatabaseUnavailable | psycopg.OperationalError)
        reason = f"{type(error).__name__}: {said}"
        return NamespaceOutcome(space.name, "failed", 0, version, reason, passes)


def find_namespaces(
    connection: psycopg.Connection[Any],
    family: str,
    *,
    pattern: str | None = None,
    query: str | None = None,
) -> list[str]:
    """Return the names of namespaces that a pattern or a query of the caller's finds, in order.

    Parameters
    ----------
    family
        A pattern finds only namespaces that have migrations of this family, or a ledger that cannot be read.
    pattern
        Of names, with ``*`` for any characters and ``?`` for one.
    query
        A SELECT of one column; it runs in a transaction that may not write. Its namespaces need not exist yet.

    Raises
    ------
    InvalidArgument
        Not exactly one of both was given, the pattern is none, or the database refuses the query.
    InvalidNamespace
        The query returned a name that no namespace can have.
    """
    check(family, None)
    if (pattern is None) == (query is None):
        raise InvalidArgument("namespaces are found by a pattern or by a query: give one of both")
    if query is not None:
        return _by_query(connection, query)
    assert pattern is not None
    check_pattern(pattern)
    like = "".join(_LIKE.get(character, character) for character in pattern)
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        any_space = Namespace("a")  # the statement names no schema
        names = [name for (name,) in cursor.execute(_SQL.render("candidates", any_space), {"like": like})]
        return [name for name in names if _has(cursor, name, family)]


def check_pattern(pattern: str) -> None:
    """Refuse what is no pattern of names."""
    if not _PATTERN.fullmatch(pattern):
        raise InvalidArgument(f"pattern {pattern!r} is refused: a-z, 0-9, _, * and ?")


def _has(cursor: psycopg.Cursor[Any], name: str, family: str) -> bool:
    try:
        space = Namespace(name)
    except InvalidArgument:
        return False
    try:
        with cursor.connection.transaction():
            return bool(cursor.execute(_SQL.render("ledger", space), {"family": family}).fetchone())
    except psycopg.Error as error:
        if session_lost(cursor.connection, error):
            raise
        return True  # The run says what is wrong with its ledger, instead of leaving it out.


def _by_query(connection: psycopg.Connection[Any], query: str) -> list[str]:
    try:
        with connection.transaction(), psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            # Binary results, because they are asked for in the protocol that takes one statement only.
            rows = cursor.execute(query.encode(), binary=True).fetchall()
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        raise InvalidArgument(
            f"query is refused by the database ({error.sqlstate or 'no rows'}, {type(error).__name__}): "
            "it is to be one SELECT of one column"
        ) from None
    if any(len(row) != 1 for row in rows):
        raise InvalidArgument("query is refused: it returns more than one column")
    return list(dict.fromkeys(Namespace(row[0]).name for row in rows))
