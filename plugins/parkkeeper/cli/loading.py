"""Loading turns from JSON Lines: a batch is a transaction, a bad line stops the load after what stands before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, BinaryIO

import psycopg

from parkkeeper.cli.lines import Line, batches
from parkkeeper.database import retried
from parkkeeper.errors import ParkkeeperError
from parkkeeper.memory import InvalidTurn, MemoryStore


class LineRefused(ParkkeeperError):
    """A line could not be appended: those before it are in, none after it is."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """How many turns went in: `created` are new, `repeated` were there already, by their idempotency key."""

    turns: int
    created: int
    repeated: int


@dataclass(frozen=True, slots=True)
class _Manner:
    """What holds for all lines: what is done with invalid content, and the language of those that tell none."""

    on_invalid: str
    language: str | None


def load(
    connection: psycopg.Connection[Any],
    store: MemoryStore,
    stream: BinaryIO,
    on_invalid: str,
    language: str | None,
) -> Loaded:
    """Append a turn for each line of `stream`; `language` is that of lines that tell none.

    Raises
    ------
    LineRefused
        All lines before the one that is named are in, and none after it.
    """
    manner = _Manner(on_invalid, language)
    done: list[bool] = []  # for each turn that is in, whether it is new
    try:
        for lines in batches(stream, "turns"):
            bad = lines.pop() if lines[-1].problem else None
            try:
                done += _append(connection, store, lines, manner)
            except ParkkeeperError:
                for line in lines:
                    done += _append_one(connection, store, line, manner)
            if bad is not None:
                raise LineRefused(f"line {bad.number} is refused: {bad.problem}")
    except LineRefused as refused:
        refused.add_note(f"{len(done)} turns went in")
        raise
    except BaseException as error:
        # A commit that was not answered may have been one.
        error.add_note(f"at least {len(done)} turns went in")
        raise
    return Loaded(len(done), sum(done), len(done) - sum(done))


def _append(
    connection: psycopg.Connection[Any], store: MemoryStore, lines: Sequence[Line], manner: _Manner
) -> list[bool]:
    """Append lines in one transaction, scope by scope in one order, so that two loads cannot deadlock."""
    turns = sorted((_turn(line, manner.language) for line in lines), key=lambda turn: turn[0])

    def work() -> list[bool]:
        with connection.transaction():
            return [
                appended.created
                for scope, group in groupby(turns, key=lambda turn: turn[0])
                for appended in store.append_many(
                    scope, [turn for _, turn in group], on_invalid=manner.on_invalid
                )
            ]

    return retried(connection, work) if turns else []


def _append_one(
    connection: psycopg.Connection[Any], store: MemoryStore, line: Line, manner: _Manner
) -> list[bool]:
    """Append a line of a batch that was refused, so that the one that was the reason is named."""
    try:
        return _append(connection, store, [line], manner)
    except ParkkeeperError as error:
        raise LineRefused(f"line {line.number} is refused: {str(error).removeprefix('turns[0].')}") from None


def _turn(line: Line, language: str | None) -> tuple[str, dict[str, Any]]:
    """Return the line's scope, and the rest as the store takes it."""
    turn = dict(line.value)
    scope, when = turn.pop("scope", None), turn.get("occurred_at")
    if not isinstance(scope, str):
        raise InvalidTurn("scope is refused: a string")
    if turn.get("language") is None:
        turn["language"] = language
    if isinstance(when, str):
        try:
            turn["occurred_at"] = datetime.fromisoformat(when)
        except ValueError:
            raise InvalidTurn(
                "occurred_at is refused: ISO 8601 with a zone, e.g. 2026-01-31T12:00:00Z"
            ) from None
    return scope, turn
