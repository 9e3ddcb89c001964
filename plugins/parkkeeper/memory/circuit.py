"""The circuit of an extractor, kept in the database so that all workers share it.

What follows from what is decided in :mod:`parkkeeper.memory.breaker`; here a state is locked, changed and stored.
Lock order: the circuit, then turns; never a circuit together with the formed side of a watermark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from parkkeeper.database import retried, statements, transaction
from parkkeeper.memory.breaker import Breaker
from parkkeeper.memory.extractors import Extractor
from parkkeeper.memory.outcomes import Circuit
from parkkeeper.memory.session import Session
from parkkeeper.names import checked_name

_SQL = statements("memory/circuit")
_STATE = tuple(field.name for field in fields(Breaker))


@dataclass(frozen=True, slots=True)
class Key:
    """Whose circuit it is. `identity` is the extractor's own, e.g. its connection or model; "" when it has none."""

    extractor: str
    version: str
    identity: str

    @classmethod
    def of(cls, extractor: Extractor) -> Key:
        """Return the key of `extractor`; :class:`~parkkeeper.errors.InvalidName` names what is no name."""
        identity = getattr(extractor, "identity", "")
        return cls(
            checked_name("extractor.name", extractor.name),
            checked_name("extractor.version", extractor.version),
            identity if identity == "" else checked_name("extractor.identity", identity),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A circuit as it stands in the database, `now` by the database's clock."""

    circuit_id: int
    breaker: Breaker
    now: datetime


def look(session: Session, key: Key) -> Row | None:
    """Read the circuit without a lock; None when the extractor has never failed."""
    return _row(session.execute(_SQL, "look", asdict(key)).fetchone())


def lock(session: Session, key: Key) -> Row:
    """Lock the circuit, which comes to be if need be, for the rest of the transaction."""
    row = _row(session.execute(_SQL, "lock", asdict(key)).fetchone())
    if row is None:
        session.execute(_SQL, "make", asdict(key))
        row = _row(session.execute(_SQL, "lock", asdict(key)).fetchone())
    assert row is not None, "circuits are never deleted"
    return row


def store(session: Session, circuit_id: int, breaker: Breaker) -> None:
    """Store the state of a circuit that is locked."""
    session.execute(_SQL, "store", _values(breaker) | {"circuit_id": circuit_id})


def succeed(session: Session, key: Key, streak: int, since: datetime) -> None:
    """Take in that a turn was extracted, which was tried `since` then and when `streak` ran."""
    _change(session, key, lambda row: row.breaker.succeed(streak, since))


def ask(session: Session, key: Key, prober: UUID, lease: timedelta) -> tuple[Row, bool]:
    """Return the circuit, and whether `prober` is to send a canary; for `lease` nobody else is then."""
    return _change(session, key, lambda row: row.breaker.ask(prober, row.now, lease))


def hit(session: Session, key: Key, prober: UUID) -> Row:
    """Take in that the canary succeeded, and return what the circuit is now."""
    return _change(session, key, lambda row: row.breaker.hit(prober, row.now))[0]


def miss(session: Session, key: Key, prober: UUID, error_class: str, retry_after: timedelta | None) -> Row:
    """Take in that the canary failed, give back what nothing had answered, and return what the circuit is now."""

    def work() -> Row:
        with transaction(session.connection, "form_batch"):
            row = lock(session, key)
            after = row.breaker.miss(prober, error_class, retry_after, row.now)
            if after is None:
                return row
            store(session, row.circuit_id, after)
            unanswered = {"circuit_id": row.circuit_id, "answered": row.breaker.answered}
            session.execute(_SQL, "give_back", unanswered)
            return replace(row, breaker=after)

    return retried(session.connection, work)


def release(session: Session, key: Key, prober: UUID) -> None:
    """Let others ask at once: this prober's canary will have no answer."""
    _change(session, key, lambda row: row.breaker.release(prober))


def probe_now(session: Session) -> int:
    """End the cool-downs of all open circuits; return how many had one."""
    return session.execute(_SQL, "probe_now", {}).rowcount


def circuits(session: Session) -> list[Circuit]:
    """Return all circuits by extractor, version and identity."""
    return [Circuit(*row) for row in session.execute(_SQL, "circuits", {})]


def _change(session: Session, key: Key, decide: Callable[[Row], Breaker | None]) -> tuple[Row, bool]:
    """Store what `decide` makes of the locked circuit, if it makes anything; return the circuit and whether it did."""

    def work() -> tuple[Row, bool]:
        with transaction(session.connection, "form_batch"):
            row = lock(session, key)
            after = decide(row)
            if after is None:
                return row, False
            store(session, row.circuit_id, after)
            return replace(row, breaker=after), True

    return retried(session.connection, work)


def _row(found: Any) -> Row | None:
    if found is None:
        return None
    return Row(found.circuit_id, Breaker(*(getattr(found, name) for name in _STATE)), found.now)


def _values(breaker: Breaker) -> dict[str, Any]:
    return {name: getattr(breaker, name) for name in _STATE}
