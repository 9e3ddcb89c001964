"""What wakes a worker that waits, and what tells it to stop."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Bell:
    """A bell that any thread and any signal handler may ring, and one thread waits for.

    A pipe, because a lock that a signal handler asks for may be held by what it interrupted, and because one can wait
    for a pipe and for a session at the same time.
    """

    def __init__(self) -> None:
        self._heard, self._rung = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(self._rung, False)

    def ring(self) -> None:
        """End the wait that is under way, or the next one."""
        with suppress(BlockingIOError):  # full: it rings
            os.write(self._rung, b"!")

    def wait(self, seconds: float, *others: int) -> None:
        """Wait until it rings, one of the other file descriptors has something to read, or the time is over."""
        poll = select.poll()
        for descriptor in (self._heard, *others):
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)]
        if self._heard in ready:
            os.read(self._heard, 4096)

    def __del__(self) -> None:
        # Not before nobody can ring any more: by then the numbers might be those of other files.
        os.close(self._heard)
        os.close(self._rung)


class Stop:
    """Whether a worker has been told to stop: by an event, or by a signal, for which it listens in the main thread.

    Parameters
    ----------
    until
        The event. It is set, too, when a signal was what told.
    bell
        Rung by a signal.
    """

    def __init__(self, until: threading.Event, bell: Bell) -> None:
        self._until = until
        self._bell = bell
        self._signals = 0

    @property
    def asked(self) -> bool:
        """Whether it is to stop."""
        if self._signals:
            # Not in the signal's handler: an event has a lock, which the interrupted code may hold.
            self._until.set()
        return self._until.is_set()

    @property
    def insisted(self) -> bool:
        """Whether it was told by a second signal not to wait for anything."""
        return self._signals > 1

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """Listen for SIGTERM and SIGINT; only the main thread can. Then give them back to whoever had them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        process = os.getpid()

        def tell(number: int, frame: Any) -> None:
            if os.getpid() != process:
                # A child that a handler has forked. It has no worker that could stop.
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
                return
            self._signals += 1
            self._bell.ring()

        before = {number: signal.signal(number, tell) for number in _STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
