"""An explorer of interleavings: actions on sessions of their own go on statement by statement, in every order.

Between two steps a session stands before a statement or before a commit, with all its locks. Which of them goes on is
the explorer's choice. One that waits for a lock cannot be chosen until it has it; Postgres itself says who waits. The
orders are bounded by how often a session that could go on is made to stand while another one goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

#: How long, in seconds, anything may take that must happen at once; reached only when a test fails.
SOON = 30

COMMIT = "commit"
STATEMENT = "statement"


def unwatched(what: str) -> None:
    """Let a session go on that nobody steps."""


class SteppedConnection(psycopg.Connection[Any]):
    """A session that calls back before each statement and before each commit."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.on_step: Callable[[str], None] = unwatched

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        if gen.__name__.startswith("_execute"):  # what cursors run, whatever their class
            self.on_step(STATEMENT)
        return super().wait(gen, *arguments, **options)

    @contextmanager
    def transaction(self, *arguments: Any, **options: Any) -> Iterator[psycopg.Transaction]:
        outermost = self.info.transaction_status == TransactionStatus.IDLE
        with super().transaction(*arguments, **options) as opened:
            yield opened
            if outermost:
                self.on_step(COMMIT)


@dataclass
class Decision:
    """Who could go on at one moment, who of them did, and who had gone on before; by their places."""

    ready: list[int]
    chosen: int
    before: int | None
    #: What the one that had gone on before stood at, and how many steps it had made.
    stood: tuple[str, int] = ("", 0)

    @property
    def preempts(self) -> bool:
        """Whether one that could have gone on was made to stand."""
        return self.before in self.ready and self.chosen != self.before


@dataclass
class Order:
    """One order of the steps, and what came of each action: its result, or what it raised."""

    decisions: list[Decision] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    #: Who has waited for a lock at some time.
    waited: set[int] = field(default_factory=set)

    @property
    def choices(self) -> list[int]:
        return [decision.chosen for decision in self.decisions]

    def preemptions(self, upto: int | None = None) -> int:
        """Return how often a session was made to stand, among the first decisions or all."""
        return sum(decision.preempts for decision in self.decisions[:upto])


class _Player:
    """One session and its thread."""

    def __init__(self, connection: SteppedConnection, pool: ThreadPoolExecutor) -> None:
        self.connection, self._pool = connection, pool
        self.turn = threading.Condition()
        self.standing, self.at, self.steps = False, "", 0
        self.future: Future[Any] = Future()

    def begin(self, act: Callable[[], Any]) -> None:
        """Have the action ready to begin."""

        def run() -> Any:
            self.connection.on_step = self._stand
            try:
                return act()
            finally:
                self.connection.on_step = unwatched

        self.steps = 0
        self.future = self._pool.submit(run)
        self.future.add_done_callback(lambda _: self._wake())
        assert self.await_rest(SOON), "an action did not come to its first statement"

    def _stand(self, what: str) -> None:
        with self.turn:
            self.standing, self.at = True, what
            self.turn.notify_all()
            assert self.turn.wait_for(lambda: not self.standing, SOON), "nobody let it go on"

    def go(self) -> None:
        """Let it make one step."""
        with self.turn:
            self.standing, self.steps = False, self.steps + 1
            self.turn.notify_all()

    @property
    def done(self) -> bool:
        return self.future.done()

    def await_rest(self, seconds: float) -> bool:
        """Wait until it stands or is done, no longer than so many seconds; tell whether it does."""
        with self.turn:
            return self.turn.wait_for(lambda: self.standing or self.done, seconds)

    def _wake(self) -> None:
        with self.turn:
            self.turn.notify_all()


