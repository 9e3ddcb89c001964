"""The demo itself, in the order in which it happens; each step says what it did."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from parkkeeper import database, embedded
from parkkeeper.database import statements
from parkkeeper.demo import corpus, files, place, runs
from parkkeeper.demo.airflow import AirflowStandalone
from parkkeeper.demo.checks import Found, Put
from parkkeeper.demo.client import DagRun
from parkkeeper.demo.corpus import Conversation
from parkkeeper.demo.progress import Progress
from parkkeeper.memory import MemoryStore
from parkkeeper.queue import QueueStorage
from parkkeeper.queue.worker import Worker

#: The least that a ring can have, so that a few rounds turn it more than once.
SLOTS = 4
ROUNDS = SLOTS + 1
VERIFIED = 600
OTHERS = 20
AGED = 30
LATE = 3

_SQL = statements("demo")


@dataclass(frozen=True, slots=True)
class Stage:
    """What every step needs: a database session, an Airflow, and a voice."""

    connection: psycopg.Connection[Any]
    airflow: AirflowStandalone
    progress: Progress
    state: Path

    @property
    def storage(self) -> QueueStorage:
        """The queue of the demo's namespace."""
        return QueueStorage(self.connection, place.NAMESPACE)


@dataclass(frozen=True, slots=True)
class Material:
    """The real input: conversations, and jobs on installed files."""

    conversations: Sequence[Conversation]
    plans: Sequence[files.Plan]


