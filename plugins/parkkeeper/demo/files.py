"""The demo's jobs: read and hash real files of the installed packages, among them files that are not there."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from parkkeeper.queue import ClaimedJob

QUEUE = "files"
#: Compare a file with the digest that its package's RECORD has of it.
VERIFY = "verify_file"
#: Read where a package was installed from; most packages have no such file.
ORIGIN = "read_origin"
#: Read the licence as one file; most packages have a folder of that name.
LICENCE = "read_licence"
#: Read a report that is delivered later than it was due.
REPORT = "read_report"


class DigestMismatch(Exception):
    """A file is not what its package's RECORD says."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The jobs of one round by kind, as `args`; and how many of them fail, which was looked up in the file system.

    What fails is what a look beforehand says: the file is missing, or is a folder.
    """

    jobs: Mapping[str, list[dict[str, Any]]] = field(repr=False)
    failing: int

    @property
    def total(self) -> int:
        """How many jobs there are."""
        return sum(map(len, self.jobs.values()))


def plan(rounds: int, verified: int, others: int) -> list[Plan]:
    """Divide real files into `rounds`: `verified` of RECORD and `others` each of the two other kinds, per round."""
    records = _recorded()
    folders = _metadata_folders()
    found = []
    for _ in range(rounds):
        chosen = list(islice(folders, others))
        jobs = {
            VERIFY: list(islice(records, verified)),
            ORIGIN: [{"path": str(folder / "direct_url.json")} for folder in chosen],
            LICENCE: [{"path": str(folder / "licenses")} for folder in chosen],
        }
        paths = [Path(args["path"]) for kind in (ORIGIN, LICENCE) for args in jobs[kind]]
        found.append(Plan(jobs, failing=sum(not path.is_file() for path in paths)))
    return found


def reports(folder: Path, count: int) -> Plan:
    """Plan jobs for reports that are not in `folder` yet; what an earlier run put there is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"report-{number}.txt" for number in range(count)]
    for path in paths:
        path.unlink(missing_ok=True)
    return Plan({REPORT: [{"path": str(path)} for path in paths]}, failing=count)


def deliver(plan: Plan) -> None:
    """Put the reports where their jobs look for them."""
    for args in plan.jobs[REPORT]:
        Path(args["path"]).write_text("Better late than never.\n", encoding="utf-8")


def verify(path: str, algorithm: str, digest: str) -> str:
    """Hash a file and compare; return the digest.

    Raises
    ------
    DigestMismatch
        It is another one.
    OSError
        The file cannot be read.
    """
    found = _digest(Path(path), algorithm)
    if found != digest:
        raise DigestMismatch(f"{path} has another {algorithm} than RECORD says")
    return found


def read(path: str) -> str:
    """Hash a file; return the digest. Raises OSError when it cannot be read."""
    return _digest(Path(path), "sha256")


def handle(job: ClaimedJob) -> str:
    """Do a job of any of the kinds here; what is raised makes it a failed one."""
    return verify(**job.args) if job.kind == VERIFY else read(**job.args)


HANDLERS = dict.fromkeys((VERIFY, ORIGIN, LICENCE, REPORT), handle)


def _digest(path: Path, algorithm: str) -> str:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, algorithm).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _recorded() -> Iterator[dict[str, Any]]:
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or []:
            if file.hash is not None:
                path = str(file.locate())
                yield {"path": path, "algorithm": file.hash.mode, "digest": file.hash.value}


def _metadata_folders() -> Iterator[Path]:
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or []:
            if file.name == "METADATA" and file.parent.suffix == ".dist-info":
                yield Path(str(file.locate())).parent
