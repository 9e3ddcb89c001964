"""Many namespaces: each is done or named with its reason, a few at a time, and a second run goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from parkkeeper import database, migrations
from parkkeeper.errors import DatabaseUnavailable, InvalidArgument, InvalidNamespace
from parkkeeper.migrations import Course, Patience, locking
from parkkeeper.queue import QueueStorage

Ship = Callable[[Mapping[str, str]], None]

ONE = {"0001_one.sql": "CREATE TABLE {schema}.one (id bigint PRIMARY KEY);\n"}
TWO = ONE | {"0002_two.sql": "CREATE TABLE {schema}.two (id bigint PRIMARY KEY);\n"}
HASTY = Patience(timedelta(milliseconds=50), attempts=1, runner_timeout=timedelta(0))


@pytest.fixture
def sessions(dsn: str) -> Callable[[], Any]:
    """What opens a session, counting how many are open and how many were at once."""

    class Sessions:
        def __init__(self) -> None:
            self.lock, self.now, self.most, self.opened = threading.Lock(), 0, 0, 0

        @contextmanager
        def __call__(self) -> Iterator[psycopg.Connection[Any]]:
            with self.lock:
                self.now, self.opened = self.now + 1, self.opened + 1
                self.most = max(self.most, self.now)
            try:
                with database.connect(dsn, application_name="fanout") as connection:
                    yield connection
            finally:
                with self.lock:
                    self.now -= 1

    return Sessions()


@pytest.fixture
def names(connection, namespace: str) -> Iterator[Callable[[int], list[str]]]:
    """Names of namespaces that are dropped afterwards."""
    made: list[str] = []

    def make(count: int) -> list[str]:
        made.extend(f"{namespace}_{number:04d}" for number in range(len(made), count))
        return made[:count]

    yield make
    for name in made:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


def outcomes(found: migrations.FanOut) -> list[str]:
    return [one.outcome for one in found.namespaces]


def test_many_namespaces_are_done_with_four_sessions_at_most(sessions, names, ship: Ship, connection) -> None:
    ship(TWO)
    spaces, seen = names(40), []
    found = migrations.migrate_all(sessions, spaces, "queue", progress=seen.append)
    assert [one.namespace for one in found.namespaces] == spaces
    assert {(one.outcome, one.applied, one.version) for one in found.namespaces} == {("migrated", 2, 2)}
    assert sorted(one.namespace for one in seen) == spaces
    assert sessions.most <= 4
    assert sessions.opened <= 4
    for name in spaces:
        migrations.require(connection, name, "queue")


@pytest.mark.slow
def test_a_thousand_namespaces_and_a_run_that_was_cut_off_in_between(sessions, names, ship: Ship) -> None:
    ship(TWO)
    spaces = names(1000)
    first = migrations.migrate_all(sessions, spaces[:600], "queue")
    assert first.count("migrated") == 600
    rest = migrations.migrate_all(sessions, spaces, "queue")
    assert (rest.count("noop"), rest.count("migrated"), rest.failures) == (600, 400, ())


@pytest.mark.slow
def test_twenty_real_queues_at_once_have_locks_enough(sessions, names, connection) -> None:
    spaces = names(20)
    found = migrations.migrate_all(sessions, spaces, "queue", queue_slots=4)
    assert found.failures == ()
    assert found.count("migrated") == 20
    QueueStorage(connection, spaces[19]).enqueue("mail", "welcome", {})


def test_two_runs_at_once_over_a_hundred_namespaces_apply_each_migration_once(
    sessions, names, ship: Ship, connection, in_thread
) -> None:
    ship(TWO)
    spaces = names(100)
    runs: list[migrations.FanOut] = []
    threads = [
        in_thread(
            lambda order=order: runs.append(
                migrations.migrate_all(sessions, order, "queue", course=Course(parallel=2))
            )
        )
        for order in (spaces, spaces[::-1])
    ]
    for thread in threads:
        thread.join(60)
    assert [run.failures for run in runs] == [(), ()]
    assert sum(one.applied for run in runs for one in run.namespaces) == 200
    for name in spaces:
        migrations.require(connection, name, "queue")


def test_a_failure_is_named_with_its_reason_and_the_others_are_done(
    sessions, names, ship: Ship, connection, connect
) -> None:
    spaces = names(5)
    ship(ONE)
    migrations.migrate_all(sessions, spaces[:4], "queue")
    ship(TWO)
    broken, drifted, blocked = spaces[1], spaces[2], spaces[3]
    connection.execute(sql.SQL("CREATE TABLE {} ()").format(sql.Identifier(broken, "two")))
    ledger = sql.Identifier(drifted, "schema_migration")
    connection.execute(sql.SQL("UPDATE {} SET sha256 = 'x'").format(ledger))
    holder = connect(application_name="in the way")
    with holder.transaction():
        key = database.advisory_key(blocked, "migrate")
        holder.execute("SELECT pg_advisory_xact_lock(%s)", [key])
        found = migrations.migrate_all(sessions, spaces, "queue", patience=HASTY)
    assert outcomes(found) == ["migrated", "failed", "failed", "failed", "migrated"]
    reasons = {one.namespace: (one.reason or "", one.version, one.retryable) for one in found.failures}
    assert "0002_two.sql failed (42P07, DuplicateTable)" in reasons[broken][0]
    assert reasons[broken][1:] == (1, False)
    assert "0001_one.sql is not what was applied" in reasons[drifted][0]
    assert reasons[drifted][1:] == (None, False)
    assert "application_name 'in the way'" in reasons[blocked][0]
    assert reasons[blocked][1:] == (1, True)

    connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(broken, "two")))
    again = migrations.migrate_all(sessions, spaces, "queue", patience=HASTY)
    assert outcomes(again) == ["noop", "migrated", "failed", "migrated", "noop"]


def test_a_canary_that_fails_keeps_all_others_as_they_are(sessions, names, ship: Ship, connection) -> None:
    spaces = names(6)
    ship(ONE)
    migrations.migrate_all(sessions, spaces, "queue")
    ship(TWO)
    connection.execute(sql.SQL("CREATE TABLE {} ()").format(sql.Identifier(spaces[1], "two")))
    found = migrations.migrate_all(sessions, spaces, "queue", course=Course(canary=2))
    assert outcomes(found) == ["migrated", "failed", *["not_tried"] * 4]
    assert found.stopped == "a canary failed"
    for name in spaces[2:]:
        assert len(migrations.plan(connection, name, "queue")) == 1
    connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(spaces[1], "two")))
    again = migrations.migrate_all(sessions, spaces, "queue", course=Course(canary=2))
    assert outcomes(again) == ["noop", *["migrated"] * 5]


def test_a_run_that_is_to_stop_at_a_failure_begins_no_other(sessions, names, ship: Ship, connection) -> None:
    spaces = names(4)
    ship(TWO)
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(spaces[1])))
    connection.execute(sql.SQL("CREATE TABLE {} ()").format(sql.Identifier(spaces[1], "two")))
    found = migrations.migrate_all(sessions, spaces, "queue", course=Course(parallel=1, on_error="stop"))
    assert outcomes(found) == ["migrated", "failed", "not_tried", "not_tried"]
    assert found.stopped == f"namespace {spaces[1]} failed"


def test_a_dry_run_says_what_would_be_applied_and_makes_nothing(sessions, names, ship: Ship, catalog) -> None:
    spaces = names(3)
    ship(TWO)
    migrations.migrate_all(sessions, spaces[:1], "queue")
    before = catalog()
    found = migrations.migrate_all(sessions, spaces, "queue", course=Course(dry_run=True))
    assert [(one.outcome, one.applied, one.version) for one in found.namespaces] == [
        ("noop", 0, 2),
        ("migrated", 2, None),
        ("migrated", 2, None),
    ]
    assert catalog() == before


def test_a_name_that_is_refused_is_refused_before_a_session_is_opened(ship: Ship) -> None:
    def connect() -> Any:
        pytest.fail("no session is to be opened")

    ship(ONE)
    for bad in ("a" * 49, "public", 'a"b', "A"):
        with pytest.raises(InvalidNamespace):
            migrations.migrate_all(connect, ["fine", bad], "queue")


def test_a_lost_session_costs_its_own_namespace_and_a_new_one_is_opened(
    sessions, names, ship: Ship, connection
) -> None:
    spaces = names(3)
    kill = "SELECT pg_terminate_backend(pg_backend_pid());"
    ship(
        {
            "0001_one.sql": f"DO $$ BEGIN IF '{{schema}}' LIKE '%0001%' THEN PERFORM {kill[7:]} END IF; END $$;\n"
        }
    )
    found = migrations.migrate_all(sessions, spaces, "queue", course=Course(parallel=1))
    assert outcomes(found) == ["migrated", "failed", "migrated"]
    assert "AdminShutdown: 57P01" in (found.failures[0].reason or "")
    assert found.failures[0].retryable
    assert sessions.opened == 2


def test_a_server_that_is_gone_is_not_asked_a_thousand_times(ship: Ship) -> None:
    asked: list[int] = []

    def connect() -> Any:
        asked.append(1)
        raise DatabaseUnavailable("database x at y:1 cannot be reached: refused")

    ship(ONE)
    found = migrations.migrate_all(connect, [f"t{n}" for n in range(100)], "queue", course=Course(parallel=1))
    assert len(asked) == 1
    assert (found.count("failed"), found.count("not_tried")) == (1, 99)
    assert found.stopped == "the database cannot be reached"


def test_an_interrupt_cancels_what_runs_and_rolls_it_back(
    sessions, names, ship: Ship, connection, in_thread, until
) -> None:
    ship(ONE | {"0002_slow.sql": "SELECT pg_sleep(60);"})
    spaces = names(3)

    def interrupt(outcome: migrations.NamespaceOutcome) -> None:
        raise KeyboardInterrupt

    asleep = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fanout' AND wait_event = 'PgSleep'"
    )
    migrations.migrate_all(sessions, spaces, "queue", target=1)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            # The first namespace fails at once and its outcome is met with an interrupt.
            migrations.migrate_all(
                sessions, ["nowhere_at_all_x", *spaces], "queue", progress=interrupt, course=Course()
            )
        except BaseException as error:
            raised.append(error)

    connection.execute("CREATE SCHEMA nowhere_at_all_x; CREATE TABLE nowhere_at_all_x.held ()")
    try:
        in_thread(run).join(30)
    finally:
        connection.execute("DROP SCHEMA nowhere_at_all_x CASCADE")
    assert [type(error) for error in raised] == [KeyboardInterrupt]
    until(lambda: connection.execute(asleep).fetchone() == (0,))
    for name in spaces:
        assert len(migrations.plan(connection, name, "queue")) == 1


@pytest.mark.timeout(60)
def test_an_interrupt_ends_a_wait_for_another_runner(
    sessions, namespace: str, names, ship: Ship, connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(ONE)
    # Longer than the test may take, so that no statement comes that could be cancelled instead.
    monkeypatch.setattr(locking, "_PAUSES", (600.0,))
    failing, waiting = names(2)
    holder = connect()

    def interrupt(outcome: migrations.NamespaceOutcome) -> None:
        assert outcome.namespace == failing
        raise KeyboardInterrupt

    holder.execute(sql.SQL("CREATE SCHEMA {n}; CREATE TABLE {n}.held ()").format(n=sql.Identifier(failing)))
    patience = Patience(runner_timeout=timedelta(hours=1))
    with holder.transaction():
        key = database.advisory_key(waiting, "migrate")
        holder.execute("SELECT pg_advisory_xact_lock(%s)", [key])
        with pytest.raises(KeyboardInterrupt):
            migrations.migrate_all(
                sessions, [failing, waiting], "queue", patience=patience, progress=interrupt
            )
    assert sessions.now == 0
    assert [m.version for m in migrations.plan(holder, waiting, "queue")] == [1]


def test_a_full_table_of_locks_says_what_to_do(sessions, namespace: str, ship: Ship) -> None:
    # More locks than a server of these tests has room for, all given back with the transaction.
    many = "SELECT count(pg_advisory_xact_lock(814000000 + i)) FROM generate_series(1, 200000) AS i;\n"
    ship({"0001_many.sql": many})
    found = migrations.migrate_all(sessions, [namespace], "queue", patience=Patience(attempts=1))
    (failure,) = found.failures
    assert "raise max_locks_per_transaction, or work on fewer namespaces at once" in (failure.reason or "")
    assert failure.retryable


@pytest.mark.parametrize(
    ("field", "value"),
    [("parallel", 0), ("parallel", 5), ("parallel", True), ("canary", -1), ("on_error", "ignore")],
)
def test_a_course_out_of_range_is_refused_by_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"{field} .* is refused"):
        Course(**{field: value})


def test_a_pattern_finds_namespaces_of_the_family_by_name(
    connection, names, sessions, ship: Ship, namespace: str
) -> None:
    ship(ONE)
    spaces = names(12)
    migrations.migrate_all(sessions, spaces[:11], "queue")
    ledger = sql.Identifier(spaces[0], "schema_migration")
    connection.execute(sql.SQL("UPDATE {} SET family = 'memory'").format(ledger))
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(spaces[11])))
    unreadable = sql.Identifier(spaces[1], "schema_migration")
    connection.execute(sql.SQL("ALTER TABLE {} RENAME COLUMN family TO kin").format(unreadable))
    find = lambda pattern: migrations.find_namespaces(connection, "queue", pattern=pattern)  # noqa: E731
    assert find(f"{namespace}_*") == spaces[1:11]
    assert find(f"{namespace}_000?") == spaces[1:10]
    assert find(f"{namespace}_0002") == [spaces[2]]
    assert find(namespace.replace("_", "?") + "_0002") == [spaces[2]]
    assert find(namespace) == []


def test_a_pattern_passes_over_what_the_role_may_not_look_into(
    connection, connect, namespace: str, ship: Ship
) -> None:
    # No role but a superuser may look into pg_toast, nor into what other applications keep to themselves.
    ship(ONE)
    closed, locked, role = f"{namespace}_closed", f"{namespace}_locked", sql.Identifier(f"{namespace}_role")
    for name in (namespace, locked):
        migrations.migrate(connection, name, "queue")
    connection.execute(sql.SQL("CREATE SCHEMA {}; CREATE ROLE {}").format(sql.Identifier(closed), role))
    try:
        for name in (namespace, locked):
            connection.execute(
                sql.SQL(
                    "GRANT USAGE ON SCHEMA {n} TO {r}; GRANT SELECT ON ALL TABLES IN SCHEMA {n} TO {r}"
                ).format(n=sql.Identifier(name), r=role)
            )
        session, holder = connect(lock_timeout=timedelta(milliseconds=50)), connect()
        session.execute(sql.SQL("SET ROLE {}").format(role))
        with holder.transaction():
            holder.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(locked, "schema_migration")))
            found = migrations.find_namespaces(session, "queue", pattern="*")
        assert {namespace, locked} <= set(found)
        assert closed not in found
        session.close()
    finally:
        connection.execute(
            sql.SQL("DROP OWNED BY {r}; DROP ROLE {r}; DROP SCHEMA {c}; DROP SCHEMA {l} CASCADE").format(
                r=role, c=sql.Identifier(closed), l=sql.Identifier(locked)
            )
        )


def test_one_name_in_the_place_of_many_is_refused(ship: Ship) -> None:
    # Its letters would be namespaces.
    ship(ONE)
    with pytest.raises(InvalidArgument, match=r"namespaces 'abc' is refused: a list of names"):
        migrations.migrate_all(lambda: pytest.fail("no session is to be opened"), "abc", "queue")


@pytest.mark.parametrize("pattern", ["", "a%", "A*", "a'b", 'a"', "a b", "é*", "a" * 64])
def test_a_pattern_of_other_characters_is_refused(connection, pattern: str) -> None:
    with pytest.raises(InvalidArgument, match=r"pattern .* is refused"):
        migrations.find_namespaces(connection, "queue", pattern=pattern)


def test_a_query_finds_namespaces_that_need_not_exist_and_may_not_write(connection, namespace: str) -> None:
    find = lambda query: migrations.find_namespaces(connection, "queue", query=query)  # noqa: E731
    assert find("SELECT 'tenant_' || n FROM generate_series(1, 3) AS n WHERE 'x' LIKE '%'") == [
        "tenant_1",
        "tenant_2",
        "tenant_3",
    ]
    for query, refusal in {
        "SELECT 'a', 'b'": "more than one column",
        f"CREATE SCHEMA {namespace}": "25006",
        f"SELECT 'a'; CREATE SCHEMA {namespace}": "42601",
        f"COMMIT; CREATE SCHEMA {namespace}": "42601",
        "SELECT nonsense": "42703",
        "SET lock_timeout = 0": "one SELECT",
    }.items():
        with pytest.raises(InvalidArgument, match=refusal):
            find(query)
    with pytest.raises(InvalidNamespace):
        find("SELECT 'public'")
    with pytest.raises(InvalidNamespace):
        find("SELECT NULL")
    assert connection.execute("SELECT to_regnamespace(%s)", [namespace]).fetchone() == (None,)


def test_exactly_one_way_to_find_is_given(connection) -> None:
    for given in ({}, {"pattern": "a*", "query": "SELECT 'a'"}):
        with pytest.raises(InvalidArgument, match="give one of both"):
            migrations.find_namespaces(connection, "queue", **given)
