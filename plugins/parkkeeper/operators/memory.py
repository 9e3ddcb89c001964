"""Form turns into memory, and see to those that are parked.

Both operators push `outcome`, `formed`, `failed`, `parked`, `deferred` (what this task did), `parked_total`
and `backlog` (what the namespace holds after it), and each some more; see ``docs/reference/xcom.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from parkkeeper import maintenance
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore, RebuildOutcome, ScopeRange, SweepPolicy
from parkkeeper.memory.breaker import PROVIDER_CLASSES
from parkkeeper.memory.extractors import Extractor, load
from parkkeeper.namespace import Namespace
from parkkeeper.operators import arguments
from parkkeeper.operators.base import Figures, ParkkeeperOperator, Work
from parkkeeper.operators.totals import totals

#: Where a rebuild keeps, from one try to the next, when it began.
_BEGAN = "began"


def _extractor(name: str, llm_conn_id: Any) -> Extractor:
    conn_id = arguments.optional_text(llm_conn_id)
    if conn_id is None:
        return load(name)
    if name != "llm":
        raise InvalidArgument(f"llm_conn_id is refused: extractor {name!r} has no use for it")
    # Here and not above: the hook's imports would double what a DAG file takes to parse.
    from parkkeeper.hooks.llm import llm_extractor

    return llm_extractor(conn_id)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A range of one scope as it was asked for: up to the last turn when `to_offset` is None."""

    scope: str
    from_offset: int
    to_offset: int | None


