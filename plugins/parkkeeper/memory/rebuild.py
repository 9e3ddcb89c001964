"""Rebuilding a scope: its turns are formed again by another extractor, one after the other, in bounded batches."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg

from parkkeeper.database import bring_to_rest, retried, statements, transaction
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import circuit, control, watermark
from parkkeeper.memory.breaker import PROVIDER_CLASSES
from parkkeeper.memory.canary import budget
from parkkeeper.memory.circuit import Key
from parkkeeper.memory.claims import STORE_TIME
from parkkeeper.memory.errors import RebuildActive, RebuildCancelled
from parkkeeper.memory.extractors import ExtractionError, Extractor, Memory, Message, Turn
from parkkeeper.memory.formation import LONGEST_BUDGET
from parkkeeper.memory.outcomes import Rebuild, RebuildOutcome, ScopeRange
from parkkeeper.memory.session import Session
from parkkeeper.memory.settling import columns, refused
from parkkeeper.memory.workers import Extraction, Workers

_SQL = statements("memory/rebuild")
_LOG = logging.getLogger(__name__)

#: How often a turn is tried whose failure has a class of the provider's while the provider answers others.
TRIES = 2
#: How many offsets of failed turns a listing names.
LISTED_FAILURES = 1_000


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be rebuilt: a range of a scope, up to its last turn when `to_offset` is None."""

    scope: str
    from_offset: int
    to_offset: int | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may take: turns, threads, and time a turn."""

    turns: int
    concurrency: int
    turn_budget: timedelta

    @property
    def lease(self) -> timedelta:
        """For how long a worker that gives no sign keeps others away: a turn, its canary, and both once more."""
        return (self.turn_budget + budget(self.turn_budget)) * TRIES + STORE_TIME


@dataclass(frozen=True, slots=True)
class _Place:
    """The rebuild that is in hand, and the range of it that was left when it was taken."""

    rebuild_id: int
    token: UUID
    scope: str
    through_offset: int
    to_offset: int


@dataclass(slots=True)
class _Attempt:
    """A turn with a worker: `deadline` is of the monotonic clock."""

    observation_id: int
    turn: Turn
    token: UUID
    deadline: float
    tries: int = 1


class _TakenOver(Exception):
    """Somebody else goes on with this rebuild, or it was cancelled: what was extracted is not stored."""


class _Ended(Exception):
    """The rebuild that the caller was at has ended since: no other one begins in its stead."""


#: The rebuild that a caller was at, by scope: its id, and what was asked for.
Begun = dict[str, tuple[int, Key, Request]]


def rebuild(
    session: Session,
    extractor: Extractor,
    key: Key,
    *,
    scope: str,
    from_offset: int,
    to_offset: int | None,
    limit: int,
    turn_budget: timedelta,
    concurrency: int,
    begun: Begun,
) -> RebuildOutcome:
    """Form turns of `scope` again that are formed or parked, one batch a call: call it until it is `done`.

    The memory that a turn had is found until the new one replaces it, in one transaction. Who calls with the same
    arguments goes on where the last call stopped, whatever ended that. A turn that fails keeps the memory that it
    had; an outage ends the call and fails none.

    Parameters
    ----------
    scope
        Whose memory.
    extractor
        What makes the new memories: another extractor, or another version of the one before.
    from_offset, to_offset
        The range, both included; None is the last turn that there is when the rebuild begins.
    limit
        The most turns that this call extracts.
    turn_budget
        How long one extraction may take. On overrun the turn failed and the call ends.
    concurrency
        How many turns are extracted at once, each in a thread.
    begun
        Kept by the store: what its calls before this one were at. What has ended since is not begun anew.

    Returns
    -------
    RebuildOutcome
        Figures of the whole rebuild up to now.

    Raises
    ------
    RebuildActive
        The scope has another rebuild that has not ended (see `cancel_rebuild`), or another session works on
        this one.
    RebuildCancelled
        It was cancelled during the call, or since this store's last one; call again to begin another.
    FormationPaused
        The scope or the extractor is paused.
    """
    control.refuse_paused(session, scope, key.extractor)
    request = Request(scope, from_offset, to_offset)
    limits = Limits(limit, concurrency, min(turn_budget, LONGEST_BUDGET / 8))
    # Noted first: an interrupt may come when it is taken and not yet returned.
    token = uuid4()
    try:
        place = _take(session, key, request, token, limits.lease, begun)
        if place is None:
            return RebuildOutcome(0, 0, 0, request.from_offset - 1, True)
        batch = _Batch(session, extractor, key, place, limits)
        batch.run()
    except _TakenOver:
        begun.pop(scope)
        raise _lost(session, place) from None  # type: ignore[arg-type]
    except _Ended:
        return _outcome(session, scope, begun.pop(scope)[0], "closed")
    except BaseException:
        bring_to_rest(session.connection)
        raise
    finally:
        _leave(session, scope, token)
    outcome = _outcome(session, scope, place.rebuild_id, "open" if batch.open else "closed")
    if outcome.done:
        del begun[scope]
    return outcome


def _outcome(session: Session, scope: str, rebuild_id: int, circuit_state: str) -> RebuildOutcome:
    """Return the figures of a rebuild; one that was cancelled, or dropped with its scope, is an error."""
    figures = session.execute(_SQL, "figures", {"rebuild_id": rebuild_id}).fetchone()
    if figures is None:
        raise RebuildCancelled(f"scope {scope} was dropped while it was rebuilt")
    if figures.cancelled:
        raise _cancelled(scope)
    done = figures.through_offset == figures.to_offset
    return RebuildOutcome(
        figures.rebuilt, figures.failed, figures.skipped, figures.through_offset, done, circuit_state
    )


def _cancelled(scope: str) -> RebuildCancelled:
    return RebuildCancelled(f"the rebuild of scope {scope} was cancelled while it was worked on")


def _lost(session: Session, place: _Place) -> RebuildActive | RebuildCancelled:
    row = session.execute(_SQL, "figures", {"rebuild_id": place.rebuild_id}).fetchone()
    if row is None or row.cancelled:
        return _cancelled(place.scope)
    return RebuildActive(
        f"the rebuild of scope {place.scope} was taken over by another session, which is at offset {row.through_offset}"
    )


def cancel(session: Session, scope: str) -> bool:
    """End the rebuild of `scope` that has not ended; tell whether there was one."""
    return session.execute(_SQL, "cancel", {"scope": scope}).rowcount > 0


def ranges(
    session: Session, ingested_from: datetime | None, ingested_before: datetime | None, scope: str | None
) -> list[ScopeRange]:
    """Return the scopes with turns that were stored in a window, by name, and where those turns are.

    Parameters
    ----------
    ingested_from, ingested_before
        With a time zone, the second one exclusive. None: no bound.
    scope
        Only this scope; None: all.

    Raises
    ------
    InvalidArgument
        A bound has no time zone.
    """
    window = {"ingested_from": ingested_from, "ingested_before": ingested_before}
    for field, value in window.items():
        if value is not None and (not isinstance(value, datetime) or value.utcoffset() is None):
            raise InvalidArgument(f"{field} {value!r} is refused: a datetime with a time zone")
    rows = session.execute(_SQL, "ranges", {**window, "scope": scope}, prepare=False)
    return [ScopeRange(*row) for row in rows]


def rebuilds(session: Session, scope: str | None, limit: int) -> list[Rebuild]:
    """Return rebuilds, those that began last in front."""
    values = {"scope": scope, "limit": limit, "walk": LISTED_FAILURES}
    return [Rebuild(*row) for row in session.execute(_SQL, "rebuilds", values)]


def _take(
    session: Session, key: Key, request: Request, token: UUID, lease: timedelta, begun: Begun
) -> _Place | None:
    """Take the scope's rebuild in hand, which comes to be if there is none; None when there is nothing to rebuild."""
    known, *asked = begun.get(request.scope, (None,))

    def work() -> _Place | None:
        with transaction(session.connection, "rebuild"):
            session.execute(_SQL, "begin", asdict(key) | asdict(request))
            row = session.execute(_SQL, "active", {"scope": request.scope}).fetchone()
            if asked == [key, request] and (row is None or row.rebuild_id != known):
                raise _Ended  # which undoes what has begun here
            if row is None:
                return None
            _refuse_another(row, key, request)
            session.execute(_SQL, "take", {"rebuild_id": row.rebuild_id, "token": token, "lease": lease})
            return _Place(row.rebuild_id, token, request.scope, row.through_offset, row.to_offset)

    place = retried(session.connection, work)
    if place is not None:
        begun[request.scope] = place.rebuild_id, key, request
    return place


