"""Formation on two Celery workers with a broker between them and the scheduler, each of which may be lost."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from copies import new_name
from parkkeeper import database, migrations
from parkkeeper.demo import airflow as demo
from parkkeeper.demo import leash
from parkkeeper.demo.client import DagRun, until
from parkkeeper.memory import MemoryStore
from real_airflow import PATIENCE, prepared, site_file

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

REDIS = "/usr/bin/redis-server"
WORKERS = ("first", "second")
FORMATION = "parkkeeper_memory_formation"
SCOPES = 24
WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE application_name LIKE 'af:parkkeeper\\_memory\\_formation:form:%' AND wait_event_type = 'Lock'
"""


class Site:
    """A namespace, an Airflow that forms its memory, and the processes that a test may kill."""

    def __init__(self, airflow: demo.AirflowStandalone, store: MemoryStore) -> None:
        self.airflow = airflow
        self.client = airflow.client
        self.store = store
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = ExitStack()

    def start(self, name: str, *arguments: str, **environment: str) -> None:
        """Start a command of Airflow's in a session of its own, which ends with the test."""
        with open(self.log(name), "ab") as log:
            process = subprocess.Popen(
                demo.command(*arguments),
                env=self.airflow.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._stack.callback(process.wait)
        self._stack.callback(leash.end_session, process.pid, grace=0)  # whatever it did is checked by then
        self.processes[name] = process

    def log(self, name: str) -> Path:
        return self.airflow.home / f"{name}.log"

    def start_worker(self, name: str) -> None:
        options = ("--concurrency", "1", "--celery-hostname", name, "--skip-serve-logs")
        self.start(name, "celery", "worker", *options, WORKER_NAME=name)

    def wait_for_worker(self, name: str) -> None:
        log = self.log(name)
        assert " ready." in until(log.read_text, lambda text: " ready." in text, PATIENCE)

    def stop(self) -> None:
        self._stack.close()

    def store_turns(self) -> None:
        """Store a turn in each of many scopes."""
        for scope in range(SCOPES):
            self.store.append(f"s{scope}", [{"role": "user", "content": "hello"}])

    def trigger(self, *, batches: int) -> DagRun:
        """Start a run that forms what there is in batches."""
        return self.client.trigger(FORMATION, {"scopes_per_batch": 1, "max_batches": batches})

    def batches(self, run: DagRun) -> list[dict[str, Any]]:
        """Return Airflow's rows of a run's batches."""
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances?task_id=form&limit=100"
        return list(self.client.get(path)["task_instances"])

    def check(self, run: DagRun, *, turns: int) -> list[dict[str, Any]]:
        """Wait for a run; every task of it has succeeded, and each turn is formed once. Return the batches."""
        done = self.client.wait(run, PATIENCE)
        tasks = self.client.task_instances(done)
        states = {(task.task_id, task.map_index): task.state for task in tasks}
        assert (done.state, set(states.values())) == ("success", {"success"}), states
        formed = [self.client.xcom(done, task, "formed") for task in tasks if task.task_id == "form"]
        assert sum(formed) == SCOPES
        (found,) = (self.client.xcom(done, task) for task in tasks if task.task_id == "freshness")
        assert (found["formed"], found["backlog"]) == (turns, 0)
        memories = sql.SQL("SELECT count(*) FROM {}").format(
            sql.Identifier(self.store.namespace.name, "memory")
        )
        assert self.store.connection.execute(memories).fetchone() == (turns,)
        return self.batches(done)


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """The address of a Redis that ends with this process, however that ends."""
    port = demo.free_port()
    with tempfile.TemporaryDirectory(prefix="parkkeeper-redis-") as folder:
        process = subprocess.Popen(
            [
                "setpriv",
                "--pdeathsig",
                "TERM",
                REDIS,
                "--bind",
                "127.0.0.1",
                "--port",
                str(port),
                "--save",
                "",
            ],
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def store(server_dsn: str) -> Iterator[MemoryStore]:
    name = new_name()
    with database.connect(server_dsn) as connection:
        migrations.migrate(connection, name, "memory")
        yield MemoryStore(connection, name)
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def site(server_dsn: str, store: MemoryStore, broker: str) -> Iterator[Site]:
    """Airflow with a scheduler that two workers get their tasks from."""
    settings = {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__CELERY__BROKER_URL": f"{broker}/0",
        "AIRFLOW__CELERY__RESULT_BACKEND": f"{broker}/1",
        "AIRFLOW__CELERY__OPERATION_TIMEOUT": "60",
        # The scheduler and the API server are on no worker.
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "worker_name.worker_name",
        "PYTHONPATH": str(Path(__file__).parent),
        "WORKER_NAME": "none",
    }
    files = {FORMATION: site_file(FORMATION, namespace=store.namespace.name, schedule=None)}
    with prepared(server_dsn, files, settings) as airflow:
        site = Site(airflow, store)
        try:
            airflow.launch(("api-server", "dag-processor", "triggerer"))
            site.start("scheduler", "scheduler")
            for name in WORKERS:
                site.start_worker(name)
            airflow.wait_until_ready(timeout=PATIENCE)
            airflow.client.wait_for_dags({FORMATION}, PATIENCE)
            airflow.client.unpause(FORMATION)
            for name in WORKERS:
                site.wait_for_worker(name)
            yield site
        finally:
            site.stop()


def test_batches_run_on_both_workers_and_form_each_turn_once(site: Site) -> None:
    site.store_turns()
    batches = site.check(site.trigger(batches=6), turns=SCOPES)
    assert len(batches) == 6
    assert {batch["hostname"] for batch in batches} == set(WORKERS)
    assert {batch["try_number"] for batch in batches} == {1}


def test_neither_a_worker_that_ends_nor_a_scheduler_that_is_killed_loses_a_turn(
    site: Site, server_dsn: str
) -> None:
    site.store_turns()
    observations = sql.Identifier(site.store.namespace.name, "observation")
    with database.connect(server_dsn) as holder, holder.transaction():
        # Lets `plan` look, and keeps each `form` waiting in the middle of its work.
        holder.execute(sql.SQL("LOCK TABLE {} IN EXCLUSIVE MODE").format(observations))
        run = site.trigger(batches=2)
        until(
            lambda: site.store.connection.execute(WAITING).fetchone(), lambda found: found != (0,), PATIENCE
        )
        busy = next(batch["hostname"] for batch in site.batches(run) if batch["state"] == "running")
        site.processes[busy].terminate()
        site.processes["scheduler"].kill()
        site.processes["scheduler"].wait()
    assert site.processes[busy].wait(PATIENCE.total_seconds()) == 0
    assert site.client.run(run.dag_id, run.run_id).state == "running"
    site.start("scheduler", "scheduler")
    site.check(run, turns=2 * SCOPES)
