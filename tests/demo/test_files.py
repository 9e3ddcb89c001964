"""The demo's jobs: real files, real failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from parkkeeper import migrations
from parkkeeper.demo import files
from parkkeeper.queue import QueueStorage
from parkkeeper.queue.worker import Worker


def test_rounds_share_no_job_and_foretell_what_a_worker_makes_of_them(
    connection: psycopg.Connection[Any], namespace: str
) -> None:
    migrations.migrate(connection, namespace, "queue", queue_slots=4)
    storage = QueueStorage(connection, namespace)
    rounds = files.plan(rounds=2, verified=50, others=10)
    assert [plan.total for plan in rounds] == [70, 70]
    assert len({args["path"] for plan in rounds for args in plan.jobs[files.VERIFY]}) == 100
    for plan in rounds:
        for kind, args_list in plan.jobs.items():
            storage.enqueue_many(files.QUEUE, kind, args_list, max_attempts=1)
        done = Worker(storage, files.QUEUE, files.HANDLERS, batch=50).run(drain=True)
        assert (done.completed, done.failed) == (70 - plan.failing, plan.failing)
        assert plan.failing > 0


def test_a_file_is_compared_with_what_its_package_recorded(tmp_path: Path) -> None:
    (args,) = files.plan(rounds=1, verified=1, others=0)[0].jobs[files.VERIFY]
    assert files.verify(**args) == args["digest"]
    other = tmp_path / "other"
    other.write_text("other")
    with pytest.raises(files.DigestMismatch, match="RECORD"):
        files.verify(**args | {"path": str(other)})


@pytest.mark.parametrize(("name", "error"), [("missing", FileNotFoundError), (".", IsADirectoryError)])
def test_what_cannot_be_read_fails_as_the_file_system_says(
    tmp_path: Path, name: str, error: type[OSError]
) -> None:
    with pytest.raises(error):
        files.read(str(tmp_path / name))


def test_reports_are_missing_until_they_are_delivered(tmp_path: Path) -> None:
    files.deliver(files.reports(tmp_path, 2))
    plan = files.reports(tmp_path, 2)
    paths = [args["path"] for args in plan.jobs[files.REPORT]]
    assert plan.failing == 2
    assert not any(Path(path).exists() for path in paths)
    files.deliver(plan)
    assert all(files.read(path) for path in paths)
