"""What is wrong gets one line on stderr, the documented exit code, and changes nothing."""

from __future__ import annotations

import socket

import pytest
from psycopg import conninfo, sql

from parkkeeper import migrations

EXTRACTOR = ("--extractor", "chunks")

#: Every command that touches a namespace, with arguments that would do.
QUEUE = {
    "create": ("queue", "create", "--queue", "mail"),
    "enqueue": ("queue", "enqueue", "--queue", "mail", "--kind", "welcome", "--args", '{"user": 7}'),
    "enqueue lines": ("queue", "enqueue", "--queue", "mail", "--kind", "welcome", "--args", "-"),
    "work": ("queue", "work", "--queue", "mail", "--handler", "builtins:print", "--drain"),
    "counts": ("queue", "counts", "--queue", "mail"),
    "pause": ("queue", "pause", "--queue", "mail"),
    "resume": ("queue", "resume", "--queue", "mail"),
    "rescue": ("queue", "rescue"),
    "rotate": ("queue", "rotate"),
    "prune": ("queue", "prune"),
    "ring": ("queue", "ring"),
    "show": ("queue", "show", "7"),
    "cancel": ("queue", "cancel", "7"),
    "set": ("queue", "set", "--failed-retention", "7d"),
    "roll-up": ("queue", "roll-up"),
    "rebuild-counters": ("queue", "rebuild-counters"),
    "retry-failed": ("queue", "retry-failed", "--queue", "mail"),
    "jobs": ("queue", "jobs"),
}
MEMORY = {
    "append": ("memory", "append"),
    "form": ("memory", "form", *EXTRACTOR),
    "freshness": ("memory", "freshness", "--scope", "ada"),
    "turn": ("memory", "turn", "--scope", "ada", "--offset", "0"),
    "parked": ("memory", "parked"),
    "unpark": ("memory", "unpark"),
    "sweep": ("memory", "sweep"),
    "circuit": ("memory", "circuit"),
    "erase": ("memory", "erase", "--scope", "ada", "--reason", "test"),
    "recall": ("memory", "recall", "--scope", "ada", "invoice"),
}
ADMINISTRATION = [
    (command, "--family", family)
    for command in ("migrate", "plan", "status", "baseline")
    for family in migrations.FAMILIES
]
LINE = b'{"scope": "ada", "messages": [{"role": "user", "content": "hello"}]}\n'

each_family = pytest.mark.parametrize(("family", "commands"), [("queue", QUEUE), ("memory", MEMORY)])
every = pytest.mark.parametrize(
    "command", [*QUEUE.values(), *MEMORY.values(), *ADMINISTRATION], ids=lambda command: " ".join(command[:3])
)
as_json = pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])


@each_family
@as_json
def test_an_unknown_namespace_is_named_with_what_to_do(
    run, namespace: str, connection, family: str, commands, flags
) -> None:
    for command in commands.values():
        line = run(*command, "--namespace", namespace, *flags, stdin=LINE).failed(4)
        assert f"namespace {namespace} has no {family} tables" in line
        assert f"parkkeeper migrate --family {family} --namespace {namespace}" in line
    assert connection.execute("SELECT to_regnamespace(%s)", [namespace]).fetchone() == (None,)


