"""The front door of the memory namespace: one class, a method an action, each done in a module of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import psycopg

from parkkeeper.database import refuse_open_transaction
from parkkeeper.invariants import Broken
from parkkeeper.memory import (
    circuit,
    claims,
    control,
    formation,
    log,
    parking,
    reading,
    rebuild,
    verify,
)
from parkkeeper.memory.arguments import (
    check_counts,
    check_offset,
    check_optional_counts,
    check_place,
    check_query,
    check_range,
    check_shard,
    checked_extractor,
    checked_ids,
)
from parkkeeper.memory.digests import Digests
from parkkeeper.memory.extractors import Extractor
from parkkeeper.memory.forgetting import Forgetting
from parkkeeper.memory.outcomes import (
    Appended,
    Circuit,
    FormationOutcome,
    Freshness,
    MemorySettings,
    Miscount,
    ParkedTurn,
    Rebuild,
    RebuildOutcome,
    Recall,
    ScopeRange,
    SweepOutcome,
)
from parkkeeper.memory.parking import DEFAULT_POLICY, SweepPolicy
from parkkeeper.memory.session import Session
from parkkeeper.memory.turns import check_turn
from parkkeeper.names import checked_name
from parkkeeper.namespace import Namespace


class MemoryStore(Forgetting):
    """The memory of one namespace, on one connection.

    Parameters
    ----------
    connection
        A psycopg 3 connection in autocommit mode. :meth:`append` and :meth:`append_many` join a transaction that the
        caller has open; every other method that writes is transactions of its own and refuses to run inside one.
    namespace
        The schema that holds the memory family's tables.

    Raises
    ------
    InvalidNamespace
        `namespace` is no name for a namespace. Nothing is sent to the database here.

    Notes
    -----
    Every method raises :class:`~parkkeeper.errors.UnknownNamespace` when the tables are missing, and
    :class:`psycopg.Error` classes without any value of a row or parameter in them. What is promised is in
    ``docs/explanation/memory.md``; ADR 0002 says why.
    """

    def __init__(self, connection: psycopg.Connection[Any], namespace: str | Namespace) -> None:
        self.connection = connection
        self.namespace = Namespace.of(namespace)
        self._session = Session(connection, self.namespace)
        self._digests: Digests | None = None
        self._rebuilds: rebuild.Begun = {}

    def append(
        self,
        scope: str,
        messages: Sequence[Mapping[str, str]],
        *,
        subject: str | None = None,
        occurred_at: datetime | None = None,
        idempotency_key: str | None = None,
        language: str | None = None,
        on_invalid: str = "reject",
    ) -> Appended:
        """Store one turn at the end of the scope's log.

        Parameters
        ----------
        scope
            Whose memory this is: 1 to 200 characters.
        messages
            At least one mapping of `role` (system, user, assistant or tool) and `content` (65,536 characters at most).
        subject
            Whose words these are; an erasure by subject finds the turn by it.
        occurred_at
            When it was said, with a time zone, in the years 2 to 9998; None means now, by the database's clock.
        idempotency_key
            With the same key and the same turn, a repeated append stores nothing and returns what the first one did.
        language
            In which :meth:`recall` finds it: a tag such as ``de`` or ``pt-BR``, or a text search configuration's name.
        on_invalid
            ``"reject"`` content that holds NUL or half a surrogate pair, or ``"replace"`` each by U+FFFD.

        Returns
        -------
        Appended
            `created` is False for a repetition.

        Raises
        ------
        InvalidName, InvalidTurn
            Before anything is sent to the database.
        BacklogFull
            A cap was set and the backlog would be over it; nothing was stored.
        IdempotencyConflict
            The key stands for another turn of this scope; nothing was stored.
        TurnErased
            The key's turn was erased; nothing was stored.
        """
        turn = {
            "messages": messages,
            "subject": subject,
            "occurred_at": occurred_at,
            "idempotency_key": idempotency_key,
            "language": language,
        }
        return self._append(scope, [turn], [""], on_invalid)[0]

    def append_many(
        self, scope: str, turns: Iterable[Mapping[str, Any]], *, on_invalid: str = "reject"
    ) -> list[Appended]:
        """Store `turns` in order, all or none.

        Parameters
        ----------
        turns
            Mappings with `messages` and, if wanted, `subject`, `occurred_at`, `idempotency_key` and `language`, as in
            :meth:`append`.

        Returns
        -------
        list of Appended
            One a turn, in the order given.
        """
        given = list(turns)
        return self._append(scope, given, [f"turns[{index}]." for index in range(len(given))], on_invalid)

    def form_batch(
        self,
        extractor: Extractor,
        *,
        scope: str | None = None,
        shard: tuple[int, int] = (0, 1),
        limit: int = 100,
        max_attempts: int = 6,
        turn_budget: timedelta = timedelta(minutes=5),
        concurrency: int = 1,
    ) -> FormationOutcome:
        """Form turns that are due, one claim at a time, until `limit` were claimed or none is due.

        See :func:`parkkeeper.memory.formation.form_batch`.
        """
        if scope is not None:
            checked_name("scope", scope)
        check_shard(shard, scope)
        check_counts(limit=limit, max_attempts=max_attempts, concurrency=concurrency)
        key = checked_extractor(extractor, turn_budget)
        refuse_open_transaction(self.connection, "form_batch")
        with self._session.action("form_batch"):
            return formation.form_batch(
                self._session,
                extractor,
                key,
                scope=scope,
                shard=shard,
                limit=limit,
                max_attempts=max_attempts,
                turn_budget=turn_budget,
                concurrency=concurrency,
            )

    def due_scopes(self) -> int:
        """Count the scopes that have a turn to be formed now: what batches over shards are planned by."""
        with self._session.action("due_scopes"):
            return len(claims.due_scopes(self._session, (0, 1), None))

    def rebuild(
        self,
        scope: str,
        extractor: Extractor,
        *,
        from_offset: int = 0,
        to_offset: int | None = None,
        limit: int = 100,
        turn_budget: timedelta = timedelta(minutes=5),
        concurrency: int = 1,
    ) -> RebuildOutcome:
        """Form turns of `scope` again that are formed or parked, one batch a call: call it until it is `done`.

        See :func:`parkkeeper.memory.rebuild.rebuild`.
        """
        checked_name("scope", scope)
        check_range(from_offset, to_offset)
        check_counts(limit=limit, concurrency=concurrency)
        key = checked_extractor(extractor, turn_budget)
        refuse_open_transaction(self.connection, "rebuild")
        with self._session.action("rebuild"):
            return rebuild.rebuild(
                self._session,
                extractor,
                key,
                scope=scope,
                from_offset=from_offset,
                to_offset=to_offset,
                limit=limit,
                turn_budget=turn_budget,
                concurrency=concurrency,
                begun=self._rebuilds,
            )

    def rebuild_ranges(
        self,
        ingested_from: datetime | None = None,
        ingested_before: datetime | None = None,
        *,
        scope: str | None = None,
    ) -> list[ScopeRange]:
        """Say which turns were stored in a window, scope by scope; see :func:`parkkeeper.memory.rebuild.ranges`."""
        if scope is not None:
            checked_name("scope", scope)
        with self._session.action("rebuild_ranges"):
            return rebuild.ranges(self._session, ingested_from, ingested_before, scope)

    def cancel_rebuild(self, scope: str) -> bool:
        """End the rebuild of `scope` that has not ended, and tell whether there was one; what it has replaced stays."""
        checked_name("scope", scope)
        refuse_open_transaction(self.connection, "cancel_rebuild")
        with self._session.action("cancel_rebuild"):
            return rebuild.cancel(self._session, scope)

    def rebuilds(self, scope: str | None = None, *, limit: int = 100) -> list[Rebuild]:
        """Return rebuilds of `scope` or of all, those that began last in front, and how far each is."""
        if scope is not None:
            checked_name("scope", scope)
        check_counts(limit=limit)
        with self._session.action("rebuilds"):
            return rebuild.rebuilds(self._session, scope, limit)

    def pause(self, scope: str | None = None, *, extractor: str | None = None) -> bool:
        """Let no turn of `scope` be claimed, or none for `extractor`, until it is resumed; turns in hand are finished.

        Parameters
        ----------
        scope, extractor
            One of the two. An extractor is named as it names itself, and is paused whatever its version.

        Returns
        -------
        bool
            Whether it was not paused already.
        """
        kind, name = control.chosen(scope, extractor)
        with self._session.action("pause"):
            return control.pause(self._session, kind, name)

    def resume(self, scope: str | None = None, *, extractor: str | None = None) -> bool:
        """Let turns be claimed again, with the arguments of :meth:`pause`; return whether it was paused."""
        kind, name = control.chosen(scope, extractor)
        with self._session.action("resume"):
            return control.resume(self._session, kind, name)

    def set_backlog_cap(self, cap: int | None, *, scope: str | None = None) -> None:
        """Set from which backlog on :meth:`append` is refused; at first there is no cap.

        See :func:`parkkeeper.memory.control.set_backlog_cap`.
        """
        if scope is not None:
            checked_name("scope", scope)
        check_optional_counts(cap=cap)
        with self._session.action("set_backlog_cap"):
            control.set_backlog_cap(self._session, cap, scope)

    def settings(self) -> MemorySettings:
        """Return which scopes and extractors are paused, and which backlogs have a cap."""
        with self._session.action("settings"):
            return control.settings(self._session)

    def circuits(self) -> list[Circuit]:
        """Return the circuit of each extractor that ever failed here, by name, version and identity.

        See ``docs/explanation/circuit.md``.
        """
        with self._session.action("circuits"):
            return circuit.circuits(self._session)

    def probe_now(self) -> int:
        """Let the next batch send a canary at once; return for how many open circuits a cool-down ended by that."""
        with self._session.action("probe_now"):
            return circuit.probe_now(self._session)

    def freshness(self, scope: str) -> Freshness:
        """Read how far the memory of `scope` reaches and what it leaves out, in one snapshot.

        The cost does not grow with the log. A scope without a turn is all zeros.
        """
        checked_name("scope", scope)
        with self._session.action("freshness"):
            return reading.freshness(self._session, scope)

    def turn_status(self, scope: str, log_offset: int) -> str:
        """Return what became of one turn: ``pending``, ``formed``, ``parked``, ``erased``, or ``unknown``.

        ``unknown`` means that the offset was never assigned.
        """
        checked_name("scope", scope)
        check_offset("log_offset", log_offset)
        with self._session.action("turn_status"):
            return reading.turn_status(self._session, scope, log_offset)

    def parked(
        self, scope: str | None = None, *, after: tuple[str, int] | None = None, limit: int = 100
    ) -> list[ParkedTurn]:
        """Return a page of parked turns, of one scope or of all, ordered by scope and offset.

        Parameters
        ----------
        after
            Scope and offset of the last turn of the page before.
        """
        if scope is not None:
            checked_name("scope", scope)
        check_place(after)
        check_counts(limit=limit)
        with self._session.action("parked"):
            return parking.parked(self._session, scope, after=after, limit=limit)

    def unpark(
        self,
        *,
        observation_ids: Iterable[int] | None = None,
        scope: str | None = None,
        error_class: str | None = None,
        older_than: timedelta | None = None,
        limit: int | None = None,
        max_park_count: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Put parked turns back into the backlog, as if never tried; `formed` goes back to before the first of them.

        Parameters
        ----------
        observation_ids, scope, error_class, older_than, max_park_count
            All that are given must hold: these turns, of this scope, parked for this class, parked at least this long
            ago, parked at most this often. With none given, every parked turn.
        limit
            The most turns to unpark, the longest parked first.
        dry_run
            Write nothing.

        Returns
        -------
        int
            How many turns were unparked, or would be.
        """
        if scope is not None:
            checked_name("scope", scope)
        if error_class is not None:
            parking.check_classes([error_class])
        parking.check_parked_for("older_than", older_than)
        check_optional_counts(limit=limit, max_park_count=max_park_count)
        ids = checked_ids(observation_ids)
        with self._session.action("unpark"):
            which = parking.Which(
                observation_ids=ids,
                scope=scope,
                classes=None if error_class is None else [error_class],
                older_than=older_than,
                limit=limit,
                max_park_count=max_park_count,
            )
            return parking.unpark(self._session, which, dry_run=dry_run).total()

    def sweep(self, policy: SweepPolicy = DEFAULT_POLICY, *, dry_run: bool = False) -> SweepOutcome:
        """Park turns at their cap, return claims that ran out, unpark what `policy` says, and count what is parked.

        Parameters
        ----------
        dry_run
            Write nothing: the figures say what would be done, and what is parked now.
        """
        with self._session.action("sweep"):
            return parking.sweep(self._session, policy, dry_run)

    def verify(self) -> list[Miscount]:
        """Compare the kept numbers with a count of the rows, in one snapshot; return those that differ: none should."""
        with self._session.action("verify"):
            return reading.miscounts(self._session)

    def broken_invariants(self) -> list[Broken]:
        """Ask the rows what is promised of them; see :func:`parkkeeper.memory.verify.broken_invariants`."""
        with self._session.action("verify"):
            return verify.broken_invariants(self._session)

    def recall(self, scope: str, query: str, *, limit: int = 10) -> Recall:
        """Find memories of `scope` that hold any word of `query`, best first, and how far the memory reaches.

        Parameters
        ----------
        query
            Words, 10,000 characters at most; nothing in them is an operator.
        """
        checked_name("scope", scope)
        check_counts(limit=limit)
        check_query(query)
        with self._session.action("recall"):
            return reading.recall(self._session, scope, query, limit=limit)

    def _append(
        self, scope: str, turns: Sequence[Mapping[str, Any]], where: Sequence[str], on_invalid: str
    ) -> list[Appended]:
        checked_name("scope", scope)
        checked = [check_turn(turn, place, on_invalid) for turn, place in zip(turns, where, strict=True)]
        if not checked:
            return []
        with self._session.action("append"):
            keyed = any(turn.idempotency_key is not None for turn in checked)
            return log.append(self._session, self._digest() if keyed else None, scope, checked)
