"""A session in which the statement of a chosen number fails, and a loop that chooses each in turn.

Statements are counted where psycopg waits for the server, so one that is new is among them without anyone's doing.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import PipelineStatus, TransactionStatus

from memory_kit import until
from parkkeeper import database
from parkkeeper.errors import DatabaseUnavailable, ParkkeeperError
from parkkeeper.invariants import Broken
from parkkeeper.memory import MemoryStore
from parkkeeper.queue import QueueStorage

Connection = psycopg.Connection[Any]
#: Takes the session, what it is about to send, and how to send that.
Fault = Callable[["Faulty", Any, Callable[[Any], Any]], Any]


class Faulty(psycopg.Connection[Any]):
    """Counts its statements, and suffers a fault before that of a number, counted from 1."""

    seen = 0
    fired = False
    _at = 0
    _fault: Fault | None = None

    def arm(self, at: int, fault: Fault) -> None:
        """Suffer `fault` before the statement of this number, counted from now on."""
        self.seen, self.fired, self._at, self._fault = 0, False, at, fault

    def disarm(self) -> None:
        """Suffer nothing any more."""
        self._fault = None

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Send the statement, unless its time has come."""
        self.seen += 1
        if self._fault is None or self.seen != self._at:
            return super().wait(gen, *arguments, **options)
        self.fired = True
        proceed = super().wait
        return self._fault(self, gen, lambda what: proceed(what, *arguments, **options))


def fails_with(sqlstate: str) -> Fault:
    """Return a fault of the server's: the statement is refused with this code, and all of its transaction with it."""
    refuse = f"DO $$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{sqlstate}'; END $$".encode()

    def fault(session: Faulty, gen: Any, proceed: Callable[[Any], Any]) -> Any:
        error = psycopg.errors.lookup(sqlstate)("injected")
        owner = gen.gi_frame.f_locals.get("self") if hasattr(gen, "gi_frame") else None
        if isinstance(owner, psycopg.Pipeline):
            proceed(gen)  # What it has sent is answered; the error comes after.
        elif isinstance(owner, psycopg.Transaction) and gen.__name__ == "_exit_gen":
            gen.close()
            proceed(owner._exit_gen(type(error), error, None))  # A commit that is refused has undone all.
        else:
            gen.close()
            if isinstance(owner, psycopg.Transaction):
                owner._push_savepoint()  # psycopg takes it that a beginning which fails was begun.
            if session.pgconn.pipeline_status == PipelineStatus.OFF:
                session.pgconn.exec_(refuse)
        raise error

    return fault


def terminated_by(killer: Connection) -> Fault:
    """Return a fault that ends the session's server process."""

    def fault(session: Faulty, gen: Any, proceed: Callable[[Any], Any]) -> Any:
        killed = killer.execute("SELECT pg_terminate_backend(%s, 10000)", [session.info.backend_pid])
        assert killed.fetchone() == (True,)
        return proceed(gen)

    return fault


def client_killed(session: Faulty, gen: Any, proceed: Callable[[Any], Any]) -> Any:
    """End this process, with no time to say goodbye; for a process that was forked for it."""
    os.kill(os.getpid(), signal.SIGKILL)


def server_crashes(session: Faulty, gen: Any, proceed: Callable[[Any], Any]) -> Any:
    """Kill the session's server process, upon which the server stops at once and recovers from its log."""
    os.kill(session.info.backend_pid, signal.SIGKILL)
    return proceed(gen)


def disk_full(session: Faulty, gen: Any, proceed: Callable[[Any], Any]) -> Any:
    """Let no file grow, nor be written to, for the session's server process; of its log that stops the whole server."""
    pid = session.info.backend_pid
    owner = Path(f"/proc/{pid}").stat()
    if not (child := os.fork()):
        # Only a process of the same account may do it, and no way leads out of this one.
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(owner.st_gid)
                os.setuid(owner.st_uid)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the server process cannot be limited"
    return proceed(gen)


#: After these the server may be away for a moment.
HARD = (server_crashes, disk_full)


