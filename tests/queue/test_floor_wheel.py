"""The wheel of floor segments, turned for 150 days: arithmetic, with the segments that the database names."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parkkeeper.queue import QueueStorage
from ringside import query

HOUR, DAY = 3600, 86_400
DAYS = 150
#: A job of each queue fails every 20 min; it is carried when its slot is pruned; maintenance comes every 5 min.
FAILURES, CARRIED_AFTER, MAINTENANCE = 1200, 600, 300
EPOCH = 1_700_000_000

Row = tuple[int, int, int]  # when it is carried, when it is past the floor, the segment


def carried_rows(storage: QueueStorage, retentions: Sequence[int]) -> list[Row]:
    """Return the rows that are carried, in order of time, each with the segment that takes it."""
    return query(
        storage,
        "SELECT failed_at + %s, failed_at + retention,"
        "       {ns}.floor_segment(to_timestamp(failed_at + retention), to_timestamp(failed_at + %s))"
        "  FROM generate_series(%s::bigint, %s::bigint, %s::bigint) AS failed_at, unnest(%s::bigint[]) AS retention"
        " ORDER BY failed_at, retention",
        CARRIED_AFTER,
        CARRIED_AFTER,
        EPOCH,
        EPOCH + DAYS * DAY,
        FAILURES,
        list(retentions),
    )


def dropped_at(rows: list[Row]) -> list[tuple[Row, int]]:
    """Turn the wheel: each row with the time at which the segment that held it was truncated, if that came."""
    held: dict[int, list[Row]] = {}
    newest: dict[int, int] = {}
    dropped: list[tuple[Row, int]] = []
    coming = iter(rows)
    row = next(coming, None)
    for now in range(EPOCH, EPOCH + DAYS * DAY, MAINTENANCE):
        while row is not None and row[0] <= now:
            held.setdefault(row[2], []).append(row)
            newest[row[2]] = max(newest.get(row[2], 0), row[1])
            row = next(coming, None)
        for segment in [segment for segment, until in newest.items() if until < now]:
            dropped += [(gone, now) for gone in held.pop(segment)]
            del newest[segment]
    return dropped


@pytest.mark.parametrize(
    "retentions",
    [
        pytest.param([HOUR, 6 * HOUR, 72 * HOUR, 30 * DAY], id="four floors together"),
        pytest.param([35 * DAY], id="the longest floor"),
        pytest.param([HOUR], id="the shortest floor"),
    ],
)
def test_rows_stay_less_than_half_as_long_again_as_their_floor(
    storage: QueueStorage, retentions: list[int]
) -> None:
    rows = carried_rows(storage, retentions)
    dropped = dropped_at(rows)

    assert all(at > until for (_, until, _), at in dropped), "a row was dropped inside its floor"
    for retention in retentions:
        kept = [
            (at - carried_at) + CARRIED_AFTER
            for (carried_at, until, _), at in dropped
            if until - carried_at + CARRIED_AFTER == retention
        ]
        assert len(kept) > 0.6 * DAYS * DAY / FAILURES, "segments of this floor do not come free"
        assert sum(kept) / len(kept) < 1.25 * retention
        assert max(kept) < 1.5 * retention


def test_each_row_has_one_of_twenty_four_segments_by_what_is_left_of_its_life(storage: QueueStorage) -> None:
    found = query(
        storage,
        "SELECT min(segment), max(segment)"
        "  FROM unnest(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS level (shortest, longest, place),"
        "       generate_series(0, 200) AS step,"
        "       LATERAL (SELECT shortest + (longest - shortest) * step / 200 AS seconds) AS life,"
        "       LATERAL (SELECT {ns}.floor_segment(now() + make_interval(secs => seconds), now()) AS segment) AS found"
        " GROUP BY place ORDER BY place",
        [0, HOUR + 1, 8 * HOUR + 1, 80 * HOUR + 1],
        [HOUR, 8 * HOUR, 80 * HOUR, 35 * DAY],
    )

    levels = [range(-6, 0), range(-12, -6), range(-18, -12), range(-24, -18)]
    assert [low in level and high in level for (low, high), level in zip(found, levels, strict=True)] == [
        True
    ] * 4