@every
def test_an_unreachable_database_is_named(run, namespace: str, command, monkeypatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("PARKKEEPER_DSN", f"postgresql://someone:tr0ub4dor@127.0.0.1:{port}/orders")
    line = run(*command, "--namespace", namespace, stdin=LINE).failed(3)
    assert line.startswith(f"database orders at 127.0.0.1:{port} cannot be reached")
    assert "tr0ub4dor" not in line


@every
def test_without_a_database_it_says_what_to_set(run, namespace: str, command, monkeypatch) -> None:
    monkeypatch.delenv("PARKKEEPER_DSN")
    line = run(*command, "--namespace", namespace, stdin=LINE).failed(2)
    assert "PARKKEEPER_DSN" in line
    assert "--dsn" in line


@every
def test_a_name_that_is_no_namespace_is_refused_before_the_database_is_looked_for(
    run, command, monkeypatch
) -> None:
    monkeypatch.setenv("PARKKEEPER_DSN", "postgresql://nobody@127.0.0.1:1/none")
    for name in ("public", "Jobs", "a" * 49, "pg_jobs", "a\n", ""):
        assert "is refused:" in run(*command, "--namespace", name, stdin=LINE).failed(2)


@every
def test_a_dsn_that_cannot_be_read_is_not_repeated(run, namespace: str, command) -> None:
    dsn = "postgresql://someone:a/tr0ub4dor@127.0.0.1/orders"
    line = run(*command, "--namespace", namespace, "--dsn", dsn, stdin=LINE).failed(2)
    assert line.startswith("dsn is refused")
    assert "tr0ub4dor" not in line


DAMAGES = {
    "newer": (
        "INSERT INTO {} (family, version, name, sha256, duration_ms) VALUES (%s, 9999, 'later', 'x', 0)",
        "migration 9999_later is applied but unknown to this package",
    ),
    "drift": ("UPDATE {} SET sha256 = 'x' WHERE family = %s", "is not what was applied"),
    "unreadable": ("ALTER TABLE {} RENAME COLUMN sha256 TO checksum", "cannot be read (42703)"),
}


@each_family
@pytest.mark.parametrize(("damage", "expected"), DAMAGES.values(), ids=list(DAMAGES))
def test_a_database_that_this_release_must_not_touch_is_left_alone(
    run, namespace: str, connection, content, family: str, commands, damage: str, expected: str
) -> None:
    migrations.migrate(connection, namespace, family, queue_slots=4)
    statement = sql.SQL(damage).format(sql.Identifier(namespace, "schema_migration"))
    connection.execute(statement, [family] if "%s" in damage else None)
    before = content()
    administration = [command for command in ADMINISTRATION if command[2] == family]
    for command in (*commands.values(), *administration):
        assert expected in run(*command, "--namespace", namespace, stdin=LINE).failed(4)
    assert content() == before


@each_family
def test_a_database_that_lags_is_left_alone(
    run, namespace: str, connection, content, family: str, commands
) -> None:
    first, *rest = migrations.packaged(family)
    migrations.migrate(connection, namespace, family, target=first.version, queue_slots=4)
    before = content()
    for command in commands.values():
        line = run(*command, "--namespace", namespace, stdin=LINE).failed(4)
        assert f"lacks {family} migration {rest[0].label}" in line
    assert content() == before


DURATIONS = ["-1", "-5s", "nan", "NaN", "inf", "1.5h", "0.5", "1e3", "3mo", "1month", "1y", "1w", "", " ", "h", "1 h",
             "+1", "\u0663h", "9" * 30, "999999999999d", "1h30m", "P1D", "1:00"]  # fmt: skip


@pytest.mark.parametrize(
    "option",
    [
        ("queue", "prune", "--failed-retention"),
        ("queue", "create", "--queue", "mail", "--failed-retention"),
        ("queue", "rotate", "--lock-timeout"),
        ("memory", "form", "--turn-budget"),
        ("memory", "unpark", "--older-than"),
    ],
    ids=lambda option: " ".join(option[:2]),
)
def test_a_duration_that_is_none_is_refused_with_the_rule(run, option) -> None:
    for duration in DURATIONS:
        line = run(*option, duration, "--namespace", "jobs").failed(2)
        assert "is no duration: whole seconds, or a whole number with ms, s, m, h or d" in line


@pytest.mark.parametrize("retention", ["36d", "841h", "1500ms", "1ms"])
def test_a_retention_beyond_its_bounds_is_refused_with_the_rule(
    run, jobs: str, content, retention: str
) -> None:
    before = content()
    for command in (("queue", "prune"), ("queue", "create", "--queue", "mail")):
        line = run(*command, "--namespace", jobs, "--failed-retention", retention).failed(2)
        assert line.startswith("failed_retention")
    assert content() == before


BAD_QUEUE = [
    ("queue", "prune", "--lock-timeout", "6s"),
    ("queue", "rotate", "--lock-timeout", "6s"),
    ("queue", "prune", "--max-pruned-failed", "-1"),
    ("queue", "jobs", "--state", "sleeping"),
    ("queue", "jobs", "--limit", "0"),
    ("queue", "retry-failed"),
    ("queue", "retry-failed", "--queue", "mail", "--kind", "welcome"),
    ("queue", "retry-failed", "--kind", "welcome", "--limit", "0"),
    ("queue", "retry-failed", "--kind", "welcome", "--finalized-from", "yesterday"),
    ("queue", "retry-failed", "--kind", "welcome", "--finalized-from", "2026-01-31T12:00:00"),
    ("queue", "retry-failed", "--kind", "welcome", "--finalized-before", "9999-12-31T23:59:59-12:00"),
    ("queue", "counts", "--queue", ""),
    ("queue", "counts", "--queue", " mail"),
    ("queue", "counts", "--queue", "a\nb"),
    ("queue", "counts", "--queue", "a" * 201),
    ("queue", "create", "--queue", "a\x00"),
    ("queue", "enqueue", "--queue", "mail", "--kind", ""),
    ("queue", "enqueue", "--queue", "mail", "--kind", "k", "--priority", "x"),
    ("queue", "enqueue", "--queue", "mail", "--kind", "k", "--max-attempts", "0"),
    ("queue", "enqueue", "--queue", "mail", "--kind", "k", "--run-at", "2026-13-01T00:00:00Z"),
    ("queue", "enqueue", "--queue", "mail", "--kind", "k", "--args", "-", "--unique-key", "one"),
    ("queue", "enqueue", "--queue", "mail", "--kind", "k", "--args", "@/no/such/file"),
    ("queue", "enqueue", "--queue", "mail", "--kind", "k", "--args", "@/"),
    ("queue", "nonsense"),
    ("queue",),
    ("queue", "counts"),
    ("queue", "counts", "--queue", "mail", "--nonsense"),
    ("queue", "counts", "--queue", "mail", "extra"),
]


def test_a_bad_argument_of_the_queue_is_one_line_and_changes_nothing(run, jobs: str, content) -> None:
    before = content()
    for arguments in BAD_QUEUE:
        namespace = () if len(arguments) == 1 else ("--namespace", jobs)
        run(*arguments, *namespace).failed(2)
    assert content() == before


BAD_MEMORY = [
    ("memory", "append", "/no/such/file"),
    ("memory", "append", "/"),
    ("memory", "append", "a\x00b"),
    ("memory", "append", "--on-invalid", "ignore"),
    ("memory", "form", "--extractor", "nonsense"),
    ("memory", "form", "--extractor", "no_such_module:thing"),
    ("memory", "form", "--extractor", "json:nothing"),
    ("memory", "form", "--extractor", "json:loads"),
    ("memory", "form", "--limit", "0"),
    ("memory", "form", "--turn-budget", "0"),
    ("memory", "freshness", "--scope", ""),
    ("memory", "turn", "--scope", "ada", "--offset", "x"),
    ("memory", "parked", "--after", "ada"),
    ("memory", "parked", "--after", "ada:-1"),
    ("memory", "parked", "--after", "ada:\u0663"),
    ("memory", "parked", "--after", "ada:99999999999999999999"),
    ("memory", "parked", "--limit", "0"),
    ("memory", "unpark", "--error-class", "nonsense"),
    ("memory", "unpark", "--limit", "-1"),
    ("memory", "unpark", "--id", "x"),
    ("memory", "erase", "--reason", "because"),
    ("memory", "erase", "--scope", "ada"),
    ("memory", "erase", "--scope", "ada", "--reason", "No Code"),
    ("memory", "request-erasure", "--reason", "because"),
    ("memory", "request-erasure", "--scope", "ada", "--reason", "No Code"),
    ("memory", "erase-requested", "ada"),
    ("memory", "recall", "--scope", "ada"),
    ("memory", "recall", "--scope", "ada", "a\x00b"),
    ("memory", "recall", "--scope", "ada", "hello", "--limit", "0"),
]


def test_a_bad_argument_of_the_memory_is_one_line_and_changes_nothing(run, support: str, content) -> None:
    before = content()
    for arguments in BAD_MEMORY:
        run(*arguments, "--namespace", support, stdin=LINE).failed(2)
    assert content() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("migrate", "--family", "cache", "--namespace", "jobs"),
        ("migrate", "--family", "queue", "--namespace", "jobs", "--queue-slots", "3"),
        ("migrate", "--family", "queue", "--namespace", "jobs", "--queue-slots", "4.5"),
        ("migrate", "--family", "memory", "--namespace", "jobs", "--queue-slots", "16"),
        ("migrate", "--family", "queue", "--namespace", "jobs", "--target", "7"),
        ("migrate", "--family", "queue"),
        ("migrate",),
        ("plan", "--family", "queue", "--namespace", "jobs", "--target", "7"),
        ("render", "--family", "cache", "--namespace", "jobs"),
        ("render", "--family", "queue", "--namespace", "public"),
        ("render", "--family", "queue", "--namespace", "jobs", "--queue-slots", "1000"),
        ("nonsense",),
        ("--nonsense",),
    ],
    ids=" ".join,
)
def test_a_bad_argument_of_the_migrations_is_one_line(run, arguments) -> None:
    run(*arguments).failed(2)


