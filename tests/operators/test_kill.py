"""A task that is told to end: not a success, its statement gone, its claims handed back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from airflow_env import run_task
from operators.killed_task import Sleeps
from parkkeeper.memory import MemoryStore
from parkkeeper.namespace import Namespace
from parkkeeper.operators import TaskKilled
from parkkeeper.operators.base import ParkkeeperOperator, Work

# A busy machine takes more than a minute to import Airflow in the program.
PATIENCE = timedelta(minutes=5)
RUNNING = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'af:dag\\_%:killed:test:1' AND state = 'active'"


@pytest.fixture
def start(namespace: str) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start the program, which dies with the test."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        program = Path(__file__).with_name("killed_task.py")
        process = subprocess.Popen(
            [sys.executable, program, namespace],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(program.parents[1]), os.environ.get("PYTHONPATH", "")]),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str]) -> str:
    """Tell the task to end, as Airflow does; return what the program said last."""
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE.total_seconds())
    return output.strip().splitlines()[-1]


def test_a_batch_hands_back_the_turn_in_its_hands(
    start: Callable[[], subprocess.Popen[str]], store: MemoryStore
) -> None:
    store.append("a", [{"role": "user", "content": "hello"}])
    process = start()
    assert process.stdout is not None
    assert any(line == "working\n" for line in process.stdout)
    claimed = f'SELECT count(claim_token), sum(formation_attempts) FROM "{store.namespace}".observation'  # noqa: S608
    assert store.connection.execute(claimed).fetchone() == (1, 1)

    assert end(process) == "ended: failed TaskKilled"

    assert store.connection.execute(claimed).fetchone() == (0, 0)


def test_after_an_execution_timeout_there_is_nothing_to_end(
    connection: psycopg.Connection, namespace: str
) -> None:
    ran = run_task(
        lambda: Sleeps(task_id="killed", namespace=namespace, execution_timeout=timedelta(milliseconds=300))
    )
    assert ran.state == "failed"
    assert type(ran.error).__name__ in ("AirflowTaskTimeout", "AirflowException")
    assert connection.execute(RUNNING).fetchall() == []


def test_a_task_that_was_told_to_end_before_it_began_does_nothing(namespace: str) -> None:
    class Told(Sleeps):
        def pre_execute(self, context: object) -> None:
            self.on_kill()

        def prepare(self, namespace: Namespace) -> Work:
            raise AssertionError("it began")

    ran = run_task(lambda: Told(task_id="killed", namespace=namespace))
    assert ran.state == "failed"
    assert isinstance(ran.error, TaskKilled)


def test_only_a_task_that_works_is_interrupted(namespace: str) -> None:
    operator: ParkkeeperOperator = Sleeps(task_id="killed", namespace=namespace)
    assert operator.on_kill() is None
