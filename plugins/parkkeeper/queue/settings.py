"""What a namespace decides for all of its queues, and a queue for itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row, tuple_row

from parkkeeper.database import retried, statements, without_rows
from parkkeeper.errors import InvalidArgument
from parkkeeper.names import checked_name
from parkkeeper.namespace import Namespace
from parkkeeper.queue.arguments import whole_number
from parkkeeper.queue.errors import UnknownQueue

#: Longer than this is a matter for dead letters: the floor's wheel of segments does not reach further.
MAX_FAILED_RETENTION = timedelta(days=35)

#: As good as for ever, and far from where Postgres's times end.
MAX_DEAD_LETTER_RETENTION = timedelta(days=36_500)

#: Each one is a lane of each priority, and a claim may have to look at all of them.
SHARDS = range(1, 65)

#: In place of a queue's retention: what holds when the queue says nothing.
DEFAULT = "default"

_DESTINATIONS = ("floor", "live")
_SQL = statements("queue/settings")


@dataclass(frozen=True, slots=True)
class NamespaceSettings:
    """What stands in the namespace's settings.

    Attributes
    ----------
    failed_retention_seconds
        How long a failed job stays retryable unless its queue says otherwise; 0: not beyond its slot.
    carry_to
        Where prune carries a failed job that must stay retryable: ``floor``, the floor segment that passes when its
        time is over; ``live``, the segment that takes new jobs, from which it is carried again a lap later.
    """

    failed_retention_seconds: int
    carry_to: str


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What stands in a queue's settings.

    Attributes
    ----------
    failed_retention_seconds
        How long a failed job of the queue stays retryable; None: as long as the namespace says.
    dead_letter
        Whether a job that fails for good is kept as a dead letter, outside of the ring.
    dead_letter_retention_seconds
        How long a dead letter is kept; None: until it is purged by hand.
    enqueue_shards
        Over how many lanes of each priority new jobs are spread.
    paused_at
        Since when no job of the queue is claimed; None: jobs are.
    """

    queue: str
    failed_retention_seconds: int | None
    dead_letter: bool
    dead_letter_retention_seconds: int | None
    enqueue_shards: int
    paused_at: datetime | None


def namespace_settings(connection: psycopg.Connection[Any], namespace: Namespace) -> NamespaceSettings:
    """Read the namespace's settings.

    Raises
    ------
    InvalidArgument
        A value that stands there is outside what its name allows.
    """
    with (
        without_rows(connection, namespace, "queue", "namespace_settings"),
        connection.cursor(row_factory=tuple_row) as cursor,
    ):
        stored: dict[str, str] = dict(cursor.execute(_SQL.render("namespace_settings", namespace)).fetchall())
    retention = stored.get("failed_retention", "")
    return NamespaceSettings(
        retention_seconds(
            "settings.failed_retention", int(retention) if retention.isdecimal() else retention
        ),
        checked_destination("settings.carry_to", stored.get("carry_to")),
    )


def queue_retentions(connection: psycopg.Connection[Any], namespace: Namespace) -> dict[str, int]:
    """Return, in seconds, how long failed jobs stay retryable in the queues that have decided for themselves."""
    with (
        without_rows(connection, namespace, "queue", "queue_retentions"),
        connection.cursor(row_factory=tuple_row) as cursor,
    ):
        return dict(cursor.execute(_SQL.render("retentions", namespace)).fetchall())


def set_queue(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    queue: str,
    *,
    failed_retention: timedelta | int | Literal["default"] | None = None,
    dead_letter: bool | None = None,
    dead_letter_retention: timedelta | int | Literal["default"] | None = None,
    enqueue_shards: int | None = None,
) -> QueueSettings:
    """Make the settings of `queue`, which need not have had a job yet, or change them.

    Parameters
    ----------
    failed_retention
        How long a failed job of this queue stays retryable, as a timedelta or in whole seconds; wins over the
        namespace's setting and over the argument of ``prune_oldest``. Zero: not beyond its slot.
        ``"default"``: what those say. None: as it was.
    dead_letter
        Whether a job that fails for good from now on is kept as a dead letter, outside of the ring, instead of as a
        failed job in it. What has failed already stays where it is. None: as it was, at first not.
    dead_letter_retention
        How long a dead letter is kept before ``purge_dead_letters`` may take it, as a timedelta or in whole seconds, at
        most 36,500 days. ``"default"``: until somebody purges it by hand. None: as it was, at first the default.
    enqueue_shards
        Over how many lanes of each priority new jobs are spread, 1 to 64, so that as many workers can claim at once
        without waiting for one another. Between shards the order of age is approximate. Jobs that were spread over more
        are claimed as before. None: as it was, at first one.

    Returns
    -------
    QueueSettings
        What holds now.

    Raises
    ------
    InvalidName, InvalidArgument
        Before anything is sent to the database.
    """
    if dead_letter is not None and not isinstance(dead_letter, bool):
        raise InvalidArgument(
            f"dead_letter {ascii(dead_letter)[:60]} is refused: True, False, or None for as it was"
        )
    values = {
        "queue": checked_name("queue", queue),
        "failed_retention_seconds": (
            None
            if failed_retention in (None, DEFAULT)
            else retention_seconds("failed_retention", failed_retention)
        ),
        "failed_retention_unset": failed_retention == DEFAULT,
        "dead_letter": dead_letter,
        "dead_letter_retention_seconds": (
            None
            if dead_letter_retention in (None, DEFAULT)
            else dead_letter_seconds("dead_letter_retention", dead_letter_retention)
        ),
        "enqueue_shards": (
            None if enqueue_shards is None else whole_number("enqueue_shards", enqueue_shards, SHARDS)
        ),
        "dead_letter_retention_unset": dead_letter_retention == DEFAULT,
    }
    return _changed(connection, namespace, "set_queue", values)[0]


