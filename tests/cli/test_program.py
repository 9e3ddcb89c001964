"""The program as a whole: help, versions, pipes, interrupts, and how quickly it is there."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql

import parkkeeper
from parkkeeper import cli, migrations
from parkkeeper.cli.lines import BATCH
from parkkeeper.memory import MemoryStore

EVERY = [
    (*group, command.name or command.callback.__name__)
    for group, app in (((), cli.app), (("queue",), cli.queue.app), (("memory",), cli.memory.app))
    for command in app.registered_commands
]
LINE = b'{"scope": "ada", "messages": [{"role": "user", "content": "hello"}]}\n'


def without_frames(text: str) -> str:
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_the_help_of_every_command_teaches(run, command: tuple[str, ...], monkeypatch) -> None:
    monkeypatch.delenv("PARKKEEPER_DSN")
    helped = run(*command, "--help")
    assert (helped.code, helped.err) == (0, "")
    text = without_frames(helped.out)
    name = " ".join(("parkkeeper", *command))
    assert f"Usage: {name}" in text
    assert f"Example: {name} " in text
    assert "--json" in text


def test_the_commands_are_those_that_are_promised() -> None:
    promised = {
        (): "migrate plan status verify baseline render grants migrate-all",
        ("queue",): "create enqueue work counts pause resume rescue rotate prune retry-failed jobs "
        "expiring ring show cancel set grow evacuate roll-up rebuild-counters",
        ("memory",): "append form freshness turn parked unpark circuit erase recall "
        "sweep verify rebuild rebuilds pause resume cap settings expire drop drop-namespace "
        "request-erasure erase-requested erasure-requests",
    }
    assert set(EVERY) == {(*group, name) for group, names in promised.items() for name in names.split()}


def examples() -> Iterator[list[str]]:
    """Every example that the help shows, as arguments."""
    for app in (cli.app, cli.queue.app, cli.memory.app):
        for command in app.registered_commands:
            for example in re.findall(r"Example: `(.*?)`", command.callback.__doc__ or "", re.DOTALL):
                yield shlex.split(example.partition(" | ")[0])[1:]


@pytest.mark.parametrize("example", list(examples()), ids=" ".join)
def test_the_examples_in_the_help_can_be_read(run, example: list[str], tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "tasks.py").write_text("handle = print\n")
    (tmp_path / "turns.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    # With no database to be had, an example that is understood ends at the database's door.
    monkeypatch.setenv("PARKKEEPER_DSN", "postgresql://nobody@127.0.0.1:1/none")
    done = run(*example)
    assert done.code == (0 if example[0] in ("render", "grants") else 3), done.err


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)], ids=str)
def test_the_programs_help_lists_commands_and_exit_codes(run, arguments) -> None:
    helped = run(*arguments)
    text = without_frames(helped.out)
    assert helped.code == 0
    for word in ("migrate", "queue", "memory", "PARKKEEPER_DSN", "Exit codes: 0 done"):
        assert word in text


def test_the_version_is_the_packages(run) -> None:
    assert run("--version").out == f"parkkeeper {parkkeeper.__version__}\n"


def test_help_imports_no_airflow() -> None:
    probe = (
        "import sys\nfrom parkkeeper.cli import main\nassert main(['--help']) == 0\n"
        "assert 'parkkeeper.queue' in sys.modules\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in ('airflow', 'sqlalchemy', 'pandas')))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_installed_program_runs_a_command(spawn, finish, support: str) -> None:
    done = finish(spawn("memory", "append", "--namespace", support, "--json"), LINE)
    assert (done.code, done.err) == (0, "")
    assert done.json == {"turns": 1, "created": 1, "repeated": 0}


def test_the_installed_program_fails_with_one_line(spawn, finish) -> None:
    assert "is refused" in finish(spawn("memory", "parked", "--namespace", "public")).failed(2)


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_a_reader_that_leaves_is_no_reason_to_complain(spawn, finish, flags) -> None:
    # Enough for the pipe to fill: the reader is gone before all is written.
    process = spawn("render", "--family", "queue", "--namespace", "jobs", *flags)
    process.stdout.close()
    process.stdout = None
    done = finish(process)
    assert (done.code, done.err) == (141, "")


def test_a_reader_that_leaves_before_a_short_answer_is_no_reason_to_complain(
    spawn, finish, support: str
) -> None:
    process = spawn("memory", "parked", "--namespace", support)
    process.stdout.close()
    process.stdout = None
    done = finish(process)
    assert (done.code, done.err) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["render", "plan"])
def test_a_full_disk_is_said_to_be_one(spawn, finish, command: str) -> None:
    with open("/dev/full", "wb") as full:
        done = finish(spawn(command, "--family", "queue", "--namespace", "jobs", stdout=full))
    assert done.code == 1
    assert done.err == "parkkeeper: error: output cannot be written: No space left on device\n"


def test_without_a_place_for_the_answer_nothing_is_begun(finish, spawn, connection, support: str) -> None:
    closed = spawn("memory", "append", "--namespace", support, preexec_fn=lambda: os.close(1))
    done = finish(closed, LINE)
    assert done.code == 1
    assert done.err == "parkkeeper: error: stdout is closed: nothing was begun\n"
    assert MemoryStore(connection, support).freshness("ada").stored == 0


def test_an_interrupted_load_says_how_many_went_in(spawn, finish, connection, support: str, until) -> None:
    process = spawn("memory", "append", "--namespace", support)
    store = MemoryStore(connection, support)
    process.stdin.write(LINE * BATCH)
    process.stdin.flush()
    until(lambda: store.freshness("ada").stored == BATCH)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert (done.code, done.out) == (130, "")
    # When the signal meets the answer to the commit, the load does not know of it.
    assert re.fullmatch(r"parkkeeper: interrupted; at least (0|1000) turns went in\n", done.err)
    assert store.freshness("ada").stored == BATCH


def test_a_fault_of_our_own_is_one_line_too(run, monkeypatch) -> None:
    # An error that nobody foresaw, in the place where it would come from: below a command.
    def fault(*_: object, **__: object) -> str:
        raise ValueError("rosebud")

    monkeypatch.setattr(migrations, "render", fault)
    line = run("render", "--family", "queue", "--namespace", "jobs").failed(1)
    assert line.startswith("ValueError in ")
    assert "rosebud" not in line


def test_migrating_planning_and_status_agree(run, namespace: str) -> None:
    plan = run("plan", "--family", "memory", "-n", namespace, "--json").json
    assert [list(row) for row in plan] == [["family", "version", "name", "sha256"]] * len(plan)
    before = run("status", "--family", "memory", "-n", namespace, "--json").json
    assert (before["applied"], before["pending"]) == ([], plan)
    assert run("migrate", "--family", "memory", "-n", namespace, "--target", plan[1]["version"]).code == 0
    applied = run("migrate", "--family", "memory", "-n", namespace, "--json").json
    assert [row["version"] for row in applied] == [row["version"] for row in plan[2:]]
    assert list(applied[0]) == ["family", "version", "name", "sha256", "applied_at", "duration_ms", "retries"]
    after = run("status", "--family", "memory", "-n", namespace, "--json").json
    assert ([row["name"] for row in after["applied"]], after["pending"]) == (
        [row["name"] for row in plan],
        [],
    )
    assert run("migrate", "--family", "memory", "-n", namespace).out == "nothing to apply\n"
    assert run("migrate", "--family", "memory", "-n", namespace, "--json").json == []
    assert "parked_not_lost" in run("status", "--family", "memory", "-n", namespace).out


def test_the_size_of_the_ring_is_chosen_once(run, namespace: str, connection) -> None:
    migrate = ("migrate", "--family", "queue", "-n", namespace)
    assert run(*migrate, "--queue-slots", "5", "--target", "1").code == 0
    slots = sql.SQL("SELECT slot_count FROM {}").format(sql.Identifier(namespace, "queue_ring_state"))
    assert connection.execute(slots).fetchone() == (5,)
    again = run(*migrate, "--queue-slots", "6", "--target", "1")
    assert again.code == 0
    assert "--queue-slots counts only when it is first made" in again.out
    assert connection.execute(slots).fetchone() == (5,)


def test_the_rendered_script_is_the_same_as_text_and_in_json(run, monkeypatch) -> None:
    monkeypatch.delenv("PARKKEEPER_DSN")
    command = ("render", "--family", "queue", "-n", "jobs", "--queue-slots", "8", "--target", "32")
    script = run(*command).out
    assert script == migrations.render("jobs", "queue", queue_slots=8, target=32)
    assert json.loads(run(*command, "--json").out) == {"namespace": "jobs", "family": "queue", "sql": script}
