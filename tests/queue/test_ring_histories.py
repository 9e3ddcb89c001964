"""Random histories of a small ring against a model of plain sets: counts and places after every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from load import FULL
from parkkeeper.queue import ClaimedJob, QueueStorage
from parkkeeper.queue.outcomes import PruneOutcome, QueueCounts, RescueOutcome
from ringside import age, differences, pruned, query, run_out, terminal, turn

FLOOR = timedelta(hours=72)
SLOTS = 4


pytestmark = [pytest.mark.attack, pytest.mark.usefixtures("claims_kept")]


@dataclass
class Slot:
    """What stands in one slot: how many bodies, which jobs wait or run, and which have ended and how."""

    generation: int = -1
    bodies: int = 0
    waiting: set[int] = field(default_factory=set)
    running: dict[int, ClaimedJob] = field(default_factory=dict)
    ended: dict[int, tuple[str, bool]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not self.bodies and not self.ended


@dataclass
class Segment:
    """Which failed jobs stand in a floor segment, and whether all of it was seen to be past the floor."""

    failed: set[int] = field(default_factory=set)
    passed: bool = False


class Model:
    """A ring of plain sets beside the real one; each step is taken in both."""

    def __init__(self, storage: QueueStorage, carry_to: str) -> None:
        self.storage = storage
        self.carry_to = carry_to
        self.floor: dict[int, Segment] = {}
        self.slots = [Slot() for _ in range(SLOTS)]
        self.current = 0
        self.slots[0].generation = self.generation = 0
        self.deferred: set[int] = set()
        self.evacuated: set[int] = set()
        self.letters: set[int] = set()
        self.outside = Slot()  # Jobs that run outside of the ring.
        self.purged = 0
        self.old: set[int] = set()
        self.dropped = {"failed": 0, "other": 0}

    def enqueue(self, number: int) -> None:
        ids = self.storage.enqueue_many("q", "work", [{}] * number)
        self._wait(ids)

    def _wait(self, ids: list[int]) -> None:
        self.slots[self.current].waiting |= set(ids)
        self.slots[self.current].bodies += len(ids)

    def claim(self, number: int) -> None:
        available = {job_id for slot in self.slots for job_id in slot.waiting} | self.evacuated
        claims = self.storage.claim("q", number)
        assert {claim.job_id for claim in claims} <= available
        assert bool(claims) == bool(available)
        back = [claim.job_id for claim in claims if claim.job_id in self.evacuated]
        self.evacuated -= set(back)
        self._wait(back)
        for claim in claims:
            [slot] = [slot for slot in self.slots if claim.job_id in slot.waiting]
            slot.waiting.remove(claim.job_id)
            slot.running[claim.job_id] = claim

    def _take_running(self, number: int) -> list[tuple[Slot, ClaimedJob]]:
        places = [self.outside, *self.slots]
        return [(slot, claim) for slot in places for claim in slot.running.values()][:number]

    def complete(self, number: int) -> None:
        taken = self._take_running(number)
        assert self.storage.complete([claim for _, claim in taken]) == len(taken)
        self._end(taken, "completed")

    def fail(self, number: int) -> None:
        taken = self._take_running(number)
        outcomes = self.storage.fail_many([(claim, "no such file") for _, claim in taken], terminal=True)
        assert outcomes == ["failed"] * len(taken)
        self._end(taken, "failed")

    def _end(self, taken: list[tuple[Slot, ClaimedJob]], state: str) -> None:
        for slot, claim in taken:
            del slot.running[claim.job_id]
            outside = slot is self.outside
            (self.slots[self.current] if outside else slot).ended[claim.job_id] = (state, outside)

    def bury(self, number: int) -> None:
        self.storage.set_queue("q", dead_letter=True)
        for slot, claim in self._take_running(number):
            assert self.storage.fail(claim, "no such file", terminal=True) == "dead_lettered"
            del slot.running[claim.job_id]
            self.letters.add(claim.job_id)
        self.storage.set_queue("q", dead_letter=False)

    def deaths(self, number: int) -> None:
        self.enqueue(number)
        self.claim(number)
        self.bury(number)

    def exhume(self, number: int) -> None:
        outcome = self.storage.retry_dead_letters("q", limit=number)
        assert set(outcome.retried) <= self.letters
        assert len(outcome.retried) == outcome.matched == min(number, len(self.letters))
        self.letters -= set(outcome.retried)
        self._wait(outcome.retried)

    def purge(self, number: int) -> None:
        gone = self.storage.purge_dead_letters("q", older_than=0, limit=number).purged
        assert gone == min(number, len(self.letters))
        self.letters = {row[0] for row in query(self.storage, "SELECT job_id FROM {ns}.dlq_entries")}
        self.purged += gone

    def defer(self, number: int) -> None:
        for slot, claim in self._take_running(number):
            assert self.storage.fail(claim, "no such file") == "retryable"
            del slot.running[claim.job_id]
            self.deferred.add(claim.job_id)
        self._put_off()

    def _put_off(self) -> None:
        query(
            self.storage,
            "UPDATE {ns}.deferred_jobs SET run_at = now() + interval '1 day' WHERE state <> 'available'",
        )

    def rescue(self, number: int) -> None:
        run_out(self.storage)
        alive = self._take_running(number)
        assert self.storage.extend([claim for _, claim in alive], timedelta(hours=1)) == len(alive)
        kept = {claim.job_id for _, claim in alive}
        places = [self.outside, *self.slots]
        lost = [(slot, job_id) for slot in places for job_id in slot.running if job_id not in kept]
        assert self.storage.rescue() == RescueOutcome(rescued=len(lost), failed=0)
        for slot, job_id in lost:
            del slot.running[job_id]
            self.deferred.add(job_id)
        self._put_off()

    def cancel(self, number: int) -> None:
        for slot in self.slots:
            for job_id in [*slot.waiting, *slot.running][:number]:
                assert self.storage.cancel(job_id)
                wide = job_id in slot.waiting
                slot.waiting.discard(job_id)
                slot.running.pop(job_id, None)
                slot.ended[job_id] = ("cancelled", wide)
        for job_id in [*self.outside.running][:number]:
            assert self.storage.cancel(job_id)
            self._end([(self.outside, self.outside.running[job_id])], "cancelled")
        for job_id in [*sorted(self.deferred)[:number], *sorted(self.evacuated)[:number]]:
            assert self.storage.cancel(job_id)
            self.deferred.discard(job_id)
            self.evacuated.discard(job_id)
            self.slots[self.current].ended[job_id] = ("cancelled", True)

    def grow_old(self, number: int) -> None:
        chosen = sorted(self._failed() - self.old)[:number]
        age(self.storage, chosen, FLOOR + timedelta(minutes=1))
        self.old |= set(chosen)
        for segment in self.floor.values():
            segment.passed = segment.failed <= self.old if segment.failed else segment.passed

    def _failed(self) -> set[int]:
        ended = {j for slot in self.slots for j, (state, _) in slot.ended.items() if state == "failed"}
        return ended.union(*[segment.failed for segment in self.floor.values()])

    def rotate(self, number: int) -> None:
        order = [(self.current + step) % SLOTS for step in range(1, SLOTS)]
        empty = [slot for slot in order if self.slots[slot].empty]
        if all(slot.empty for slot in self.slots):
            expected = "skipped_idle"
        elif not empty:
            expected = "skipped_busy"
        else:
            expected = "rotated"
            self.current, self.generation = empty[0], self.generation + 1
            self.slots[self.current].generation = self.generation
        outcome = turn(self.storage)
        assert (outcome.outcome, outcome.slot, outcome.generation) == (
            expected,
            self.current,
            self.generation,
        )

    def evacuate(self, number: int) -> None:
        others = [slot for n, slot in enumerate(self.slots) if n != self.current]
        scarce = sum(slot.empty for slot in others) <= 2
        newest = max(others, key=lambda slot: slot.generation)
        waiting, running = self._outside()
        outcome = self.storage.evacuate(number)
        now_waiting, now_running = self._outside()
        waiting, running = now_waiting - waiting, now_running - running
        assert (len(waiting), len(running)) == (outcome.waiting, outcome.running)
        self.evacuated |= waiting
        left = number
        for slot in sorted(others, key=lambda slot: slot.generation):
            turned = slot is not newest
            leaves = (scarce and turned) or slot.bodies >= 4 * len(slot.waiting)
            runs = turned and leaves and (scarce or slot.bodies >= 4 * len(slot.running))
            # The older slot is emptied before the next one is begun.
            moved = slot.waiting & waiting
            assert len(moved) == (min(left, len(slot.waiting)) if leaves else 0)
            slot.waiting -= moved
            left -= len(moved)
            went = slot.running.keys() & running
            assert len(went) == (min(left, len(slot.running)) if runs else 0)
            self.outside.running |= {job_id: slot.running.pop(job_id) for job_id in went}
            left -= len(went)

    def _outside(self) -> tuple[set[int], set[int]]:
        running = query(self.storage, "SELECT job_id FROM {ns}.running_evacuated")
        return _available_outside(self.storage), {row[0] for row in running}

    def prune(self, number: int) -> None:
        retention = timedelta(0) if number == 3 else FLOOR
        outcome = self.storage.prune_oldest(retention)
        if passed := {n for n, segment in self.floor.items() if segment.passed or not retention}:
            assert outcome.slot in passed
            expected = self._drop(outcome.slot)
        else:
            expected = self._prune(bool(retention))
        assert outcome == PruneOutcome(
            **{**_figures(expected), "lock_ms": outcome.lock_ms, "truncate_ms": outcome.truncate_ms}
        )

    def _prune(self, floor: bool) -> PruneOutcome:
        sealed = [n for n, slot in enumerate(self.slots) if n != self.current and not slot.empty]
        sealed.sort(key=lambda n: self.slots[n].generation)
        pinned = None
        for number in sealed:
            slot = self.slots[number]
            for reason, jobs in (("ready_rows", slot.waiting), ("open_claims", slot.running)):
                if jobs:
                    pinned = pinned or PruneOutcome(
                        "skipped_active", number, slot.generation, reason, len(jobs)
                    )
                    break
            else:
                return self._reclaim(number, floor)
        return pinned or PruneOutcome("noop")

    def _drop(self, number: int) -> PruneOutcome:
        failed = len(self.floor.pop(number).failed)
        self.dropped["failed"] += failed
        return PruneOutcome("pruned", number, None, pruned_failed=failed)

    def _carry(self, kept: set[int]) -> None:
        if self.carry_to == "live":
            self.slots[self.current].ended.update({job_id: ("failed", True) for job_id in kept})
            return
        places = terminal(self.storage)
        for job_id in kept:
            number = places[job_id][1]
            assert -24 <= number <= -1
            segment = self.floor.setdefault(number, Segment())
            segment.failed.add(job_id)
            segment.passed = False

    def _reclaim(self, number: int, floor: bool) -> PruneOutcome:
        slot = self.slots[number]
        kept = {
            j for j, (state, _) in slot.ended.items() if floor and state == "failed" and j not in self.old
        }
        failed = sum(state == "failed" for state, _ in slot.ended.values()) - len(kept)
        other = len(slot.ended) - len(kept) - failed
        self._carry(kept)
        self.dropped["failed"] += failed
        self.dropped["other"] += other
        self.slots[number] = Slot(generation=slot.generation)
        return PruneOutcome(
            "pruned",
            number,
            slot.generation,
            carried_failed_rows=len(kept),
            pruned_failed=failed,
            pruned_completed=other,
        )

    def retry(self, number: int) -> None:
        failed = self._failed()
        outcome = self.storage.retry_failed_by_queue("q", limit=number)
        assert set(outcome.retried) <= failed
        assert len(outcome.retried) == outcome.matched == min(number, len(failed))
        assert outcome.pruned_failed_count == self.dropped["failed"]
        for slot in self.slots:
            for job_id in set(outcome.retried) & set(slot.ended):
                del slot.ended[job_id]
        for segment in self.floor.values():
            segment.failed -= set(outcome.retried)
        self.old -= set(outcome.retried)
        self._wait(outcome.retried)

    def roll_up(self, number: int) -> None:
        assert self.storage.roll_up(limit=10 * number).trusted

    def rebuild(self, number: int) -> None:
        self.storage.rebuild_terminal_counters()

    def failures(self, number: int) -> None:
        self.enqueue(number)
        self.claim(number)
        self.fail(number)

    def successes(self, number: int) -> None:
        self.enqueue(number)
        self.claim(number)
        self.complete(number)

    def losses(self, number: int) -> None:
        self.enqueue(number + 1)
        self.claim(number + 1)
        self.rescue(number)

    def lap(self, number: int) -> None:
        self.rotate(number)
        self.check()
        self.prune(number)

    def turn_claims(self, number: int) -> None:
        self._turn("claim")

    def turn_leases(self, number: int) -> None:
        self._turn("lease")

    def _turn(self, ring: str) -> None:
        self.storage.rotate(ring=ring)
        while (outcome := self.storage.prune_oldest(ring=ring)).outcome == "pruned":
            assert (outcome.carried_failed_rows, outcome.pruned_failed, outcome.pruned_completed) == (0, 0, 0)
        assert outcome.outcome == "noop" or (ring == "claim" and outcome.reason == "open_claims")

    def check(self) -> None:
        """Compare the ring with the model."""
        places = {
            j: (state, n, wide)
            for n, slot in enumerate(self.slots)
            for j, (state, wide) in slot.ended.items()
        }
        places |= {j: ("failed", n, True) for n, segment in self.floor.items() for j in segment.failed}
        assert terminal(self.storage) == places
        assert pruned(self.storage) == (self.dropped["other"], self.dropped["failed"])
        assert differences(self.storage) == []
        assert _available_outside(self.storage) == self.evacuated
        expected = QueueCounts(
            available=sum(len(slot.waiting) for slot in self.slots) + len(self.evacuated),
            running=sum(len(slot.running) for slot in [self.outside, *self.slots]),
            terminal=len(places) + self.dropped["other"] + self.dropped["failed"],
            pruned_failed=self.dropped["failed"],
            deferred=len(self.deferred),
            failed=sum(state == "failed" for state, _, _ in places.values()),
            dead_lettered=len(self.letters),
            purged_dead_letters=self.purged,
        )
        assert self.storage.queue_counts("q") == expected
        with self.storage.connection.transaction(force_rollback=True):
            query(self.storage, "UPDATE {ns}.queue_counter_state SET distrusted_at = now()")
            assert self.storage.queue_counts("q") == expected, "counted from the rows"


def _available_outside(storage: QueueStorage) -> set[int]:
    return {
        row[0] for row in query(storage, "SELECT job_id FROM {ns}.deferred_jobs WHERE state = 'available'")
    }


def _figures(outcome: PruneOutcome) -> dict[str, object]:
    return {name: getattr(outcome, name) for name in PruneOutcome.__slots__}


def _reset(storage: QueueStorage) -> None:
    """Begin the namespace anew, which takes a tenth of the time that migrating one takes."""
    query(
        storage,
        "TRUNCATE {ns}.ready_entries, {ns}.ready_tombstones, {ns}.done_entries, {ns}.queue_terminal_count_deltas,"
        " {ns}.queue_terminal_live_counts, {ns}.queue_terminal_rollups, {ns}.lease_claim_batches,"
        " {ns}.lease_claim_closures, {ns}.leases, {ns}.lease_watermarks, {ns}.deferred_jobs, {ns}.dlq_entries,"
        " {ns}.running_evacuated, {ns}.floor_segment_contents, {ns}.queue_lanes, {ns}.kept_batches, {ns}.kept_closures",
    )
    query(storage, "UPDATE {ns}.queue_ring_state SET current_slot = 0, generation = 0")
    query(
        storage,
        "UPDATE {ns}.queue_ring_slots SET generation = CASE slot WHEN 0 THEN 0 END, sealed_at = NULL,"
        " reclaimed_at = NULL, settled_batch_id = 0",
    )
    storage.set_queue("q")


# Steps that lead somewhere stand among those that may do nothing, so that short histories get far.
STEPS = ["enqueue", "claim", "complete", "fail", "defer", "rescue", "cancel", "grow_old", "rotate", "prune"]
STEPS += ["retry", "failures", "successes", "losses", "lap", "failures", "successes", "lap", "grow_old"]
STEPS += ["bury", "deaths", "exhume", "purge", "evacuate", "evacuate"]
STEPS += ["turn_claims", "turn_leases", "turn_claims", "roll_up", "rebuild"]
HISTORIES = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 3)), min_size=8, max_size=40)


@pytest.mark.timeout(900)  # A failure is made small before it is shown.
@settings(
    max_examples=100 if FULL else 10,
    report_multiple_bugs=False,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(history=HISTORIES)
def test_any_history_leaves_counts_and_places_as_the_model_has_them(
    storage: QueueStorage, carry_to: str, history: list[tuple[str, int]]
) -> None:
    _reset(storage)
    model = Model(storage, carry_to)
    for step, number in history:
        getattr(model, step)(number)
        model.check()
