"""Appending turns: gapless offsets, idempotent by key, inside the caller's transaction or one of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from parkkeeper.database import in_transaction, retried, statements
from parkkeeper.errors import ParkkeeperError
from parkkeeper.memory.digests import Digests
from parkkeeper.memory.errors import BacklogFull, IdempotencyConflict, TurnErased
from parkkeeper.memory.outcomes import Appended
from parkkeeper.memory.session import Session
from parkkeeper.memory.turns import CheckedTurn

_SQL = statements("memory/append")

#: One statement stores at most this many turns, and about this many characters.
TURNS_PER_STATEMENT = 1_000
CHARACTERS_PER_STATEMENT = 8_000_000


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn with what recognises it; the digests are None when it has no key."""

    turn: CheckedTurn
    key: bytes | None
    content: bytes | None


def digests(session: Session) -> Digests:
    """Return the digests of the namespace, whose secret was made when it was migrated."""
    row = session.execute(_SQL, "digest_key", {}).fetchone()
    if row is None:
        raise ParkkeeperError(
            f"namespace {session.namespace} has lost digest_key from its settings: restore it, or no key is recognised"
        )
    return Digests(bytes.fromhex(row.value))


def append(
    session: Session, digests: Digests | None, scope: str, turns: Sequence[CheckedTurn]
) -> list[Appended]:
    """Store `turns` in order; `digests` may be None when none of them has a key."""
    prepared = [_prepare(digests, scope, turn) for turn in turns]
    connection = session.connection
    # A single statement is a transaction already.
    alone = len(prepared) == 1 and prepared[0].key is None
    if alone or in_transaction(connection) or not connection.autocommit:
        return _append(session, scope, prepared)

    def work() -> list[Appended]:
        with connection.transaction():
            return _append(session, scope, prepared)

    return retried(connection, work)


def _prepare(digests: Digests | None, scope: str, turn: CheckedTurn) -> _Turn:
    if turn.idempotency_key is None or digests is None:
        return _Turn(turn, None, None)
    return _Turn(turn, digests.key(scope, turn.idempotency_key), digests.content(turn))


def _append(session: Session, scope: str, turns: Sequence[_Turn]) -> list[Appended]:
    """Tell the turns that are known by their key from the new ones, and store these."""
    known = _known(session, scope, turns)
    first: dict[bytes, int] = {}  # key -> its first turn among the new ones
    for index, turn in enumerate(turns):
        if turn.key is None:
            continue
        stored = known.get(turn.key)
        if stored is not None:
            _check_same(turn, stored.content_digest, f"offset {stored.log_offset} of scope {scope}")
        elif turn.key in first:
            _check_same(turn, turns[first[turn.key]].content, f"turns[{first[turn.key]}]")
        else:
            first[turn.key] = index
    new = [i for i, turn in enumerate(turns) if turn.key is None or first.get(turn.key) == i]
    created = dict(zip(new, _insert(session, scope, [turns[index] for index in new]), strict=True))
    results = []
    for index, turn in enumerate(turns):
        if index in created:
            results.append(created[index])
        elif (stored := known.get(turn.key)) is not None:
            results.append(Appended(stored.observation_id, scope, stored.log_offset, False))
        else:
            twin = created[first[turn.key]]  # type: ignore[index]
            results.append(Appended(twin.observation_id, scope, twin.log_offset, False))
    return results


def _known(session: Session, scope: str, turns: Sequence[_Turn]) -> dict[bytes | None, Any]:
    keys = [turn.key for turn in turns if turn.key is not None]
    if not keys:
        return {}
    session.execute(_SQL, "lock_scope", {"scope": scope})
    return {row.key_digest: row for row in session.execute(_SQL, "known_keys", {"keys": keys})}


def _check_same(turn: _Turn, content: bytes | None, where: str) -> None:
    if content is None:
        raise TurnErased(f"idempotency_key is refused: its turn, {where}, was erased and does not come back")
    if content != turn.content:
        raise IdempotencyConflict(
            f"idempotency_key is refused: it stands for another turn, {where}; use a new key"
        )


def _insert(session: Session, scope: str, turns: Sequence[_Turn]) -> list[Appended]:
    chunks = list(_chunks(turns))
    # All or none: one that is refused takes those before it along, also in a transaction of the caller.
    whole = session.connection.transaction() if len(chunks) > 1 else nullcontext()
    with whole:
        return [appended for chunk in chunks for appended in _insert_chunk(session, scope, chunk)]


def _insert_chunk(session: Session, scope: str, turns: Sequence[_Turn]) -> list[Appended]:
    rows = session.execute(_SQL, "append", {"scope": scope, **_columns(turns)}).fetchall()
    if not rows:
        raise _full(session, scope, len(turns))
    return [Appended(row.observation_id, scope, row.log_offset, True) for row in rows]


def _full(session: Session, scope: str, turns: int) -> BacklogFull:
    """Return what says which cap refuses the append; by now there may be room again."""
    row = session.execute(_SQL, "backlog", {"scope": scope}).fetchone()
    assert row is not None
    whose, cap, backlog = f"scope {scope}", row.scope_cap, row.scope_backlog
    if cap is None or (row.namespace_cap is not None and row.namespace_backlog + turns > row.namespace_cap):
        whose, cap, backlog = f"namespace {session.namespace}", row.namespace_cap, row.namespace_backlog
    return BacklogFull(
        f"append to scope {scope} is refused: with {turns} turns more the backlog of {whose}, which is {backlog}, "
        f"would be over its cap of {cap}: try again when turns were formed, or raise it with set_backlog_cap"
    )


def _chunks(turns: Sequence[_Turn]) -> Iterator[list[_Turn]]:
    chunk: list[_Turn] = []
    characters = 0
    for turn in turns:
        chunk.append(turn)
        characters += sum(len(content) for _, content in turn.turn.messages)
        if len(chunk) == TURNS_PER_STATEMENT or characters >= CHARACTERS_PER_STATEMENT:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _columns(turns: Sequence[_Turn]) -> dict[str, Any]:
    messages = [
        (number, position, role, content)
        for number, turn in enumerate(turns, start=1)
        for position, (role, content) in enumerate(turn.turn.messages)
    ]
    keyed = [(number, turn) for number, turn in enumerate(turns, start=1) if turn.key is not None]
    return {
        "turns": len(turns),
        "occurred_at": [turn.turn.occurred_at for turn in turns],
        "subjects": [turn.turn.subject for turn in turns],
        "languages": [turn.turn.language for turn in turns],
        "message_turns": [message[0] for message in messages],
        "positions": [message[1] for message in messages],
        "roles": [message[2] for message in messages],
        "contents": [message[3] for message in messages],
        "key_turns": [number for number, _ in keyed],
        "key_digests": [turn.key for _, turn in keyed],
        "content_digests": [turn.content for _, turn in keyed],
    }