def set_namespace(
    connection: psycopg.Connection[Any],
    namespace: Namespace,
    *,
    failed_retention: timedelta | int | None = None,
    carry_to: str | None = None,
) -> NamespaceSettings:
    """Change what holds for all queues that have no setting of their own.

    Parameters
    ----------
    failed_retention
        How long a failed job stays retryable, as a timedelta or in whole seconds, at most 35 days. Zero: not beyond its
        slot. It holds from the next prune on, for jobs that have failed already, too. None: as it was.
    carry_to
        Where the next prunes carry failed jobs, ``"floor"`` or ``"live"``; see :class:`NamespaceSettings`. What was
        carried before stays where it is until its time comes. None: as it was.

    Returns
    -------
    NamespaceSettings
        What holds now.

    Raises
    ------
    InvalidArgument
        Before anything is sent to the database.
    """
    values = {
        "failed_retention": (
            None if failed_retention is None else str(retention_seconds("failed_retention", failed_retention))
        ),
        "carry_to": None if carry_to is None else checked_destination("carry_to", carry_to),
    }
    statement = _SQL.render("set_namespace", namespace)
    with without_rows(connection, namespace, "queue", "set_namespace"):
        retried(connection, lambda: connection.execute(statement, values))
    return namespace_settings(connection, namespace)


def pause(connection: psycopg.Connection[Any], namespace: Namespace, queue: str) -> QueueSettings:
    """Let no job of `queue` be claimed until it is resumed.

    Jobs can be enqueued, cancelled and retried as before, and those that run are finished as before. Pausing a paused
    queue changes nothing.

    Returns
    -------
    QueueSettings
        With `paused_at`, since when it is paused.

    Raises
    ------
    UnknownQueue
        The queue never had a job and has no settings.
    InvalidName
        `queue` is no name for a queue.
    """
    return _switched(connection, namespace, "pause", queue)


def resume(connection: psycopg.Connection[Any], namespace: Namespace, queue: str) -> QueueSettings:
    """Let jobs of `queue` be claimed again; otherwise as :func:`pause`."""
    return _switched(connection, namespace, "resume", queue)


def _switched(
    connection: psycopg.Connection[Any], namespace: Namespace, action: str, queue: str
) -> QueueSettings:
    found = _changed(connection, namespace, action, {"queue": checked_name("queue", queue)})
    if not found:
        raise UnknownQueue(queue, namespace)
    return found[0]


def _changed(
    connection: psycopg.Connection[Any], namespace: Namespace, action: str, values: dict[str, Any]
) -> list[QueueSettings]:
    statement = _SQL.render(action, namespace)
    with (
        without_rows(connection, namespace, "queue", action),
        connection.cursor(row_factory=class_row(QueueSettings)) as cursor,
    ):
        return retried(connection, lambda: cursor.execute(statement, values).fetchall())


def retention_seconds(field: str, value: object) -> int:
    """Return a retention in seconds.

    Raises
    ------
    InvalidArgument
        `value` is no timedelta or number, is negative, has a fraction of a second or is longer than 35 days.
    """
    return _whole_seconds(field, value, MAX_FAILED_RETENTION, " (nothing is kept beyond its slot)")


def dead_letter_seconds(field: str, value: object) -> int:
    """Return the age of a dead letter in seconds.

    Raises
    ------
    InvalidArgument
        `value` is no timedelta or number, is negative, has a fraction of a second or is longer than 36,500 days.
    """
    return _whole_seconds(field, value, MAX_DEAD_LETTER_RETENTION, "")


def _whole_seconds(field: str, value: object, most: timedelta, zero_means: str) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        isinstance(seconds, int | float)
        and not isinstance(seconds, bool)
        and 0 <= seconds <= most.total_seconds()
        and seconds == int(seconds)
    ):
        return int(seconds)
    raise InvalidArgument(
        f"{field} {value!r} is refused: a timedelta or a number of whole seconds, from 0{zero_means} to "
        f"{most.days} days"
    )


def checked_destination(field: str, value: object) -> str:
    """Return where failed rows are carried; refuse a place that does not exist."""
    if isinstance(value, str) and value in _DESTINATIONS:
        return value
    raise InvalidArgument(f"{field} {value!r} is refused: one of {', '.join(_DESTINATIONS)}")