def open_stage(
    stack: ExitStack, checkout: place.Checkout, progress: Progress
) -> tuple[Stage, Future[Material]]:
    """Start the database and Airflow; meanwhile read the input. All of it ends with `stack`."""
    pool = stack.enter_context(ThreadPoolExecutor(1))
    material = pool.submit(_read)
    with progress.step("Postgres") as say:
        dsn = _database(stack, checkout.state)
        if embedded.DSN_VARIABLE not in os.environ:
            _write_env(checkout.state, dsn)
        connection = stack.enter_context(database.connect(dsn, application_name="parkkeeper-demo"))
        place.renew(connection, place.NAMESPACE)
        version = str(connection.info.server_version // 10_000)
        say(f"version {version}, an empty namespace {place.NAMESPACE}")
    airflow = AirflowStandalone(
        checkout.state / "airflow", dsn=dsn, dags=checkout.dags, plugins=checkout.plugins
    )
    stack.callback(airflow.stop)
    with progress.step("Airflow's metadata database"):
        airflow.prepare()
    with progress.step("Airflow: API server, scheduler, DAG processor, triggerer") as say:
        airflow.launch()
        airflow.wait_until_ready(lambda health: say(_healthy(health)))
        airflow.client.wait_for_dags(set(runs.DAGS))
        say(airflow.url)
    return Stage(connection, airflow, progress, checkout.state), material


def play(stage: Stage, pending: Future[Material]) -> tuple[Put, Found]:
    """Run the whole path once; return what was put in and what came out."""
    migrate(stage)
    material = pending.result()
    put_in_turns(stage, material.conversations)
    formation = runs.start(stage.airflow.client, runs.FORMATION, {"limit": 100_000})
    late = files.reports(stage.state / "reports", LATE)
    last = turn_the_ring(stage, [*material.plans], late)
    retried = retry_late(stage, late)
    finish_formation(stage, formation)
    put = _put(material, late)
    with stage.progress.step("Figures of all runs"):
        return put, collect(stage, put, last, retried)


def migrate(stage: Stage) -> None:
    """Make the tables of both families, by the DAG."""
    with stage.progress.step("Migrations, by the DAG") as say:
        report = _run(stage, runs.MIGRATE, {"queue_slots": SLOTS})
        applied = sum(task.figures.get("applied", 0) for task in report.tasks)
        say(f"{applied} applied to an empty schema, a ring of {SLOTS} slots")


def put_in_turns(stage: Stage, conversations: Sequence[Conversation]) -> None:
    """Append the conversations, and form one scope by an extractor to which some of its turns are malformed."""
    with stage.progress.step("Conversations of chatterbot-corpus, appended as turns") as say:
        stored = corpus.append(stage.connection, place.NAMESPACE, conversations)
        say(f"{stored} in {len(corpus.LANGUAGES)} scopes")
    with stage.progress.step(
        f"Formation of {corpus.BROKEN_SCOPE} by pairs, until what fails is parked"
    ) as say:
        parked = corpus.form_until_parked(stage.connection, place.NAMESPACE)
        say(f"{parked} parked after {corpus.MAX_ATTEMPTS} attempts (waits backdated)")


def turn_the_ring(stage: Stage, plans: Sequence[files.Plan], late: files.Plan) -> runs.RunReport:
    """Work off each round's jobs and turn the ring by the DAG; make some failed jobs old on the way."""
    for number, plan in enumerate(plans, 1):
        title = f"Round {number} of {len(plans)}: hash files, turn the ring by the DAG"
        with stage.progress.step(title) as say:
            done = work(stage, [plan, late] if number == 1 else [plan])
            aged = make_old(stage, AGED) if number == 2 else 0
            report = _run(stage, runs.MAINTENANCE)
            carried, pruned = (report.figure("prune", key) for key in ("carried_failed", "pruned_failed"))
            backdated = f" ({aged} backdated past their retention)" if aged else ""
            say(f"{done} jobs; {carried} failed ones carried, {pruned} dropped{backdated}")
    # A run that the schedule starts after this would drop the jobs that are retried next, and count them.
    runs.hold(stage.airflow.client, runs.MAINTENANCE)
    return report


def work(stage: Stage, plans: Sequence[files.Plan]) -> int:
    """Enqueue the jobs of `plans` and run a worker until none is left; return how many there were.

    What fails is not tried again: a file that is missing now is missing a second later.
    """
    for plan in plans:
        for kind, args_list in plan.jobs.items():
            stage.storage.enqueue_many(files.QUEUE, kind, args_list, max_attempts=1)
    _drain(stage)
    return sum(plan.total for plan in plans)


def make_old(stage: Stage, count: int) -> int:
    """Backdate the end of the first `count` jobs that failed for a missing or unreadable file; return how many."""
    job_ids = [
        row[0]
        for row in stage.connection.execute(
            _SQL.render("failed_jobs", place.NAMESPACE),
            {"kinds": [files.ORIGIN, files.LICENCE], "limit": count},
        )
    ]
    return stage.connection.execute(_SQL.render("age_failed", place.NAMESPACE), {"job_ids": job_ids}).rowcount


def retry_late(stage: Stage, late: files.Plan) -> int:
    """Deliver the late reports, retry the jobs that wanted them, and work them off; return how many."""
    with stage.progress.step("Files that were missing are there now: retry their failed jobs") as say:
        files.deliver(late)
        retried = stage.storage.retry_failed_by_kind(files.REPORT).retried
        _drain(stage)
        say(f"{len(retried)} retried, a lap of the ring later")
    return len(retried)


def finish_formation(stage: Stage, formation: DagRun) -> None:
    """Wait for the formation that was started before the rounds, then sweep."""
    with stage.progress.step("Formation of all other scopes, by the DAG (since round 1)") as say:
        report = runs.finish(stage.airflow.client, formation)
        say(f"{report.figure('form', 'formed')} turns formed")
    with stage.progress.step("Sweep of parked turns, by the DAG") as say:
        report = _run(stage, runs.SWEEP)
        say(f"{report.figure('sweep', 'parked_total')} parked")


def collect(stage: Stage, put: Put, last: runs.RunReport, retried: int) -> Found:
    """Ask Airflow, the database and the page for what came out."""
    client = stage.airflow.client
    store = MemoryStore(stage.connection, place.NAMESPACE)
    return Found(
        runs=runs.report_all(client),
        last_round=last,
        retried=retried,
        counts=stage.storage.queue_counts(files.QUEUE),
        freshness={scope: store.freshness(scope) for scope in put.turns},
        page=client.get("/parkkeeper/figures"),
        import_errors=client.import_errors(),
        providers=[provider["package_name"] for provider in client.providers()],
    )


def _put(material: Material, late: files.Plan) -> Put:
    scopes = [conversation.scope for conversation in material.conversations]
    return Put(
        turns={scope: scopes.count(scope) for scope in corpus.LANGUAGES},
        broken_scope=corpus.BROKEN_SCOPE,
        broken=corpus.broken_offsets(material.conversations),
        jobs=sum(plan.total for plan in material.plans),
        failing=sum(plan.failing for plan in material.plans),
        late=late.total,
        aged=AGED,
    )


def _run(stage: Stage, dag_id: str, conf: dict[str, Any] | None = None) -> runs.RunReport:
    client = stage.airflow.client
    return runs.finish(client, runs.start(client, dag_id, conf))


def _drain(stage: Stage) -> None:
    interrupted = threading.Event()
    Worker(stage.storage, files.QUEUE, files.HANDLERS, batch=200).run(interrupted, drain=True)
    if interrupted.is_set():  # the worker takes the signals for itself while it runs
        raise KeyboardInterrupt


def _read() -> Material:
    return Material(corpus.read(), files.plan(ROUNDS, VERIFIED, OTHERS))


def _database(stack: ExitStack, state: Path) -> str:
    settings = {
        "synchronous_commit": "off"
    }  # losing the last moments in a crash of the machine is no harm here
    return stack.enter_context(embedded.resolve_dsn(state / "postgres", settings=settings))


def _write_env(state: Path, dsn: str) -> None:
    """Leave a file that a shell reads to reach this database by the command line."""
    path = state / "env"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    binaries = shlex.quote(str(Path(sys.executable).parent))
    path.write_text(
        f"export {embedded.DSN_VARIABLE}={shlex.quote(dsn)}\nexport PATH={binaries}:$PATH\n", encoding="utf-8"
    )


def _healthy(health: dict[str, str | None]) -> str:
    return ", ".join(sorted(name for name, status in health.items() if status == "healthy"))
