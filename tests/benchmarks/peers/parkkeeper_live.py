"""Parkkeeper that carries failed jobs into the slot which takes new ones."""

from __future__ import annotations

from . import parkkeeper_floor


class Queue(parkkeeper_floor.Queue):
    """The same, with ``carry_to="live"``."""

    carry_to = "live"
