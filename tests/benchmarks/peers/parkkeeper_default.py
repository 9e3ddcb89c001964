"""Parkkeeper with the batch that a worker has unless told otherwise."""

from __future__ import annotations

from . import parkkeeper_queue


class Queue(parkkeeper_queue.Queue):
    """One worker on one connection, as it comes."""

    batch = 10
    settings = f"one worker, batch {batch} (its default)"
    shares = (0.1, 0.1)
