"""What a worker does from its start to its end, in the thread that has its session."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import psycopg

from parkkeeper.errors import ParkkeeperError
from parkkeeper.queue.claim import ClaimedJob
from parkkeeper.queue.handlers import HandlerThreads
from parkkeeper.queue.outcomes import WorkerOutcome
from parkkeeper.queue.session import WorkerSession
from parkkeeper.queue.stopping import Stop
from parkkeeper.queue.storage import QueueStorage

T = TypeVar("T")

#: How long a worker waits, in seconds, before it looks again at a queue that had nothing for it, if nobody wakes it.
IDLE_WAIT = 0.5
#: How long, in seconds, a job that is done waits at most for others to be recorded with.
RECORD_WITHIN = 0.5

# A heartbeat comes each time a third of the lease is over, and no more often than this, in seconds.
_SHORTEST_BEAT = 0.05


class Shift:
    """One run of a worker; the parameters are those of :class:`~parkkeeper.queue.worker.Worker`."""

    def __init__(
        self,
        queue: str,
        session: WorkerSession,
        threads: HandlerThreads,
        stop: Stop,
        *,
        batch: int,
        lease: timedelta,
        concurrency: int,
        grace: timedelta,
    ) -> None:
        self._queue, self._session, self._threads, self._stop = queue, session, threads, stop
        self._batch, self._lease, self._concurrency, self._grace = batch, lease, concurrency, grace
        self._beat = max(lease.total_seconds() / 3, _SHORTEST_BEAT)
        self._beat_at = 0.0
        self._in_hand: dict[tuple[int, int], ClaimedJob] = {}
        self._done: list[ClaimedJob] = []
        self._failures: list[tuple[ClaimedJob, str]] = []
        self._ended_by: BaseException | None = None
        self._cut_short = False  # and what was asked then may have been done
        #: What was done so far.
        self.outcome = WorkerOutcome()

    @property
    def in_hand(self) -> int:
        """How many jobs are claimed and not yet recorded."""
        return len(self._in_hand)

    def work(self, drain: bool) -> None:
        """Work until told to stop, or, with `drain`, until there is nothing to do; then hand back what is left."""
        try:
            self._work(drain)
            self._finish()
        except BaseException as error:
            self._save_after(error)
            raise
        if self._ended_by is not None:
            raise self._ended_by

    def _work(self, drain: bool) -> None:
        while not (self._stop.asked or self._ended_by):
            if self.in_hand >= self._concurrency:
                self._wait(RECORD_WITHIN)
            elif self._claim():
                continue
            elif drain:
                if not self._in_hand:
                    return
                self._wait(RECORD_WITHIN)
            elif not self._session.await_jobs(self._queue):
                losses = self._session.losses
                due = self._session.next_due(self._queue)
                # On a session that was opened only now, nobody knows yet that this worker waits.
                if losses == self._session.losses:
                    self._wait(IDLE_WAIT if due is None else min(IDLE_WAIT, due))

    def _claim(self) -> bool:
        asked_at = time.monotonic()
        claims = self._session.ask(lambda storage: storage.claim(self._queue, self._batch, lease=self._lease))
        if not claims:
            return False
        if not self._in_hand:
            self._beat_at = asked_at + self._beat
        self._in_hand |= {_identity(claim): claim for claim in claims}
        self._threads.give(claims)
        self._session.stop_awaiting_jobs(self._queue)
        return True

    def _wait(self, seconds: float) -> None:
        """Wait for something to do, record what is done, and keep what is not."""
        if self._in_hand:
            seconds = min(seconds, RECORD_WITHIN, self._beat_at - time.monotonic())
        self._session.wait(seconds)
        self._record()
        if self._in_hand and time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + self._beat
            kept = list(self._in_hand.values())
            self._session.ask(lambda storage: storage.extend(kept, self._lease))

    def _record(self) -> None:
        for attempt in self._threads.ended():
            if attempt.error is None:
                self._done.append(attempt.claim)
            else:
                self._failures.append((attempt.claim, attempt.error))
            self._ended_by = self._ended_by or attempt.ends_worker
        if done := self._done:
            completed = self._told(
                lambda storage: storage.complete(done),
                lambda: self._session.became(done).count("completed"),
            )
            self._done = []
            self._count(done, completed=completed, stale=len(done) - completed)
        if failures := self._failures:
            failed = [claim for claim, _ in failures]
            states = self._told(
                lambda storage: storage.fail_many(failures), lambda: self._session.became(failed)
            )
            self._failures = []
            ends = {state: states.count(state) for state in ("retryable", "failed", "dead_lettered")}
            self._count(failed, **ends, stale=len(failed) - sum(ends.values()))

    def _told(self, action: Callable[[QueueStorage], T], looked_up: Callable[[], T]) -> T:
        """Return what `action` says; what the rows say when a first answer may have been lost, as with a session."""
        losses = self._session.losses
        answer = self._session.ask(action)
        return looked_up() if self._cut_short or self._session.losses != losses else answer

    def _count(self, claims: Sequence[ClaimedJob], **figures: int) -> None:
        for claim in claims:
            del self._in_hand[_identity(claim)]
        self.outcome = replace(
            self.outcome, **{name: getattr(self.outcome, name) + more for name, more in figures.items()}
        )

    def _finish(self) -> None:
        """Hand back what was not begun, wait for what runs, record it, and hand back the rest."""
        self._session.stop_awaiting_jobs(self._queue)
        unbegun = self._threads.take_back()
        self._count(unbegun, handed_back=self._handed_back(unbegun))
        end = time.monotonic() + self._grace.total_seconds()
        self._record()
        while self._in_hand and not self._stop.insisted and (left := end - time.monotonic()) > 0:
            self._wait(left)
        self._record()
        unfinished = list(self._in_hand.values())
        handed_back = self._handed_back(unfinished)
        self._count(unfinished, handed_back=handed_back, stale=len(unfinished) - handed_back)

    def _handed_back(self, claims: list[ClaimedJob]) -> int:
        if not claims:
            return 0
        # When they were claimed: for the database's clock that is over, whatever ours says.
        at_once = min(claim.lease_until for claim in claims) - self._lease
        handed_back = self._told(
            lambda storage: storage.snooze(claims, at_once),
            lambda: self._session.became(claims).count("scheduled"),
        )
        self._session.wake_workers(self._queue)
        return handed_back

    def _save_after(self, error: BaseException) -> None:
        """Record and hand back what can be, and say what cannot."""
        self._cut_short = True
        try:
            self._session.come_to_rest()
            if not self._session.lost:
                self._finish()
        except (psycopg.Error, ParkkeeperError):
            pass
        if self._in_hand:
            error.add_note(f"{self.in_hand} jobs stay running until their lease is over and they are rescued")


def _identity(claim: ClaimedJob) -> tuple[int, int]:
    return claim.run_lease, claim.job_id
