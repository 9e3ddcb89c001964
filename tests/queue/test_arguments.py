"""What a job may be made of: nothing that breaks a rule reaches the database, nor an error's message."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from psycopg import sql

from copies import new_name
from parkkeeper import database
from parkkeeper.errors import InvalidArgument, InvalidName
from parkkeeper.migrations import migrate
from parkkeeper.queue import QueueStorage, enqueue
from ringside import query

SECRET = "Jo's number is 4711"


@pytest.fixture(scope="module")
def storage(server_dsn: str) -> Iterator[QueueStorage]:
    """One namespace for all tests here: what is refused leaves nothing behind."""
    name = new_name()
    with database.connect(server_dsn) as connection:
        migrate(connection, name, "queue", queue_slots=4)
        yield QueueStorage(connection, name)
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


@pytest.fixture(autouse=True)
def emptied(storage: QueueStorage) -> Iterator[None]:
    """Empty the ring between tests."""
    yield
    query(storage, "TRUNCATE {ns}.ready_entries, {ns}.done_entries, {ns}.deferred_jobs, {ns}.queue_lanes")


def rows(storage: QueueStorage) -> int:
    return query(
        storage,
        "SELECT (SELECT count(*) FROM {ns}.ready_entries) + (SELECT count(*) FROM {ns}.deferred_jobs)"
        " + (SELECT count(*) FROM {ns}.queue_lanes)",
    )[0][0]


HOSTILE = [
    "'; DROP TABLE jobs; --",
    "\"quoted\" and 'single'",
    "{schema}.ready_entries",
    "%(queue)s %s %%",
    "$1 $function$ \\",
    "purée ☂ 作業 𝔘",
    "a" * 200,
    "a\N{ZERO WIDTH JOINER}b",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_queue_and_a_kind_are_data_whatever_they_hold(storage: QueueStorage, name: str) -> None:
    job_id = storage.enqueue(name, name, {"name": name})
    assert storage.queue_counts(name).available == 1
    [job] = storage.claim(name)
    assert (job.job_id, job.queue, job.kind, job.args) == (job_id, name, name, {"name": name})
    assert storage.complete([job]) == 1
    assert query(storage, "SELECT queue, kind FROM {ns}.terminal_jobs") == [(name, name)]


@pytest.mark.parametrize(
    "name",
    ["", " q", "q ", "a" * 201, "tab\there", "nul\0", "line\nfeed", "\x7f", "\x85x", "\ud800", 7, None],
)
@pytest.mark.parametrize("field", ["queue", "kind"])
def test_a_name_that_breaks_the_rule_is_refused_by_its_field(
    storage: QueueStorage, field: str, name: Any
) -> None:
    names = {"queue": "q", "kind": "k"} | {field: name}
    with pytest.raises(InvalidName, match=rf"^{field} .* is refused: 1 to 200 characters"):
        storage.enqueue(names["queue"], names["kind"])
    with pytest.raises(InvalidName, match=rf"^{field} "):
        storage.enqueue_many(names["queue"], names["kind"], [{}])
    assert rows(storage) == 0


@pytest.mark.parametrize("value", [True, 1.0, "2", None, -32769, 32768])
def test_a_priority_is_a_small_whole_number(storage: QueueStorage, value: Any) -> None:
    with pytest.raises(
        InvalidArgument, match=r"^priority .* is refused: a whole number from -32768 to 32767$"
    ):
        storage.enqueue("q", "k", priority=value)
    assert rows(storage) == 0


@pytest.mark.parametrize("value", [0, -1, 32768, False, 2.5])
def test_attempts_are_at_least_one(storage: QueueStorage, value: Any) -> None:
    with pytest.raises(
        InvalidArgument, match=r"^max_attempts .* is refused: a whole number from 1 to 32767$"
    ):
        storage.enqueue("q", "k", max_attempts=value)


def test_a_moment_has_a_time_zone(storage: QueueStorage) -> None:
    with pytest.raises(InvalidArgument, match=r"^run_at .* is refused: a datetime with a time zone"):
        storage.enqueue("q", "k", run_at=datetime(2020, 1, 1))


@pytest.mark.parametrize(
    "lease", [timedelta(0), timedelta(seconds=-1), timedelta(days=366), timedelta.max, 60, None]
)
def test_a_lease_is_above_zero_and_within_a_year(storage: QueueStorage, lease: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^lease .* is refused"):
        storage.claim("q", lease=lease)


@pytest.mark.parametrize("limit", [0, -1, 100_001, True, 2.0, "1"])
def test_a_claim_takes_one_to_a_hundred_thousand(storage: QueueStorage, limit: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^limit .* is refused: a whole number from 1 to 100000$"):
        storage.claim("q", limit)


@pytest.mark.parametrize("job_id", [0, -1, 2**63, "1", None])
def test_a_job_id_is_a_whole_number_above_zero(storage: QueueStorage, job_id: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^job_id "):
        storage.cancel(job_id)


@pytest.mark.parametrize(
    "args",
    [
        {"text": SECRET + "\0"},
        {SECRET + "\0": 1},
        {"deep": [{"text": "\\\0" + SECRET}]},
        {"text": SECRET + "\ud800"},
        {"text": SECRET, "number": float("nan")},
        {"text": SECRET, "number": float("inf")},
        {"text": SECRET, "bytes": b"x"},
        {"text": SECRET, ("a", "b"): 1},
        [SECRET],
        SECRET,
        7,
    ],
)
def test_args_that_json_or_postgres_cannot_hold_are_refused_without_showing_them(
    storage: QueueStorage, args: Any
) -> None:
    with pytest.raises(
        InvalidArgument, match=r"^args is refused \(\w+\): a mapping that JSON can hold"
    ) as refused:
        storage.enqueue("q", "k", args)
    with pytest.raises(InvalidArgument, match=r"^args_list\[1\] is refused") as refused_many:
        storage.enqueue_many("q", "k", [{}, args, {}])
    for error in (refused.value, refused_many.value):
        assert SECRET not in str(error)
        assert error.__suppress_context__
    assert rows(storage) == 0


def test_a_bad_element_is_named_by_its_place_among_all(
    storage: QueueStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue, "CHUNK", 3)
    with pytest.raises(InvalidArgument, match=r"^args_list\[7\] is refused"):
        storage.enqueue_many("q", "k", [{}] * 7 + [{"text": "\0"}])
    with pytest.raises(InvalidArgument, match=r"^args_list\[0\] is refused"):
        storage.enqueue_many("q", "k", [{"text": "\0"}])
    assert rows(storage) == 0


def test_args_too_deep_for_json_are_refused(storage: QueueStorage) -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"": deep}
    with pytest.raises(InvalidArgument, match=r"^args is refused"):
        storage.enqueue("q", "k", deep)
    while deep:
        deep = deep.pop("")


@pytest.mark.parametrize(
    "args",
    [
        {"text": "a backslash and digits: \\u0000", "more": "\\\\u0000"},
        {"": "", "ключ": "значение", "𝔘": "🦆", "list": [1, None, True, 1.5, {"a": []}]},
        {"big": 2**70, "small": 1e-300, "quote": '"\\\n\t'},
        OrderedDict(a=1),
        MappingProxyType({"a": 1}),
    ],
)
def test_args_come_back_as_they_were_given(storage: QueueStorage, args: Any) -> None:
    storage.enqueue_many("q", "k", [args, None])
    assert [job.args for job in storage.claim("q", 2)] == [dict(args), {}]


@pytest.mark.parametrize("key", ["", b"", "k" * 1001, "é" * 501, b"k" * 1001, "\ud800", 7, ["k"]])
def test_a_unique_key_is_short_text_or_bytes_and_never_shown(storage: QueueStorage, key: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^unique_key is refused: a str") as refused:
        storage.enqueue("q", "k", unique_key=key)
    assert "kkk" not in str(refused.value)


@pytest.mark.parametrize(
    "states",
    [(), ("available",), ("scheduled", "available", "gone"), "available", ("scheduled", "running"), None, 7],
)
def test_unique_states_are_states_and_hold_where_a_job_begins(storage: QueueStorage, states: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^unique_states .* is refused: some of scheduled, available"):
        storage.enqueue("q", "k", unique_key="key", unique_states=states)