class Explorer:
    """Sessions that meet in every order, within a bound; a context, at whose end their threads are gone."""

    def __init__(self, watcher: psycopg.Connection[Any], connections: Sequence[SteppedConnection]) -> None:
        self._watcher = watcher
        self._pool = ThreadPoolExecutor(len(connections))
        self._players = [_Player(connection, self._pool) for connection in connections]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for player in self._players:
            player.connection.on_step = unwatched
            player.go()
        self._pool.shutdown()

    def orders(
        self,
        begin: Callable[[], Sequence[Callable[[], Any]]],
        *,
        preemptions: int,
        first: Sequence[int] | None = None,
    ) -> Iterator[Order]:
        """Go through every order in which sessions are made to stand no more often than `preemptions`.

        Parameters
        ----------
        begin
            Makes what there is at the beginning, and returns the action of each session; called for each order.
        first
            Who may begin; None: any.
        """
        ahead: list[list[int]] = [[]]
        while ahead:
            prefix = ahead.pop()
            order = self._play(begin(), prefix)
            for place in range(len(prefix), len(order.decisions)):
                decision = order.decisions[place]
                spent = order.preemptions(place)
                for other in decision.ready:
                    costs = decision.before in decision.ready and other != decision.before
                    refused = place == 0 and first is not None and other not in first
                    if other != decision.chosen and spent + costs <= preemptions and not refused:
                        ahead.append([*order.choices[:place], other])
            yield order

    def _play(self, actions: Sequence[Callable[[], Any]], prefix: Sequence[int]) -> Order:
        order, players = Order(), self._players[: len(actions)]
        for player, act in zip(players, actions, strict=True):
            player.begin(act)
        before: int | None = None
        while not all(player.done for player in players):
            self._settle(players, order)
            ready = [number for number, player in enumerate(players) if player.standing]
            if not ready:
                continue  # each waits for another one: the server ends that
            place = len(order.decisions)
            wanted = prefix[place] if place < len(prefix) else before
            chosen = wanted if wanted in ready else ready[0]
            stood = ("", 0) if before is None else (players[before].at, players[before].steps)
            order.decisions.append(Decision(ready, chosen, before, stood))
            before = chosen
            players[chosen].go()
        order.results = [player.future.exception() or player.future.result() for player in players]
        return order

    def _settle(self, players: Sequence[_Player], order: Order) -> None:
        """Wait until each session stands, is done, or waits for a lock."""
        for number, player in enumerate(players):
            for _ in range(SOON * 100):
                if player.await_rest(0.005):
                    break
                if self._waits(player):
                    order.waited.add(number)
                    break
            else:
                raise AssertionError("a session neither came to stand nor waits for a lock")

    def _waits(self, player: _Player) -> bool:
        pid = player.connection.info.backend_pid
        return bool(
            self._watcher.execute("SELECT FROM pg_locks WHERE pid = %s AND NOT granted", [pid]).rowcount
        )


class Rewind:
    """All rows of a schema as they are now, to be brought back as often as an order needs them."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._connection, self._schema, self._kept = connection, schema, f"{schema}_kept"
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self._kept)))
        self._tables = self._with_pages()
        self._restore = [self._restored(table) for table in self._tables]
        for table in self._tables:
            connection.execute(
                sql.SQL("CREATE TABLE {} AS TABLE {}").format(
                    sql.Identifier(self._kept, table), sql.Identifier(schema, table)
                )
            )

    def __call__(self) -> None:
        """Bring the rows back; no trigger fires, and sequences go on."""
        script: list[sql.Composable] = [sql.SQL("BEGIN; SET LOCAL session_replication_role = replica")]
        for table in sorted({*self._tables, *self._with_pages()}):
            script.append(sql.SQL("DELETE FROM {}").format(sql.Identifier(self._schema, table)))
        self._connection.execute(sql.SQL("; ").join([*script, *self._restore, sql.SQL("COMMIT")]))

    def _with_pages(self) -> list[str]:
        found = self._connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'"
            " AND relname <> 'schema_migration' AND pg_relation_size(oid) > 0 ORDER BY 1",
            [self._schema],
        )
        return [table for (table,) in found]

    def _restored(self, table: str) -> sql.Composed:
        columns = self._connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
            " AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
            [f"{self._schema}.{table}"],
        )
        names = sql.SQL(", ").join(sql.Identifier(name) for (name,) in columns)
        return sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}").format(
            sql.Identifier(self._schema, table), names, names, sql.Identifier(self._kept, table)
        )
