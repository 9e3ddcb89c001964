"""Whatever is typed or piped in: an answer or one clear line, a documented exit code, and all tables as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parkkeeper.cli import app

#: What a command may end with, but for what people or broken pipes do.
CODES = (0, 1, 2, 4)
WORD = "rosebud"
#: A command with arguments that would do, to which one more is added: the last of its kind counts.
BASE: dict[str, tuple[str, ...]] = {
    "queue cancel": ("7",),
    "queue counts": ("-q", "mail"),
    "queue create": ("-q", "mail"),
    "queue enqueue": ("-q", "mail", "--kind", "welcome"),
    "queue evacuate": (),
    "queue expiring": (),
    "queue jobs": (),
    "queue pause": ("-q", "mail"),
    "queue prune": (),
    "queue resume": ("-q", "mail"),
    "queue retry-failed": ("-q", "mail"),
    "queue ring": (),
    "queue roll-up": (),
    "queue rotate": (),
    "queue set": ("-q", "mail"),
    "queue show": ("7",),
    "queue dlq list": (),
    "queue dlq purge": (),
    "queue dlq retry": ("-q", "mail"),
    "memory append": (),
    "memory circuit": (),
    "memory erase": ("--scope", "ada", "--reason", "test"),
    "memory erasure-requests": (),
    "memory expire": ("--older-than", "30d", "--reason", "test"),
    "memory form": (),
    "memory freshness": ("--scope", "ada"),
    "memory parked": (),
    "memory pause": ("--scope", "ada"),
    "memory rebuild": ("--scope", "ada"),
    "memory recall": ("--scope", "ada", "invoice"),
    "memory request-erasure": ("--scope", "ada", "--reason", "test"),
    "memory resume": ("--scope", "ada"),
    "memory sweep": (),
    "memory turn": ("--scope", "ada", "--offset", "0"),
    "memory unpark": (),
}
#: These name code, a server, a file or the namespace itself, and have tests of their own.
ELSEWHERE = {"dsn", "namespace", "extractor", "model", "file", "args", "handler"}


def options() -> Iterator[tuple[str, str]]:
    """Return each command of `BASE` with each option of it that takes a value."""
    program: Any = typer.main.get_command(app)
    for name in BASE:
        command = program
        for part in name.split():
            command = command.commands[part]
        for parameter in command.params:
            valued = parameter.param_type_name == "option" and not parameter.is_flag
            if valued and parameter.name not in ELSEWHERE:
                yield name, parameter.opts[0]


HOSTILE = [
    "'; DROP SCHEMA {schema} CASCADE; --",
    '"; DROP TABLE observation; --',
    "{schema}",
    "%s %(limit)s %",
    "$1",
    "\\'; SELECT pg_sleep(60); --",
    "nan",
    "-1",
    "inf",
    "9" * 40,
    "-" + "9" * 40,
    "1e999",
    "3mo",
    "9999999999d",
    "P1M",
    "2026-02-30T00:00:00Z",
    "2026-03-29T02:30:00+99:99",
    "2026-03-29T02:30:00[Europe/Berlin]",
    "0001-01-01T00:00:00+14:00",
    "\u202eabc",
    "\ufeff",
    "a\u0000b",
    "\u0663",
    "",
    " ",
    "\n",
    "x" * 10_000,
]
typed = st.one_of(
    st.sampled_from(HOSTILE),
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes(timezones=st.none() | st.timezones()).map(lambda moment: moment.isoformat()),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
)
exhaust = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), max_examples=100
)


def check(result: Any) -> None:
    """Find an answer, or one line of error."""
    assert result.code in CODES
    assert "Traceback" not in result.out + result.err
    if result.code:
        assert result.failed(result.code)


def test_any_value_of_any_option_is_taken_or_refused_in_one_line(
    run, jobs: str, support: str, content
) -> None:
    run("queue", "create", "-n", jobs, "-q", "mail")
    tables = set(content())

    for number, (command, option) in enumerate(options()):
        check(run(*command.split(), "-n", jobs, *BASE[command], f"{option}={HOSTILE[number % len(HOSTILE)]}"))

    @exhaust
    @given(place=st.sampled_from(list(options())), value=typed)
    def attempt(place: tuple[str, str], value: str) -> None:
        command, option = place
        check(run(*command.split(), "-n", jobs, *BASE[command], f"{option}={value}"))

    attempt()
    assert set(content()) == tables
    assert run("verify", "-n", jobs).code == 0


TURN = {"scope": "ada", "messages": [{"role": "user", "content": WORD}]}
LINE = json.dumps(TURN).encode() + b"\n"
DAMAGED = [
    LINE[:-10],
    b"\xff\xfe" + LINE.decode().encode("utf-16-le"),
    LINE.replace(b"ada", b"\xe4"),
    LINE.replace(b"ada", b"\\ud800"),
    LINE.replace(b"ada", b"\\u0000"),
    LINE.replace(b'{"scope"', b'{"scope": "bob", "scope"'),
    b"[" * 100_000,
    b'{"a":' * 100_000,
    LINE.replace(b'"user"', b"1" * 5_000),
    LINE.replace(b'"user"', b"NaN"),
    LINE.replace(b'"user"', b"-Infinity"),
    LINE.replace(b'"user"', b"1e999"),
    b"\xef\xbb\xbf" + LINE,
    LINE.replace(b"\n", b"\r\n"),
    LINE.replace(b"\n", b"\r"),
    b"null\n",
    b"[]\n",
    b"{}\n",
    b"\x00\n",
    b"",
]
lines = st.lists(
    st.one_of(
        st.just(LINE),
        st.sampled_from(DAMAGED),
        st.binary(max_size=40).map(lambda raw: raw + b"\n"),
        st.integers(1, len(LINE)).map(lambda length: LINE[:length]),
    ),
    max_size=4,
).map(b"".join)


@pytest.mark.parametrize("damaged", [False, True], ids=["any", "each"])
def test_any_file_is_loaded_or_its_line_is_named_without_a_word_of_it(
    run, jobs: str, support: str, damaged: bool
) -> None:
    def load(given: bytes) -> None:
        for command in (
            ("memory", "append", "-n", support),
            ("queue", "enqueue", "-n", jobs, "-q", "mail", "--kind", "k", "--args", "-"),
        ):
            result = run(*command, stdin=given)
            check(result)
            assert result.code in (0, 1, 2)
            assert WORD not in result.out + result.err

    if damaged:
        for given_bytes in DAMAGED:
            load(given_bytes)
    else:
        settings(exhaust, max_examples=30)(given(lines)(load))()
