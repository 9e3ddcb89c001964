"""What the tests of the memory namespace share: turns, extractors that do as they are told, and time that passes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import psycopg

from parkkeeper.database import render
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn
from parkkeeper.memory.extractors.chunks import Chunks
from parkkeeper.namespace import Namespace

#: How long anything that must happen may take, in seconds.
PATIENCE = 30


def say(*contents: str) -> list[dict[str, str]]:
    """Return messages of a user and an assistant, taking turns."""
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


def good(turn: Turn) -> Sequence[Memory]:
    """Answer a canary as a provider does that works."""
    return []


class Scripted:
    """An extractor that calls a function; what that returns or raises is its answer.

    Canaries have an answer of their own, a good one unless told otherwise: the provider works, whatever becomes of the
    turns. With ``canary=None`` they get what turns get.
    """

    name = "scripted"
    version = "7"

    def __init__(
        self,
        answer: Callable[[Turn], Sequence[Memory]],
        canary: Callable[[Turn], Sequence[Memory]] | None = good,
    ) -> None:
        self._answer = answer
        self._canary = canary or answer
        self.seen: list[Turn] = []
        self.canaries: list[Turn] = []

    def extract(self, turn: Turn) -> Sequence[Memory]:
        if turn.log_offset < 0:
            self.canaries.append(turn)
            return self._canary(turn)
        self.seen.append(turn)
        return self._answer(turn)


def failing(
    error_class: str, message: object = "no", *, offsets: Sequence[int] | None = None, **more: Any
) -> Scripted:
    """Return an extractor that fails at `offsets` (None: everywhere) and forms the rest as chunks does."""

    def answer(turn: Turn) -> Sequence[Memory]:
        if offsets is None or turn.log_offset in offsets:
            raise ExtractionError(error_class, message, **more)
        return Chunks().extract(turn)

    return Scripted(answer)


def raising(error: BaseException) -> Scripted:
    """Return an extractor that raises `error` for every turn."""

    def answer(turn: Turn) -> Sequence[Memory]:
        raise error

    return Scripted(answer)


class Database:
    """Statements of a test's own on its namespace, and clocks that are moved by rewriting stamps."""

    def __init__(self, connection: psycopg.Connection[Any], namespace: str) -> None:
        self.connection = connection
        self.namespace = Namespace(namespace)

    def __call__(self, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(render(statement, self.namespace).encode(), values)
        return cursor.fetchall() if cursor.description else []

    def one(self, statement: str, values: Any = None) -> Any:
        """Return the only column of the only row."""
        ((value,),) = self(statement, values)
        return value

    def turn(self, log_offset: int, *columns: str, scope: str = "s") -> Any:
        """Return the columns of one turn; a single one as it is."""
        (row,) = self(
            f"SELECT {', '.join(columns)} FROM {{schema}}.observation WHERE scope = %s AND log_offset = %s",  # noqa: S608
            (scope, log_offset),
        )
        return row if len(columns) > 1 else row[0]

    def come_due(self) -> None:
        """Let the time pass after which turns that failed are tried again."""
        self(
            "UPDATE {schema}.observation SET next_attempt_at = now() - interval '1 second' WHERE claim_token IS NULL"
        )

    def expire_claims(self) -> None:
        """Let the time pass until which claims hold."""
        self(
            "UPDATE {schema}.observation SET claimed_until = now() - interval '1 second', "
            "next_attempt_at = now() - interval '1 second' WHERE claim_token IS NOT NULL"
        )

    def waiting_for_a_lock(self, application_name: str) -> bool:
        """Tell whether the session of that name waits for a lock right now."""
        return self.connection.execute(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'",
            (application_name,),
        ).fetchone()[0]  # type: ignore[index]


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Run `work` in a thread of its own; the future has its result."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds; an error when it does not come to hold."""
    beat = threading.Event()
    for _ in range(PATIENCE * 100):
        if condition():
            return
        beat.wait(0.01)
    raise AssertionError("it never came to hold")
