"""Parkkeeper with one job at a time, each recorded before the next is claimed."""

from __future__ import annotations

from . import parkkeeper_queue


class Queue(parkkeeper_queue.Queue):
    """One worker on one connection, as for long jobs."""

    batch = 1
    settings = "one worker, batch 1"
    shares = (0.02, 0.02)
