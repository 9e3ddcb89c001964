"""Bring the tables of a namespace, or of many, to what this package knows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from parkkeeper import migrations
from parkkeeper.errors import InvalidArgument
from parkkeeper.migrations.fanout import check_pattern
from parkkeeper.migrations.files import check
from parkkeeper.namespace import Namespace
from parkkeeper.operators import arguments
from parkkeeper.operators.base import Figures, ParkkeeperOperator

_SHOWN = 5


class MigrateOperator(ParkkeeperOperator):
    """Apply the migrations of one family that namespaces lack, each in a transaction of its own.

    A schema is made if it is missing. Two runs at once are safe. A namespace that fails does not keep the others from
    being done; the task fails in the end and its log names each with the reason. Another try goes on with what is
    left, and there is one when it may succeed.

    Figures: `outcome` (``migrated``, or ``noop`` when nothing was lacking), `family`, `namespaces` (how many),
    `applied` (how many migrations, of all of them), `version` (the newest that there is now; of several namespaces,
    where that is least). With `dry_run`, what would be, and the version that there is.

    Parameters
    ----------
    family
        ``queue`` or ``memory``.
    namespaces
        Several namespaces instead of one: a list, or its form in JSON. May be mapped over lists.
    pattern
        Instead of names: those that have the family and are called like this, with ``*`` and ``?``.
    query
        Instead of names: a SELECT of one column that returns them.
    target
        The last version to apply; None: all.
    queue_slots
        How many slots the queue's ring is made with, 4 to 256; means nothing once it is made.
    canary
        How many namespaces to do first; unless all of them succeed, no other is tried.
    parallel
        How many namespaces at once, 1 to 4.
    on_error
        ``continue`` with the other namespaces after a failure, or ``stop``.
    dry_run
        Only look at what would be applied.
    lock_timeout
        How long a statement waits for a lock, and writers behind it: a timedelta or seconds.
    """

    template_fields: Sequence[str] = (
        *ParkkeeperOperator.template_fields,
        *("family", "namespaces", "pattern", "query", "target", "queue_slots"),
        *("canary", "parallel", "on_error", "is_dry_run", "lock_timeout"),
    )
    template_fields_renderers = {"namespaces": "json", "query": "sql"}  # noqa: RUF012
    outcomes = ("migrated", "noop")

    def __init__(
        self,
        *,
        family: str,
        namespace: str | None = None,
        namespaces: Sequence[str] | str | None = None,
        pattern: str | None = None,
        query: str | None = None,
        target: int | str | None = None,
        queue_slots: int | str = 16,
        canary: int | str = 0,
        parallel: int | str = migrations.MOST_AT_ONCE,
        on_error: str = "continue",
        dry_run: bool | str = False,
        lock_timeout: timedelta | float | str = migrations.Patience().lock_timeout,  # noqa: B008 (frozen)
        **kwargs: Any,
    ) -> None:
        super().__init__(namespace=namespace, **kwargs)
        self.family, self.target, self.queue_slots = family, target, queue_slots
        self.namespaces, self.pattern, self.query = namespaces, pattern, query
        self.canary, self.parallel, self.on_error = canary, parallel, on_error
        # Not self.dry_run: that is a method of every operator.
        self.is_dry_run, self.lock_timeout = dry_run, lock_timeout

    def work(self, context: Context) -> Figures:
        """Validate the arguments, migrate, and raise if any namespace failed."""
        slots = migrations.QUEUE_SLOTS
        queue_slots = arguments.whole("queue_slots", self.queue_slots, slots.start, slots.stop - 1)
        course = migrations.Course(
            parallel=arguments.whole("parallel", self.parallel, 1),
            canary=arguments.whole("canary", self.canary, 0),
            on_error=self.on_error,
            dry_run=arguments.flag("dry_run", self.is_dry_run),
        )
        target = arguments.optional_whole("target", self.target, 1)
        check(self.family, target, queue_slots)
        names = self._names()
        pattern = arguments.optional_text(self.pattern)
        if pattern is not None:
            check_pattern(pattern)
        patience = migrations.Patience(arguments.duration("lock_timeout", self.lock_timeout))
        connect = self._sessions(context)
        if names is None:
            with connect() as connection:
                names = migrations.find_namespaces(
                    connection,
                    self.family,
                    pattern=pattern,
                    query=arguments.optional_text(self.query),
                )
        found = migrations.migrate_all(
            connect,
            names,
            self.family,
            target=target,
            queue_slots=queue_slots,
            patience=patience,
            course=course,
        )
        self._raise_for(found)
        applied = sum(one.applied for one in found.namespaces)
        return {
            "outcome": "migrated" if found.count("migrated") else "noop",
            "family": self.family,
            "namespaces": len(found.namespaces),
            "applied": applied,
            "version": min((one.version or 0 for one in found.namespaces), default=None),
        }

    def _names(self) -> list[str] | None:
        """Return the names that were given; None if they are to be found."""
        ways = (self.namespace, self.namespaces, self.pattern, self.query)
        if sum(given not in (None, "", "None") for given in ways) != 1:
            raise InvalidArgument("give one of namespace, namespaces, pattern and query")
        if arguments.given(self.namespace):
            return [Namespace.of(str(self.namespace)).name]
        if not arguments.given(self.namespaces):
            return None
        return [Namespace.of(name).name for name in arguments.listed("namespaces", self.namespaces)]

    def _raise_for(self, found: migrations.FanOut) -> None:
        for one in found.failures:
            self.log.error("Namespace %s failed: %s", one.namespace, one.reason)
        if not found.failures and not found.stopped:
            return
        named = "; ".join(f"{one.namespace}: {one.reason}" for one in found.failures[:_SHOWN])
        message = (
            f"{len(found.failures)} of {len(found.namespaces)} namespaces failed, "
            f"{found.count('not_tried')} were not tried: {named}"
        )
        retryable = any(one.retryable for one in found.failures)
        raise AirflowException(message) if retryable else AirflowFailException(message)