def test_an_argument_that_is_not_utf8_is_refused(run, jobs: str) -> None:
    assert "argument 4 is refused: it is not valid UTF-8" in run(
        "queue", "counts", "--queue", "a\udcff"
    ).failed(2)


@as_json
def test_a_queue_that_does_not_exist_is_named(run, jobs: str, content, flags) -> None:
    before = content()
    for command in (("counts",), ("retry-failed",), ("jobs",), ("work", "--handler", "builtins:print")):
        line = run("queue", *command, "--namespace", jobs, "--queue", "nope", *flags).failed(1)
        assert "queue 'nope'" in line
    assert content() == before


def test_a_lost_session_is_told_by_its_sqlstate(
    spawn, finish, support: str, connection, connect, until
) -> None:
    table = sql.Identifier(support, "observation")
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND application_name = 'parkkeeper-cli' AND query LIKE %s"
    )
    holder = connect()
    with holder.transaction():
        holder.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(table))
        process = spawn("memory", "parked", "--namespace", support)
        until(lambda: connection.execute(kill, [f"%{support}%"]).fetchone() is not None)
        line = finish(process).failed(3)
    assert line == "the session with the database was lost (57P01, AdminShutdown)"


def test_a_right_that_is_missing_is_told_with_the_table_and_nothing_else(
    run, support: str, connection, monkeypatch, dsn: str
) -> None:
    role = sql.Identifier(f"{support}_role")
    connection.execute(sql.SQL("CREATE ROLE {}").format(role))
    try:
        name = sql.Identifier(support)
        connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(name, role))
        ledger = sql.Identifier(support, "schema_migration")
        connection.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(ledger, role))
        monkeypatch.setenv("PARKKEEPER_DSN", conninfo.make_conninfo(dsn, options=f"-c role={support}_role"))
        line = run("memory", "parked", "--namespace", support).failed(1)
        assert line.startswith("the login lacks a right: ")
        assert line.endswith("42501, permission denied for table observation")
    finally:
        connection.execute(sql.SQL("DROP OWNED BY {}; DROP ROLE {}").format(role, role))