class FormationBatchOperator(ParkkeeperOperator):
    """Form one batch of the turns that are due.

    The retries of the task are for the database; a turn that fails spends an attempt of its own and fails no
    task. A batch that is killed hands back the turn in its hands.

    `outcome` is ``formed`` if any turn was, ``none_formed`` if turns were tried and none was, ``circuit_open`` if
    none was tried because the provider does not answer, ``paused`` if the scope or the extractor is, ``noop`` if none
    was due. Further figures: `discarded`, `circuit`.

    Parameters
    ----------
    extractor
        The name of an extractor: ``chunks``, ``llm``, or another that an installed distribution registers.
    llm_conn_id
        For the extractor ``llm``: the Airflow connection with its address (host), key (password) and model (extra).
        None: what the environment of the worker names.
    scope
        Only this scope; None: all, fairly.
    shard, shards
        Of all scopes only a part: its number, from 0, and how many parts there are. So tasks share the scopes out.
    limit
        How many turns at most.
    max_attempts
        After how many failed attempts a turn is parked.
    turn_budget
        How long one extraction may take: a timedelta or seconds.
    concurrency
        How many extractions run at once.
    """

    template_fields: Sequence[str] = (
        *ParkkeeperOperator.template_fields,
        "extractor",
        "llm_conn_id",
        "scope",
        "shard",
        "shards",
        "limit",
        "max_attempts",
        "turn_budget",
        "concurrency",
    )
    outcomes = ("formed", "none_formed", "circuit_open", "paused", "noop")
    requires = "memory"

    def __init__(
        self,
        *,
        extractor: str = "chunks",
        llm_conn_id: str | None = None,
        scope: str | None = None,
        shard: int | str = 0,
        shards: int | str = 1,
        limit: int | str = 100,
        max_attempts: int | str = 6,
        turn_budget: timedelta | float | str = timedelta(minutes=5),
        concurrency: int | str = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.extractor = extractor
        self.llm_conn_id = llm_conn_id
        self.scope = scope
        self.shard = shard
        self.shards = shards
        self.limit = limit
        self.max_attempts = max_attempts
        self.turn_budget = turn_budget
        self.concurrency = concurrency

    def prepare(self, namespace: Namespace) -> Work:
        """Validate the arguments and return the batch."""
        extractor = _extractor(self.extractor, self.llm_conn_id)
        options: dict[str, Any] = {
            "scope": arguments.optional_name("scope", self.scope),
            "shard": (arguments.whole("shard", self.shard, 0), arguments.whole("shards", self.shards, 1)),
            "limit": arguments.whole("limit", self.limit, 1),
            "max_attempts": arguments.whole("max_attempts", self.max_attempts, 1),
            "turn_budget": arguments.duration("turn_budget", self.turn_budget),
            "concurrency": arguments.whole("concurrency", self.concurrency, 1),
        }

        def work(connection: psycopg.Connection[Any]) -> Figures:
            done = MemoryStore(connection, namespace).form_batch(extractor, **options)
            tried = done.formed + done.failed + done.deferred + done.discarded
            idle = "paused" if done.paused else "circuit_open" if done.circuit == "open" else "noop"
            now = totals(connection, namespace, "memory_totals")
            return {
                "outcome": "formed" if done.formed else "none_formed" if tried else idle,
                "formed": done.formed,
                "failed": done.failed,
                "parked": done.parked,
                "deferred": done.deferred,
                "parked_total": now["parked"],
                "backlog": now["backlog"],
                "discarded": done.discarded,
                "circuit": done.circuit,
            }

        return work


class ParkSweepOperator(ParkkeeperOperator):
    """Park what has spent its attempts, hand back expired claims, unpark what the provider was to blame for.

    `outcome` is ``swept`` if anything of that was done, else ``noop``; with `dry_run` if it would be. Further figures:
    `unparked`, `claims_returned`.

    Parameters
    ----------
    scope
        Only this scope; None: all.
    unpark_classes
        Which turns are unparked, by class of failure: one, several, or none, also as a list in JSON; None: the
        provider's classes.
    parked_for
        Turns that were parked less than this ago stay parked: a timedelta or seconds.
    unpark_limit
        How many turns are unparked at most.
    max_park_count
        A turn that was parked more often than this stays parked.
    max_attempts
        After how many failed attempts a turn is parked: as many as the batches are given.
    dry_run
        Write nothing; the deltas say what would be done.
    """

    template_fields: Sequence[str] = (
        *ParkkeeperOperator.template_fields,
        "scope",
        "unpark_classes",
        "parked_for",
        "unpark_limit",
        "max_park_count",
        "max_attempts",
        "is_dry_run",
    )
    template_fields_renderers = {"unpark_classes": "json"}  # noqa: RUF012
    outcomes = ("swept", "noop")
    requires = "memory"

    def __init__(
        self,
        *,
        scope: str | None = None,
        unpark_classes: str | Collection[str] | None = None,
        parked_for: timedelta | float | str | None = None,
        unpark_limit: int | str = 10_000,
        max_park_count: int | str = 3,
        max_attempts: int | str = 6,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.scope = scope
        self.unpark_classes = unpark_classes
        self.parked_for = parked_for
        self.unpark_limit = unpark_limit
        self.max_park_count = max_park_count
        self.max_attempts = max_attempts
        # Not self.dry_run: that is a method of every operator.
        self.is_dry_run = dry_run

    def prepare(self, namespace: Namespace) -> Work:
        """Validate the arguments and return the sweep."""
        classes = self.unpark_classes if arguments.given(self.unpark_classes) else PROVIDER_CLASSES
        if isinstance(classes, str) and classes.lstrip().startswith("["):
            classes = arguments.listed("unpark_classes", classes)
        policy = SweepPolicy(
            max_attempts=arguments.whole("max_attempts", self.max_attempts, 1),
            unpark_classes=(classes,) if isinstance(classes, str) else tuple(classes or ()),
            max_park_count=arguments.whole("max_park_count", self.max_park_count, 1),
            scope=arguments.optional_name("scope", self.scope),
            parked_for=arguments.optional_duration("parked_for", self.parked_for),
            unpark_limit=arguments.whole("unpark_limit", self.unpark_limit, 1),
        )
        dry_run = arguments.flag("dry_run", self.is_dry_run)

        def work(connection: psycopg.Connection[Any]) -> Figures:
            done = MemoryStore(connection, namespace).sweep(policy, dry_run=dry_run)
            return {
                "outcome": "swept" if done.parked or done.unparked or done.claims_returned else "noop",
                "formed": 0,
                "failed": 0,
                "parked": done.parked,
                "deferred": 0,
                "parked_total": done.parked_total,
                "backlog": totals(connection, namespace, "memory_totals")["backlog"],
                "unparked": done.unparked,
                "claims_returned": done.claims_returned,
            }

        return work


class RebuildOperator(ParkkeeperOperator):
    """Form turns again with another extractor, batch after batch until it is done.

    Which turns: a range of offsets of one scope, or those that were stored in a window, of one scope or of all of
    them. A task that is killed, or whose database fails, goes on where it was when it is tried again with the same
    arguments; of a window it leaves out the scopes that the same run has done with. One that succeeded and is cleared
    does all of it again.

    `outcome` is ``rebuilt`` when all is done with, ``noop`` when there is nothing to do, ``circuit_open`` when the
    provider does not answer: the task fails then, with its figures, and may be retried. Further figures, of the whole
    rebuild: `scopes`, `rebuilt`, `failed`, `skipped`, `through_offset`, `parked_total`, `backlog`.

    Parameters
    ----------
    scope
        Whose memory; with a window None means every scope.
    extractor
        The name of an extractor: ``chunks``, ``llm``, or another that an installed distribution registers.
    llm_conn_id
        For the extractor ``llm``: see :class:`FormationBatchOperator`.
    from_offset
        The first turn; None: the first there is.
    to_offset
        The last turn; None: the last there is when the rebuild begins.
    ingested_from, ingested_before
        Instead of offsets: turns that were stored in this window, the second bound exclusive. Times with a zone, or
        their form in ISO 8601.
    turn_budget
        How long one extraction may take: a timedelta or seconds.
    concurrency
        How many extractions run at once.
    """

    template_fields: Sequence[str] = (
        *ParkkeeperOperator.template_fields,
        *(
            "scope",
            "extractor",
            "llm_conn_id",
            "from_offset",
            "to_offset",
            "ingested_from",
            "ingested_before",
        ),
        *("turn_budget", "concurrency"),
    )
    outcomes = ("rebuilt", "circuit_open", "noop")
    requires = "memory"

    _kept: Any = None

    def __init__(
        self,
        *,
        scope: str | None = None,
        extractor: str = "chunks",
        llm_conn_id: str | None = None,
        from_offset: int | str | None = None,
        to_offset: int | str | None = None,
        ingested_from: datetime | str | None = None,
        ingested_before: datetime | str | None = None,
        turn_budget: timedelta | float | str = timedelta(minutes=5),
        concurrency: int | str = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.scope = scope
        self.extractor, self.llm_conn_id = extractor, llm_conn_id
        self.from_offset, self.to_offset = from_offset, to_offset
        self.ingested_from, self.ingested_before = ingested_from, ingested_before
        self.turn_budget, self.concurrency = turn_budget, concurrency

    def work(self, context: Context) -> Figures:
        """Rebuild, and know what an earlier try of this run has done with."""
        self._kept = context.get("task_state_store")
        return super().work(context)

    def prepare(self, namespace: Namespace) -> Work:
        """Validate the arguments and return the rebuild."""
        extractor = _extractor(self.extractor, self.llm_conn_id)
        concurrency = arguments.whole("concurrency", self.concurrency, 1)
        options: dict[str, Any] = {
            "turn_budget": arguments.duration("turn_budget", self.turn_budget),
            "concurrency": concurrency,
            "limit": max(100, concurrency),
        }
        scope = arguments.optional_name("scope", self.scope)
        first = arguments.optional_whole("from_offset", self.from_offset, 0)
        last = arguments.optional_whole("to_offset", self.to_offset, 0)
        since, before = arguments.window(
            "ingested_from", self.ingested_from, "ingested_before", self.ingested_before
        )
        windowed = since is not None or before is not None
        if windowed and (first is not None or last is not None):
            raise InvalidArgument("give from_offset and to_offset, or ingested_from and ingested_before")
        if scope is None and not windowed:
            raise InvalidArgument("give scope, or ingested_from and ingested_before")

        def work(connection: psycopg.Connection[Any]) -> Figures:
            store = MemoryStore(connection, namespace)
            if windowed:
                began = self._began(connection)
                chosen = store.rebuild_ranges(since, before, scope=scope)
                done = []
                for one in chosen:
                    done.append(
                        self._done_before(store, extractor, one, began)
                        or self._rebuild(store, extractor, one, options)
                    )
                    if not done[-1].done:
                        break
            else:
                done = [self._rebuild(store, extractor, _Asked(str(scope), first or 0, last), options)]
            now = totals(connection, namespace, "memory_totals")
            covered = [one for one in done if one.rebuilt or one.failed or one.skipped]
            unfinished = any(not one.done for one in done)
            if windowed and not unfinished:
                # Whoever clears the task now wants all of it again.
                self._kept.delete(_BEGAN)
            return {
                "outcome": "circuit_open" if unfinished else "rebuilt" if covered else "noop",
                "scopes": len(covered),
                "rebuilt": sum(one.rebuilt for one in done),
                "failed": sum(one.failed for one in done),
                "skipped": sum(one.skipped for one in done),
                "through_offset": None if windowed else done[0].through_offset,
                "parked_total": now["parked"],
                "backlog": now["backlog"],
            }

        return work

    def failure(self, figures: Figures) -> AirflowException | None:
        """Fail when the provider does not answer: what is left would be taken for done."""
        if figures["outcome"] != "circuit_open":
            return None
        return AirflowException("the provider does not answer: another try goes on where this one stopped")

    def _rebuild(
        self, store: MemoryStore, extractor: Extractor, one: ScopeRange | _Asked, options: dict[str, Any]
    ) -> RebuildOutcome:
        while True:
            done = store.rebuild(
                one.scope, extractor, from_offset=one.from_offset, to_offset=one.to_offset, **options
            )
            if done.done or done.circuit == "open":
                return done
            self.log.info("Scope %s: rebuilt through offset %d", one.scope, done.through_offset)

    def _began(self, connection: psycopg.Connection[Any]) -> datetime:
        """Return when the first try of this run began, by the clock of the database, which the rebuilds have too."""
        if kept := self._kept.get(_BEGAN):
            return datetime.fromisoformat(kept)
        now = maintenance.database_time(connection)
        self._kept.set(_BEGAN, now.isoformat())
        return now

    def _done_before(
        self, store: MemoryStore, extractor: Extractor, one: ScopeRange, began: datetime
    ) -> RebuildOutcome | None:
        """Return what an earlier try of this run made of a range, if it was done with it: that was paid for."""
        for last in store.rebuilds(one.scope, limit=1):
            same = (last.extractor, last.version) == (extractor.name, extractor.version)
            covers = (last.from_offset, last.to_offset) == (one.from_offset, one.to_offset)
            if same and covers and last.started_at >= began and last.state == "done":
                return RebuildOutcome(last.rebuilt, last.failed, last.skipped, last.through_offset, True)
        return None


class FreshnessOperator(ParkkeeperOperator):
    """Say how far the memory of a namespace reaches, over all its scopes and in one snapshot.

    Figures: `outcome` (``fresh`` when every scope is caught up, else ``behind``), `scopes`, `scopes_behind`,
    and in turns `stored`, `formed`, `erased`, `parked_total`, `backlog`.
    """

    outcomes = ("fresh", "behind")
    requires = "memory"
    announces = False

    def prepare(self, namespace: Namespace) -> Work:
        """Return the reading; there is nothing to validate."""

        def work(connection: psycopg.Connection[Any]) -> Figures:
            now = totals(connection, namespace, "memory_totals")
            parked = now.pop("parked")
            return {
                "outcome": "behind" if now["scopes_behind"] else "fresh",
                "parked_total": parked,
                **now,
            }

        return work
