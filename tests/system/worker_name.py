"""What a worker of a test calls its host, so that two on one machine can be told apart."""

from __future__ import annotations

import os


def worker_name() -> str:
    return os.environ["WORKER_NAME"]
