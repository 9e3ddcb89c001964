"""What the methods of :class:`parkkeeper.memory.MemoryStore` return: frozen, and free of personal data but for recall.

See ``docs/explanation/memory.md`` for what each number means and does not mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a turn stands: `log_offset` counts from 0 without gaps in each scope.

    `created` is False when an earlier append with the same idempotency key had stored this very turn.
    """

    observation_id: int
    scope: str
    log_offset: int
    created: bool


@dataclass(frozen=True, slots=True)
class FormationOutcome:
    """What one batch did, in turns.

    `failed` counts attempts that failed and were not deferred, among them those that ended in a park; `parked` counts
    these. `deferred` attempts failed and were not spent: the provider asked to wait, or its canary failed. `discarded`
    results came for a turn that was erased, parked or taken over meanwhile. `memories` were stored. `backlog` is what
    is still to be formed, of the scope that was asked for or of the namespace. `circuit` is ``open`` when the batch
    ended because the provider does not answer, else ``closed``. `paused` says that the extractor is paused, or the
    scope that was asked for; then no turn is claimed.
    """

    formed: int
    failed: int
    parked: int
    deferred: int
    memories: int
    backlog: int
    discarded: int = 0
    circuit: str = "closed"
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Circuit:
    """Whether one extractor's provider answers; it exists once the extractor has failed.

    Attributes
    ----------
    identity
        Which of several providers, as the extractor says, e.g. its connection or model; "" when it says nothing.
    state
        ``closed``: turns are tried. ``open``: the canary failed, and until it succeeds no turn is.
    opened_at
        Since when it is open; None when it is closed.
    next_probe_at
        From when on the next batch sends a canary; None when it is closed.
    probing
        Whether a canary is on its way right now.
    error_class
        Of which kind the last canary's failure was, while it is open.
    failures
        How many canaries in a row have failed, while it is open.
    failing
        How many turns have failed since the last success or canary.
    closed_at
        When it was last closed; None when it was never open.
    canaries
        How many canaries were ever sent.
    """

    extractor: str
    version: str
    identity: str
    state: str
    opened_at: datetime | None
    next_probe_at: datetime | None
    probing: bool
    error_class: str | None
    failures: int
    failing: int
    closed_at: datetime | None
    canaries: int