@dataclass
class World:
    """A namespace that actions work on, a session that nothing happens to, and names that no action has used yet."""

    dsn: str
    namespace: str
    connect: Callable[..., Connection]
    families: tuple[str, ...]
    turn: int = 0
    kept: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Open the session that nothing happens to."""
        self.connection = self.connect()
        self.queue = QueueStorage(self.connection, self.namespace)
        self.memory = MemoryStore(self.connection, self.namespace)

    @property
    def name(self) -> str:
        """The queue or the scope of this turn."""
        return f"turn_{self.turn}"

    def come_back(self) -> None:
        """Open it anew when the server is there again, and all of the sessions that it had are gone."""
        until(self._is_back)

    def _is_back(self) -> bool:
        with suppress(DatabaseUnavailable, psycopg.OperationalError):
            self.begin()
            [(others,)] = self.query(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            if not others:
                return True
            self.connection.close()
        return False

    def query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run SQL of a test's own, with {ns} for the schema."""
        composed = sql.SQL(text).format(ns=sql.Identifier(self.namespace))
        cursor = self.connection.execute(composed, values or None)
        return cursor.fetchall() if cursor.description else []

    def broken(self) -> list[Broken]:
        """Return which invariants of the families do not hold."""
        stores = {"queue": self.queue, "memory": self.memory}
        return [found for family in self.families for found in stores[family].broken_invariants()]

    def next_transaction(self) -> int:
        """Return the id that the next transaction gets which writes something."""
        [(found,)] = self.query("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        return int(found)

    def unchanged_since(self, transaction: int) -> bool:
        """Whether every transaction from this id on was undone, so that no row is other than it was."""
        [(found,)] = self.query(
            "SELECT coalesce(bool_and(pg_xact_status(id::text::xid8) = 'aborted'), true)"
            " FROM generate_series(%s, pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1) AS id",
            transaction,
        )
        return bool(found)


@dataclass(frozen=True)
class Scenario:
    """An action, what it finds to do, and what has come of it."""

    #: Do the action in a session.
    act: Callable[[World, Connection], Any]
    #: Leave something to do, under the names of the turn.
    prepare: Callable[[World], Any] = lambda world: None
    #: What came of the turn; equal after a fault to what it is without one.
    outcome: Callable[[World], Any] = lambda world: None
    #: Let the time pass that a repetition would wait for.
    settle: Callable[[World], Any] = lambda world: None


@dataclass
class Injector:
    """Runs a scenario again and again, with a fault one statement later each time, until it runs through."""

    world: World
    #: Makes a session suffer; each kind of fault is one of these.
    fault: Fault

    def survive(self, scenario: Scenario) -> int:
        """Return at how many statements the action was hit; it has to have come out right after each."""
        world = self.world
        self._begin(scenario)
        scenario.act(world, world.connection)
        expected = scenario.outcome(world)
        assert world.broken() == []
        with ExitStack() as stack:
            session: Faulty | None = None
            at, before = 1, self._begin(scenario)
            while True:
                if session is None or session.closed:
                    session = world.connect(connection_class=Faulty)
                    stack.callback(session.close)
                done, fired = self._hit(scenario, session, at)
                if not fired:
                    break
                if self.fault in HARD:
                    session.close()
                    world.come_back()
                where = f"hit before statement {at}"
                assert session.closed or session.info.transaction_status == TransactionStatus.IDLE, where
                if not world.unchanged_since(before):
                    assert world.broken() == [], where
                    if not (done and scenario.outcome(world) == expected):
                        scenario.settle(world)
                        scenario.act(world, world.connection)
                    assert scenario.outcome(world) == expected, where
                    assert world.broken() == [], where
                    before = self._begin(scenario)
                else:
                    before = world.next_transaction()
                at += 1
        # Where a fault has changed nothing, this run has begun where that one did.
        assert scenario.outcome(world) == expected
        assert world.broken() == []
        assert at > 1, "the action sent nothing"
        return at - 1

    def _begin(self, scenario: Scenario) -> int:
        self.world.turn += 1
        scenario.prepare(self.world)
        return self.world.next_transaction()

    def _hit(self, scenario: Scenario, session: Faulty, at: int) -> tuple[bool, bool]:
        """Do the action and be hit; whether it says that it was done, and whether it was hit."""
        if self.fault is client_killed:
            return self._hit_in_a_process(scenario, at)
        session.arm(at, self.fault)
        try:
            scenario.act(self.world, session)
        except (psycopg.Error, ParkkeeperError):
            assert session.fired, "the action failed of itself"
            return False, True
        finally:
            session.disarm()
        return True, session.fired

    def _hit_in_a_process(self, scenario: Scenario, at: int) -> tuple[bool, bool]:
        if not (child := os.fork()):
            # No way leads out of here: what was inherited is not ours to close.
            try:
                session = open_faulty(self.world.dsn, application_name="doomed")
                session.arm(at, self.fault)
                scenario.act(self.world, session)
            except BaseException:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the action failed of itself"
        doomed = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'doomed'"
        until(lambda: self.world.query(doomed) == [(0,)])
        return not os.WIFSIGNALED(status), os.WIFSIGNALED(status)


def open_faulty(dsn: str, **options: Any) -> Faulty:
    """Open a session that can be armed."""
    session = database.connect(dsn, connection_class=Faulty, **options)
    assert isinstance(session, Faulty)
    return session
