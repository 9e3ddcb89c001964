"""A session that is interrupted where it hurts: a statement was sent, and nobody is left to read what comes of it."""

from __future__ import annotations

import os
from typing import Any

import psycopg


class Interruptible(psycopg.Connection[Any]):
    """Raises KeyboardInterrupt once, in the wait that it was told of.

    What waits for the results is gone by then, as it is when a signal comes between two steps of it. So psycopg, which
    cancels a statement whose wait was interrupted, does not see this one.
    """

    _left = 0
    _done = False

    def interrupt_at(self, wait: int, *, done: bool = False) -> None:
        """Be interrupted in the wait of this number, counted from 1, from now on; if `done`, when it is just over."""
        self._left, self._done = wait, done

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Wait for the database, or be interrupted."""
        self._left -= 1
        if self._left:
            return super().wait(gen, *arguments, **options)
        if self._done:
            super().wait(gen, *arguments, **options)
        else:
            next(gen, None)
            gen.close()
        raise KeyboardInterrupt


def sever(connection: psycopg.Connection[Any]) -> None:
    """Break the session's socket so that psycopg finds it closed while libpq does not know: a poll says error at once.

    A server that goes away shows in this way when it does so between the sending of a statement and the wait for it.
    """
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, connection.fileno())
    os.close(writer)