@dataclass(frozen=True, slots=True)
class Freshness:
    """How far the memory of a scope reaches, in one snapshot.

    Attributes
    ----------
    stored
        Turns ever appended: the last assigned offset + 1.
    formed
        Every turn up to this offset is formed, erased, or one of the parked exceptions; None when not even offset 0
        is. Caught up means ``formed == stored - 1``.
    formed_strict
        The same with parked turns counted as not formed.
    parked
        How many turns are parked.
    parked_ranges
        Where they are: pairs of first and last offset, ascending; incomplete when `truncated`.
    oldest_parked_at
        Since when the longest parked turn waits; None when none is parked.
    backlog
        Turns that are neither formed nor parked nor erased.
    by_class
        How many turns are parked for each class of error.
    epoch
        Grows whenever `formed` may have gone down, so that a number read before is no lower bound any more, and when a
        rebuild has replaced memory.
    erased
        Offsets that were assigned and have no turn any more.
    paused_at
        Since when formation leaves the scope alone; None when it does not.
    """

    scope: str
    stored: int
    formed: int | None
    formed_strict: int | None
    parked: int
    parked_ranges: tuple[tuple[int, int], ...]
    truncated: bool
    oldest_parked_at: datetime | None
    backlog: int
    by_class: Mapping[str, int]
    epoch: int
    erased: int
    paused_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ScopeSettings:
    """What was decided about one scope: since when it is paused, and the cap of its backlog; None: neither."""

    scope: str
    paused_at: datetime | None
    backlog_cap: int | None


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What people have decided about a memory.

    Attributes
    ----------
    backlog_cap
        Of the namespace, in turns; None: no cap.
    scopes
        Those for which something is decided, by name.
    paused_extractors
        Since when each is paused, by name.
    """

    backlog_cap: int | None
    scopes: Sequence[ScopeSettings]
    paused_extractors: Mapping[str, datetime]


@dataclass(frozen=True, slots=True)
class ParkedTurn:
    """One parked turn; never its content, its subject or the text of the error."""

    observation_id: int
    scope: str
    log_offset: int
    attempts: int
    park_count: int
    error_class: str
    parked_at: datetime


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """What a sweep did (`parked`, `unparked`, `claims_returned`) and what the namespace holds after it.

    `parked_total` and `by_class` count the turns that are parked now, and so does `by_scope` for the 100 scopes that
    have the most. `unparked_by_class` splits `unparked`. After a dry run the first three say what would be done.
    """

    parked: int
    unparked: int
    claims_returned: int
    parked_total: int
    by_class: Mapping[str, int]
    unparked_by_class: Mapping[str, int]
    by_scope: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Miscount:
    """A kept number of a scope that is not what a count of the rows says; there should be none."""

    scope: str
    name: str
    kept: int
    counted: int


@dataclass(frozen=True, slots=True)
class ErasureReceipt:
    """What an erasure deleted and what was left of it, by kind of row, counted in the transaction that deleted.

    `clean` says that nothing was left. The receipt is kept in ``erasure_request`` under `request_id`.

    `deleted_now` is not kept: how many of the `deleted` rows this very call has deleted. The others are those of
    earlier tries of a request, or of another session that carried it out at the same moment.
    """

    request_id: UUID
    deleted: Mapping[str, int]
    residual: Mapping[str, int]
    clean: bool
    deleted_now: Mapping[str, int] = field(compare=False)


@dataclass(frozen=True, slots=True)
class NamespaceReceipt:
    """What the memory of a namespace held when it was dropped. It is kept nowhere else.

    Attributes
    ----------
    dropped
        Rows by kind: `scope`, `observation` and how many of them were `parked`, `turn_message`, `memory`,
        `idempotency_digest`, and `erasure_request`, the receipts of earlier erasures, which are gone too.
    schema_dropped
        False when the schema stays, because a queue is in it.
    """

    namespace: str
    reason: str
    dropped: Mapping[str, int]
    schema_dropped: bool


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """An erasure that was asked for: which turns it is about, without naming anybody, and what became of it.

    Attributes
    ----------
    scope
        Only this scope; None: every one.
    by_subject, by_ids
        Whether it is about one person's turns, and about turns that it names.
    turns
        How many turns meet its conditions now; 0 once it has been carried out.
    receipt
        None: not carried out yet.
    """

    request_id: UUID
    requested_at: datetime
    reason: str
    scope: str | None
    by_subject: bool
    by_ids: bool
    turns: int
    receipt: ErasureReceipt | None


@dataclass(frozen=True, slots=True)
class RebuildOutcome:
    """How far a rebuild is, in turns and since it began, whoever worked on it.

    Attributes
    ----------
    rebuilt
        Turns whose memory is the new extractor's now, among them those that were parked.
    failed
        Turns that it could not form: they keep the memory that they had, or stay parked.
    skipped
        Offsets that were passed over: turns that are still to be formed, and erased ones. `rebuilt`, `failed` and
        `skipped` add up to the offsets from the first one to `through_offset`.
    through_offset
        All turns up to this offset are done with; one less than the first offset before that.
    done
        Whether there is nothing left to do.
    circuit
        ``open`` when this call ended because the provider does not answer, else ``closed``.
    """

    rebuilt: int
    failed: int
    skipped: int
    through_offset: int
    done: bool
    circuit: str = "closed"


@dataclass(frozen=True, slots=True)
class ScopeRange:
    """The turns of one scope that a window has, from the first to the last, both included."""

    scope: str
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A rebuild of one scope, as it stands.

    Attributes
    ----------
    through_offset
        All turns from `from_offset` to here are done with.
    state
        ``running``: somebody works on it. ``waiting``: whoever calls goes on with it. ``done``, or ``cancelled``.
    failed_offsets
        Which turns failed, ascending; the first 1,000.
    ended_at
        None while it is running or waiting.
    """

    scope: str
    extractor: str
    version: str
    from_offset: int
    to_offset: int
    through_offset: int
    state: str
    rebuilt: int
    failed: int
    skipped: int
    failed_offsets: Sequence[int]
    started_at: datetime
    updated_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class RecalledMemory:
    """One memory that a query found. It holds personal data: keep `text` out of logs and XCom."""

    memory_id: int
    observation_id: int
    log_offset: int
    occurred_at: datetime
    kind: str
    text: str = field(repr=False)
    rank: float
    extractor: str
    extractor_version: str


@dataclass(frozen=True, slots=True)
class Recall:
    """What a query found, best first, and how far the memory reached just before it was asked."""

    memories: tuple[RecalledMemory, ...]
    freshness: Freshness
