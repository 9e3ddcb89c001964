"""A small client of Airflow's REST API: what the demo and the scheduler's test ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_exponential

from parkkeeper.errors import ParkkeeperError

T = TypeVar("T")

PAGE = 100
#: Seconds for one answer: a busy machine may need many for the first.
TIMEOUT = 90


class AirflowError(ParkkeeperError):
    """Airflow could not be started, or did not do what was asked of it in time."""


class AirflowUnreachable(AirflowError):
    """The API server gave no answer."""


@dataclass(frozen=True, slots=True)
class DagRun:
    """One run of a DAG: `state` is Airflow's word, `duration` is in seconds (None while it runs)."""

    dag_id: str
    run_id: str
    state: str
    duration: float | None

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen in it."""
        return self.state in ("success", "failed")


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """One task of a run: `map_index` is -1 unless it was mapped, `duration` is in seconds."""

    task_id: str
    map_index: int
    state: str | None
    try_number: int
    duration: float | None


class AirflowClient:
    """Talks to an Airflow API server; a context manager that closes its connections.

    Parameters
    ----------
    url
        The server's address, e.g. ``http://127.0.0.1:8080``.
    """

    def __init__(self, url: str) -> None:
        # The server is on this machine: a proxy that the environment names has nothing to do with it.
        self._http = httpx.Client(base_url=url, timeout=TIMEOUT, trust_env=False)

    def close(self) -> None:
        """Close the connections; the client is of no use afterwards."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def login(self, username: str, password: str) -> None:
        """Get a token that every later call carries."""
        token = self._call("POST", "/auth/token", json={"username": username, "password": password})
        self._http.headers["Authorization"] = f"Bearer {token['access_token']}"

    def health(self) -> dict[str, str | None]:
        """Return each component's status; all empty while the server does not answer."""
        try:
            return {
                name: (figures or {}).get("status")
                for name, figures in self._call("GET", "/api/v2/monitor/health").items()
            }
        except AirflowUnreachable:
            return {}

    def warm_up(self) -> None:
        """Have the server set up what tasks talk to: its first call takes longer than a task waits for it."""
        self._call("GET", "/execution/health")

    def dag_ids(self) -> set[str]:
        """Return the DAGs that the DAG processor has read so far."""
        return {dag["dag_id"] for dag in self._pages("/api/v2/dags", "dags")}

    def wait_for_dags(self, wanted: set[str], timeout: timedelta = timedelta(minutes=1)) -> None:
        """Wait until the DAG processor has read the DAGs `wanted`.

        Raises
        ------
        AirflowError
            Some of them are not there after `timeout`; the message names them and the import errors.
        """
        missing = wanted - until(self.dag_ids, wanted.issubset, timeout)
        if missing:
            reasons = "; ".join(self.import_errors()) or "no import error was reported"
            raise AirflowError(f"no DAG {', '.join(sorted(missing))} in Airflow: {reasons}")

    def import_errors(self) -> list[str]:
        """Return which DAG files and plugins could not be read, each with the last line of the reason."""
        dags = self._pages("/api/v2/importErrors", "import_errors")
        plugins = self._call("GET", "/api/v2/plugins/importErrors")["import_errors"]
        return [f"{error['filename']}: {_last_line(error['stack_trace'])}" for error in dags] + [
            f"{error['source']}: {_last_line(error['error'])}" for error in plugins
        ]

    def plugins(self) -> list[dict[str, Any]]:
        """Return the plugins that the API server has loaded."""
        return self._pages("/api/v2/plugins", "plugins")

    def providers(self) -> list[dict[str, Any]]:
        """Return the providers that are installed."""
        return self._pages("/api/v2/providers", "providers")

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler start runs of the DAG, on its schedule too."""
        self._call("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": False})

    def pause(self, dag_id: str) -> None:
        """Keep the scheduler from starting further runs of the DAG."""
        self._call("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": True})

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> DagRun:
        """Start a manual run, with `conf` as its params; return it as it stands, usually queued."""
        body = {"logical_date": None, "conf": conf or {}}
        return _run(self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", json=body))

    def run(self, dag_id: str, run_id: str) -> DagRun:
        """Return a run as it stands now."""
        return _run(self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"))

    def runs(self, dag_id: str) -> list[DagRun]:
        """Return every run of the DAG, scheduled ones too, in the order in which they were due."""
        return [
            _run(row)
            for row in self._pages(f"/api/v2/dags/{dag_id}/dagRuns", "dag_runs", order_by="run_after")
        ]

    def wait(self, run: DagRun, timeout: timedelta = timedelta(minutes=2)) -> DagRun:
        """Wait until `run` has finished, well or not, and return it.

        Raises
        ------
        AirflowError
            It has not after `timeout`.
        """
        found = until(lambda: self.run(run.dag_id, run.run_id), lambda now: now.finished, timeout)
        if not found.finished:
            raise AirflowError(
                f"run {run.run_id} of {run.dag_id} is still {found.state} "
                f"after {timeout.total_seconds():.0f} s"
            )
        return found

    def task_instances(self, run: DagRun) -> list[TaskInstance]:
        """Return the tasks of `run`, each mapped one for itself, in the order in which they started."""
        rows = self._pages(f"{_path(run)}/taskInstances", "task_instances", order_by="start_date")
        return [
            TaskInstance(row["task_id"], row["map_index"], row["state"], row["try_number"], row["duration"])
            for row in rows
        ]

    def xcom_keys(self, run: DagRun, task: TaskInstance) -> list[str]:
        """Return the keys under which `task` pushed something."""
        entries = self._pages(f"{_path(run, task)}/xcomEntries", "xcom_entries", map_index=task.map_index)
        return [entry["key"] for entry in entries]

    def xcom(self, run: DagRun, task: TaskInstance, key: str = "return_value") -> Any:
        """Return what `task` pushed under `key`."""
        path = f"{_path(run, task)}/xcomEntries/{key}"
        return self._call("GET", path, params={"map_index": task.map_index})["value"]

    def xcoms(self, run: DagRun, task: TaskInstance) -> dict[str, Any]:
        """Return all that `task` pushed, by key; one call for each."""
        return {key: self.xcom(run, task, key) for key in self.xcom_keys(run, task)}

    def log(self, run: DagRun, task: TaskInstance) -> list[dict[str, Any]]:
        """Return the lines of the task's last try, as structured records (``event``, ``level``, ...)."""
        path = f"{_path(run, task)}/logs/{task.try_number}"
        content = self._call("GET", path, params={"map_index": task.map_index, "full_content": True})[
            "content"
        ]
        return [line for line in content if isinstance(line, dict)]

    def get(self, path: str) -> Any:
        """Return the JSON document at `path`, as a plugin's endpoint serves it."""
        return self._call("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a JSON document to `path`; return the one that it answers."""
        return self._call("POST", path, json=body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Change what is at `path`; return what it answers."""
        return self._call("PATCH", path, json=body)

    def _pages(self, path: str, key: str, **params: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        while True:
            page = self._call("GET", path, params={**params, "limit": PAGE, "offset": len(rows)})
            rows += page[key]
            if not page[key] or len(rows) >= page["total_entries"]:
                return rows

    def _call(self, method: str, path: str, **request: Any) -> Any:
        try:
            response = self._http.request(method, path, **request)
        except httpx.TransportError as error:
            raise AirflowUnreachable(
                f"Airflow at {self._http.base_url} gave no answer to {method} {path}: {type(error).__name__}"
            ) from None
        if response.is_error:
            raise AirflowError(
                f"{method} {path} was refused with status {response.status_code}: {_detail(response)}"
            )
        return response.json()


def until(look: Callable[[], T], done: Callable[[T], bool], timeout: timedelta) -> T:
    """Call `look`, ever less often, until `done` with what it returns or out of time; return the last one."""
    return Retrying(
        retry=retry_if_result(lambda found: not done(found)),
        wait=wait_exponential(multiplier=0.1, max=1),
        stop=stop_after_delay(timeout.total_seconds()),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
    )(look)


def _run(row: dict[str, Any]) -> DagRun:
    return DagRun(row["dag_id"], row["dag_run_id"], row["state"], row["duration"])


def _path(run: DagRun, task: TaskInstance | None = None) -> str:
    path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}"
    return f"{path}/taskInstances/{task.task_id}" if task else path


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it gave no reason"])[-1]


def _detail(response: httpx.Response) -> str:
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return response.reason_phrase
