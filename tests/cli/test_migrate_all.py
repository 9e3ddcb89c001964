"""`parkkeeper migrate-all` and `verify`: what they print, and what they exit with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg import sql

from parkkeeper import migrations


@pytest.fixture
def tenants(connection, namespace: str) -> Iterator[list[str]]:
    names = [f"{namespace}_{letter}" for letter in "abc"]
    yield names
    for name in names:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


MEMORY = ("migrate-all", "--family", "memory")


def test_names_a_pattern_and_a_query_lead_to_the_same_namespaces(run, tenants: list[str], connection) -> None:
    first = run(*MEMORY, "--namespaces", ", ".join(tenants[:2]), "--target", 4, "--json")
    assert first.code == 0
    assert (first.json["migrated"], first.json["failed"], first.json["stopped"]) == (2, 0, None)
    assert list(first.json) == [
        "family", "dry_run", "migrated", "noop", "failed", "not_tried", "stopped", "namespaces",
    ]  # fmt: skip
    pattern = tenants[0][:-1] + "*"
    dry = run(*MEMORY, "--pattern", pattern, "--dry-run", "--json").json
    assert [(row["namespace"], row["outcome"], row["version"]) for row in dry["namespaces"]] == [
        (name, "migrated", 4) for name in tenants[:2]
    ]
    query = f"SELECT '{tenants[0][:-1]}' || chr(n) FROM generate_series(97, 99) AS n"  # noqa: S608
    done = run(*MEMORY, "--query", query, "--canary", 1, "--parallel", 2, "--json").json
    assert (done["migrated"], done["noop"]) == (3, 0)
    assert run(*MEMORY, "--pattern", pattern).out.split()[:4] == ["migrated", "0", "noop", "3"]
    for name in tenants:
        migrations.require(connection, name, "memory")


def test_a_failure_is_printed_with_its_reason_and_is_the_exit_code(
    run, tenants: list[str], connection
) -> None:
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(tenants[0])))
    connection.execute(sql.SQL("CREATE TABLE {} ()").format(sql.Identifier(tenants[0], "orders")))
    names = ",".join(tenants[:2])
    done = run(*MEMORY, "--namespaces", names)
    assert (done.code, done.err) == (1, "")
    assert "holds orders and no ledger" in done.out
    as_json = run(*MEMORY, "--namespaces", names, "--json")
    assert as_json.code == 1
    assert (as_json.json["failed"], as_json.json["noop"]) == (1, 1)
    stopped = run(*MEMORY, "--namespaces", ",".join(tenants), "--canary", 1)
    assert stopped.code == 1
    assert "a canary failed" in stopped.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give one of --namespaces, --pattern and --query"),
        (("--namespaces", "a", "--pattern", "b*"), "give one of"),
        (("--namespaces", "a,public"), "namespace 'public' is refused"),
        (("--namespaces", ""), "namespace '' is refused"),
        (("--pattern", "a%"), "pattern 'a%' is refused"),
        (("--namespaces", "a", "--parallel", "5"), "parallel 5 is refused"),
        (("--namespaces", "a", "--canary", "-1"), "canary -1 is refused"),
        (("--namespaces", "a", "--on-error", "panic"), "on_error 'panic' is refused"),
        (("--namespaces", "a", "--lock-timeout", "0"), "lock_timeout"),
        (("--namespaces", "a", "--queue-slots", "8"), "only the queue family has a ring"),
        (("--query", "DROP TABLE x"), "query is refused by the database"),
    ],
)
def test_bad_arguments_are_refused_by_name(run, arguments, message: str) -> None:
    assert message in run(*MEMORY, *arguments).failed(2)


def test_verify_prints_what_differs_and_exits_with_4(run, support: str, connection) -> None:
    fine = run("verify", "-n", support)
    assert (fine.code, fine.err) == (0, "")
    assert fine.out.startswith("as a fresh install of memory 00")
    table = sql.Identifier(support, "observation")
    connection.execute(sql.SQL("ALTER TABLE {} ALTER formation_attempts SET DEFAULT 7").format(table))
    found = run("verify", "-n", support)
    assert (found.code, found.err) == (4, "")
    for word in ("changed", "observation.formation_attempts", "-DEFAULT 0", "+DEFAULT 7"):
        assert word in found.out
    document = run("verify", "-n", support, "--json").json
    assert [row["change"] for row in document["differences"]] == ["changed"]
    assert document["broken"] == []


def test_verify_names_what_the_rows_break_and_exits_with_4(run, support: str, connection) -> None:
    fine = run("verify", "-n", support, "--data")
    assert (fine.code, fine.out) == (0, "every invariant holds\n")
    table = sql.Identifier(support, "watermark_formed")
    connection.execute(sql.SQL("INSERT INTO {} (scope, formed) VALUES ('s', 3)").format(table))
    found = run("verify", "-n", support)
    assert found.code == 4
    assert "as a fresh install of memory" in found.out
    assert "watermark_is_true" in found.out
    assert run("verify", "-n", support, "--catalog").code == 0
    document = run("verify", "-n", support, "--data", "--json")
    assert document.code == 4
    assert document.json == {
        "broken": [
            {
                "family": "memory",
                "invariant": "watermark_is_true",
                "violations": 1,
                "examples": ["formed of scope s: 3, by the rows 0"],
            }
        ]
    }


def test_a_lost_ledger_is_taken_over_by_the_command_that_the_error_names(
    run, support: str, connection
) -> None:
    connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(support, "schema_migration")))
    assert "run `parkkeeper baseline`" in run("status", "--family", "memory", "-n", support).failed(4)
    taken = run("baseline", "--family", "memory", "-n", support, "--json")
    assert [row["version"] for row in taken.json] == [m.version for m in migrations.packaged("memory")]
    assert run("verify", "-n", support).code == 0
