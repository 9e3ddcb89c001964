"""A program that runs one task as Airflow's worker does, for a test that kills it; it says last how the task ended.

Its argument is the namespace. It says ``working`` once an extraction is in hand.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import psycopg

import conftest  # noqa: F401  (sets Airflow's home)
from airflow_env import run_task
from parkkeeper.memory.extractors import Memory, Turn
from parkkeeper.namespace import Namespace
from parkkeeper.operators import FormationBatchOperator, ParkkeeperOperator, memory
from parkkeeper.operators.base import Figures, Work


class Sleeps(ParkkeeperOperator):
    """Runs a statement that takes ten minutes."""

    outcomes = ("slept",)

    def prepare(self, namespace: Namespace) -> Work:
        def work(connection: psycopg.Connection[Any]) -> Figures:
            connection.execute("SELECT pg_sleep(600)")
            return {"outcome": "slept"}

        return work


class Waits:
    """An extractor that waits for ever."""

    name = "waits"
    version = "1"

    def extract(self, turn: Turn) -> list[Memory]:
        say("working")
        threading.Event().wait()
        raise AssertionError("unreachable")


def say(line: str) -> None:
    print(f"\n{line}", flush=True)  # noqa: T201


def main(namespace: str) -> None:
    memory.load = lambda name: Waits()
    ran = run_task(lambda: FormationBatchOperator(task_id="killed", namespace=namespace, retries=0))
    say(f"ended: {ran.state} {type(ran.error).__name__}")


if __name__ == "__main__":
    main(*sys.argv[1:])