def _refuse_another(row: Any, key: Key, request: Request) -> None:
    active = (row.extractor, row.version, row.identity, row.from_offset, row.asked_to)
    if active != (key.extractor, key.version, key.identity, request.from_offset, request.to_offset):
        raise RebuildActive(
            f"scope {request.scope} has a rebuild with {row.extractor} {row.version} of offsets {row.from_offset} to "
            f"{row.to_offset}, which is at {row.through_offset}: finish it with the same arguments, or cancel it"
        )
    if row.taken:
        raise RebuildActive(
            f"scope {request.scope} is being rebuilt by another session, which is at offset {row.through_offset}"
        )


def _leave(session: Session, scope: str, token: UUID) -> None:
    try:
        session.execute(_SQL, "leave", {"scope": scope, "token": token})
    except psycopg.Error as error:
        _LOG.warning(
            "a rebuild that could not be handed back (%s) is free when its lease ends",
            error.sqlstate or type(error).__name__,
        )


class _Batch:
    """The turns of one call, extracted side by side and settled in order, so that the place is always exact."""

    def __init__(
        self, session: Session, extractor: Extractor, key: Key, place: _Place, limits: Limits
    ) -> None:
        self.open = False
        self._session = session
        self._extractor = extractor
        self._key = key
        self._place = place
        self._limits = limits
        self._going = True
        self._through = place.through_offset
        self._results: dict[UUID, Extraction] = {}
        self._workers = Workers(extractor, min(limits.concurrency, limits.turns))

    def run(self) -> None:
        """Work until the batch is done, the provider does not answer, or a thread is stuck."""
        try:
            row = circuit.look(self._session, self._key)
            if row is not None and row.breaker.open and not self._answers():
                return
            self._work()
        finally:
            self._workers.close()

    def _work(self) -> None:
        place, limits = self._place, self._limits
        values = {
            "scope": place.scope,
            "through_offset": place.through_offset,
            "to_offset": place.to_offset,
            "limit": limits.turns,
        }
        rows = deque(self._session.execute(_SQL, "turns", values).fetchall())
        last = len(rows) < limits.turns
        in_hand: deque[_Attempt] = deque()
        while in_hand or (rows and self._going):
            while rows and self._going and len(in_hand) < limits.concurrency:
                in_hand.append(self._submit(rows.popleft()))
            attempt = in_hand.popleft()
            again = self._settle(attempt, self._result(attempt))
            if self.open:
                return
            if again is not None:
                in_hand.appendleft(again)
        if last and not rows and self._through < place.to_offset:
            # Nothing behind it is formed or parked.
            retried(self._session.connection, lambda: self._advance(place.to_offset))

    def _submit(self, row: Any) -> _Attempt:
        messages: tuple[Message, ...] = tuple(
            {"role": role, "content": content}
            for role, content in zip(row.roles or (), row.contents or (), strict=True)
        )
        turn = Turn(self._place.scope, row.log_offset, row.occurred_at, messages, datetime.now(UTC))
        return self._try(row.observation_id, turn, 1)

    def _try(self, observation_id: int, turn: Turn, tries: int) -> _Attempt:
        seconds = self._limits.turn_budget
        turn = Turn(turn.scope, turn.log_offset, turn.occurred_at, turn.messages, datetime.now(UTC) + seconds)
        attempt = _Attempt(observation_id, turn, uuid4(), time.monotonic() + seconds.total_seconds(), tries)
        self._workers.submit(attempt.token, turn)
        return attempt

    def _result(self, attempt: _Attempt) -> Sequence[Memory] | ExtractionError:
        extraction = self._awaited(attempt.token, attempt.deadline)
        if extraction is None:
            # A thread that is late cannot be stopped and may never come back.
            self._going = False
            return ExtractionError("timeout")
        return extraction.failure or extraction.memories

    def _awaited(self, token: UUID, deadline: float) -> Extraction | None:
        """Return the result under `token`, and keep others that come before it; None when it is late."""
        while token not in self._results:
            extraction = self._workers.next(deadline - time.monotonic())
            if extraction is None:
                return None
            self._results[extraction.token] = extraction
        extraction = self._results.pop(token)
        return extraction if extraction.finished_at <= deadline else None

    def _settle(self, attempt: _Attempt, result: Sequence[Memory] | ExtractionError) -> _Attempt | None:
        """Store what was extracted, or note that the turn failed; return the attempt that is to be waited for again."""
        if isinstance(result, ExtractionError):
            if not self._answers():
                return None
            if result.error_class in PROVIDER_CLASSES and attempt.tries < TRIES and self._going:
                return self._try(attempt.observation_id, attempt.turn, attempt.tries + 1)
            self._fail(attempt, result.error_class)
            return None
        try:
            self._store(attempt, result)
        except (psycopg.Error, UnicodeError) as error:
            if refused(self._session, error) is None:
                raise
            self._fail(attempt, "store")
        return None

    def _store(self, attempt: _Attempt, memories: Sequence[Memory]) -> None:
        """Replace the turn's memory, if it is still there and not to be formed: then formation does that."""
        held = {"observation_id": attempt.observation_id}
        values: dict[str, Any] = held | columns(memories)
        values |= {"extractor": self._extractor.name, "extractor_version": self._extractor.version}
        scope = self._place.scope

        def work() -> None:
            with transaction(self._session.connection, "rebuild"):
                watermark.lock(self._session, [scope])
                turn = self._session.execute(_SQL, "hold", held).fetchone()
                if turn is not None:
                    self._session.execute(_SQL, "replace", values)
                    change = watermark.Change(formed=int(not turn.formed), replaced=True)
                    if turn.parked_class is not None:
                        change.count_parked(turn.parked_class, -1)
                    watermark.recompute(self._session, {scope: change})
                self._advance(attempt.turn.log_offset, rebuilt=int(turn is not None))

        retried(self._session.connection, work)

    def _fail(self, attempt: _Attempt, error_class: str) -> None:
        offset = attempt.turn.log_offset
        noted = {
            "rebuild_id": self._place.rebuild_id,
            "log_offset": offset,
            "error_class": error_class,
        }

        def work() -> None:
            with transaction(self._session.connection, "rebuild"):
                self._advance(offset, failed=1)
                self._session.execute(_SQL, "note_failure", noted)

        retried(self._session.connection, work)
        _LOG.info("scope %s offset %d: not rebuilt: %s", self._place.scope, offset, error_class)

    def _advance(self, through_offset: int, *, rebuilt: int = 0, failed: int = 0) -> None:
        values = {
            "rebuild_id": self._place.rebuild_id,
            "token": self._place.token,
            "through_offset": through_offset,
            "rebuilt": rebuilt,
            "failed": failed,
            "lease": self._limits.lease,
        }
        if self._session.execute(_SQL, "advance", values).fetchone() is None:
            raise _TakenOver
        self._through = through_offset

    def _answers(self) -> bool:
        """Ask the provider with a canary whether it answers at all; notes it in the circuit that formation has too."""
        prober, lease = uuid4(), budget(self._limits.turn_budget)
        try:
            row, granted = circuit.ask(self._session, self._key, prober, lease + STORE_TIME)
            if not granted and row.breaker.open:
                self.open = True
                return False
            self._workers.send_canary(prober, datetime.now(UTC) + lease)
            extraction = self._awaited(prober, time.monotonic() + lease.total_seconds())
            error = ExtractionError("timeout") if extraction is None else extraction.failure
            if granted and error is None:
                circuit.hit(self._session, self._key, prober)
            elif granted and error is not None:
                circuit.miss(self._session, self._key, prober, error.error_class, error.retry_after)
        except BaseException:
            bring_to_rest(self._session.connection)
            circuit.release(self._session, self._key, prober)
            raise
        self.open = error is not None
        return error is None
