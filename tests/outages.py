"""Providers that do not answer, in every way in which they do not, and the time that an open circuit waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memory_kit import Database, Scripted, say
from parkkeeper.memory import Circuit, MemoryStore
from parkkeeper.memory.extractors import ExtractionError, Memory, Turn

TURNS = [{"messages": say("x")}]


def status(error_class: str, **more: Any) -> Callable[[Turn], Sequence[Memory]]:
    """Return an answer that is a failure of this class."""

    def answer(turn: Turn) -> Sequence[Memory]:
        raise ExtractionError(error_class, "MARKER", **more)

    return answer


def crash(turn: Turn) -> Sequence[Memory]:
    raise ConnectionResetError("MARKER")


def cancelled(turn: Turn) -> Sequence[Memory]:
    raise SystemExit("MARKER")


def gibberish(turn: Turn) -> Any:
    return "<html>MARKER</html>"


#: What an outage may look like.
ANSWERS: dict[str, Callable[[Turn], Sequence[Memory]]] = {
    "429": status("rate_limited"),
    "quota": status("quota"),
    "401 or 403": status("auth"),
    "500": status("unavailable"),
    "time-out": status("timeout"),
    "refusal": status("refusal"),
    "too long": status("too_long"),
    "cut": status("output_truncated"),
    "its own store": status("store"),
    "plain exception": crash,
    "no exception": cancelled,
    "gibberish": gibberish,
}


def outage(kind: str) -> Scripted:
    """Return an extractor whose provider answers nobody, not even the canary."""
    return Scripted(ANSWERS[kind], canary=None)


def pass_cool_down(db: Database) -> None:
    """Let the time pass that an open circuit waits before its next canary."""
    db(
        "UPDATE {schema}.formation_circuit SET next_probe_at = now() - interval '1 second', "
        "opened_at = opened_at - (next_probe_at - now()) WHERE opened_at IS NOT NULL"
    )


def cool_down(db: Database) -> float:
    """Return for how many seconds the circuit stays as it is."""
    return db.one("SELECT extract(epoch FROM next_probe_at - now())::float8 FROM {schema}.formation_circuit")


def attempts(db: Database) -> set[int]:
    """Return which numbers of attempts turns have."""
    return {count for (count,) in db("SELECT DISTINCT formation_attempts FROM {schema}.observation")}


def only(store: MemoryStore) -> Circuit:
    """Return the one circuit there is."""
    (found,) = store.circuits()
    return found
