"""A model of the queue's ring: slots, floor segments, narrow and wide rows, carry, prune, retry and the counters.

It is small and complete: every order of every step is looked at, with two jobs, three slots and two segments. A step is
what other sessions can see: a transaction that holds its locks from its first statement to its commit is one step, one
that lets others in between is several. `docs/explanation/ring-model.md` says which step stands for which code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

SLOTS = (0, 1, 2)
SEGMENTS = (-1, -2)
#: How often each job may be put back after it failed.
RETRIES = (1, 0)


class Fault(Enum):
    """What a broken variant does wrong; the check must notice each."""

    NARROW_CARRY = "carried rows are not made complete"
    NO_DELTAS = "the carry does not append the counts of what it moves"
    FOLD_CARRIED = "carried rows are counted as dropped, too"
    FOLD_AS_COMPLETED = "dropped failures are counted as completed"
    NO_SECOND_LOOK = "whether the slot is in use is not looked at again under the locks"
    IGNORE_CLAIMS = "open claims do not count as use"
    NO_LOCK_ON_ROWS = "a retry does not wait for the prune of its row's slot"
    TWO_CLOCKS = "what is dropped is decided after what is carried, by a later clock"
    SEGMENT_UNSEEN = "a segment is dropped whole as soon as one of its rows has passed"
    COMMIT_IN_BETWEEN = "the carry commits before the slot is truncated"


class Broken(AssertionError):
    """An invariant does not hold; the message says which."""


class Body(NamedTuple):
    """A row of `ready_entries`: the `seq`-th time that a job was put into the queue."""

    job: int
    seq: int
    slot: int


class Done(NamedTuple):
    """A row of `done_entries`; a narrow one (not `wide`) has its arguments in the body beside it."""

    job: int
    seq: int
    place: int
    failed: bool
    wide: bool = False
    past: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """What a row keeps wherever it stands and however old it is."""
        return self.job, self.seq


class Enqueue(NamedTuple):
    """A producer's transaction: it has read which slot is current, and has or has not written to it."""

    job: int
    slot: int
    written: bool = False


class Prune(NamedTuple):
    """A prune that has chosen a unit; then it has its locks; then it has decided what is `carried` and `dropped`."""

    unit: int
    #: The slot that is current, which it knows once it has the ring's lock.
    current: int | None = None
    carried: frozenset[tuple[Done, int]] | None = None
    dropped: frozenset[Done] = frozenset()


class State(NamedTuple):
    """What is committed, and which transactions are open."""

    current: int = 0
    bodies: frozenset[Body] = frozenset()
    tombs: frozenset[Body] = frozenset()
    claims: frozenset[Body] = frozenset()
    done: frozenset[Done] = frozenset()
    #: By place: differences of the counts of available, running, completed and failed.
    counts: tuple[tuple[int, tuple[int, int, int, int]], ...] = ()
    pruned_completed: int = 0
    pruned_failed: int = 0
    #: What has really left, for the check only.
    left: frozenset[Done] = frozenset()
    enqueue: Enqueue | None = None
    prune: Prune | None = None
    raised: bool = False

    def waiting(self, slot: int | None = None) -> set[Body]:
        """Return the bodies that a claim would hand out."""
        ended = {(row.job, row.seq, row.place) for row in self.done if not row.wide}
        return {
            body
            for body in self.bodies - self.tombs - self.claims
            if (slot is None or body.slot == slot) and (body.job, body.seq, body.slot) not in ended
        }

    def locked(self) -> int | None:
        """Return the slot or segment whose children a prune has locked against writers."""
        return self.prune.unit if self.prune and self.prune.current is not None else None

    def holds(self, place: int) -> bool:
        """Return whether a committed row stands in a slot or segment."""
        return any(b.slot == place for b in self.bodies) or any(row.place == place for row in self.done)

    def counted(self, place: int, **change: int) -> tuple[tuple[int, tuple[int, int, int, int]], ...]:
        """Return the counts with a difference appended at `place`."""
        names = ("available", "running", "completed", "failed")
        kept = dict(self.counts)
        now = kept.get(place, (0, 0, 0, 0))
        after = tuple(n + change.get(name, 0) for n, name in zip(now, names, strict=True))
        kept[place] = after  # type: ignore[assignment]
        return tuple(sorted((p, c) for p, c in kept.items() if any(c)))


Step = tuple[str, State]


@dataclass
class Model:
    """The steps that are possible in a state, right or with one fault, carrying to `carry_to`."""

    carry_to: str = "floor"
    jobs: int = 2
    fault: Fault | None = None
    steps: tuple[Callable[[State], Iterator[Step]], ...] = field(init=False)

    def __post_init__(self) -> None:
        """List the steps."""
        self.steps = (
            *(self.enqueue, self.claim, self.end, self.age, self.raise_retention),
            *(self.rotate, self.retry, self.take_locks, self.carry, self.truncate),
        )

    def after(self, state: State) -> Iterator[Step]:
        """Yield each step that may come next, with its name, and what it leads to."""
        for step in self.steps:
            yield from step(state)

    def enqueue(self, s: State) -> Iterator[Step]:
        """Read the current slot; write to it, maybe much later; commit, maybe later still."""
        if s.enqueue is None:
            known = {body.job for body in s.bodies} | {row.job for row in s.done | s.left}
            if len(known) < self.jobs:
                yield "enqueue reads the ring", s._replace(enqueue=Enqueue(len(known), s.current))
            return
        if not s.enqueue.written:
            if s.locked() != s.enqueue.slot:
                yield "enqueue writes", s._replace(enqueue=s.enqueue._replace(written=True))
            return
        body = Body(s.enqueue.job, 0, s.enqueue.slot)
        yield (
            "enqueue commits",
            s._replace(enqueue=None, bodies=s.bodies | {body}, counts=s.counted(body.slot, available=1)),
        )

    def claim(self, s: State) -> Iterator[Step]:
        """Hand a waiting job out."""
        for body in s.waiting():
            yield (
                "claim",
                s._replace(claims=s.claims | {body}, counts=s.counted(body.slot, available=-1, running=1)),
            )

    def end(self, s: State) -> Iterator[Step]:
        """Complete or fail a job that is running, in the slot of its body: a writer, which a prune keeps out."""
        for body in s.claims:
            if s.locked() == body.slot:
                continue
            for failed in (False, True):
                row = Done(body.job, body.seq, body.slot, failed)
                ended = {"failed": 1} if failed else {"completed": 1}
                yield (
                    "fail" if failed else "complete",
                    s._replace(
                        claims=s.claims - {body},
                        done=s.done | {row},
                        counts=s.counted(body.slot, running=-1, **ended),
                    ),
                )

    def age(self, s: State) -> Iterator[Step]:
        """Time passes: a failed row is past the floor."""
        for row in s.done:
            if row.failed and not row.past:
                yield "a row passes the floor", s._replace(done=s.done - {row} | {row._replace(past=True)})

    def raise_retention(self, s: State) -> Iterator[Step]:
        """Someone raises the retention, once: rows that were past the floor are inside again."""
        if not s.raised and any(row.past for row in s.done):
            yield (
                "the retention is raised",
                s._replace(raised=True, done=frozenset(row._replace(past=False) for row in s.done)),
            )

    def rotate(self, s: State) -> Iterator[Step]:
        """Seal the current slot and open the next empty one, under the ring's lock, which a prune holds."""
        if s.locked() is not None:
            return
        for turn in range(1, len(SLOTS)):
            slot = SLOTS[(s.current + turn) % len(SLOTS)]
            if not s.holds(slot):
                yield "rotate", s._replace(current=slot)
                return

    def retry(self, s: State) -> Iterator[Step]:
        """Put a failed job back: its row goes, a narrow row's body gets a tombstone, a new body comes."""
        for row in s.done:
            locked = s.locked() == row.place and self.fault is not Fault.NO_LOCK_ON_ROWS
            if not row.failed or row.seq >= RETRIES[row.job] or locked:
                continue
            old, new = Body(row.job, row.seq, row.place), Body(row.job, row.seq + 1, s.current)
            counted = s._replace(counts=s.counted(row.place, failed=-1))
            yield (
                "retry",
                s._replace(
                    done=s.done - {row},
                    tombs=s.tombs if row.wide else s.tombs | {old},
                    bodies=s.bodies | {new},
                    counts=counted.counted(new.slot, available=1),
                ),
            )

    def take_locks(self, s: State) -> Iterator[Step]:
        """Choose a unit by a look without locks, then take the ring's, the slot's and its children's, or give up."""
        if not s.prune:
            for unit in (*SLOTS, *SEGMENTS):
                if unit != s.current and s.holds(unit) and self._reclaimable(s, unit):
                    yield "prune looks", s._replace(prune=Prune(unit))
        elif s.prune.current is None:
            writing = s.enqueue and s.enqueue.written and s.enqueue.slot == s.prune.unit
            if s.prune.unit == s.current or writing:
                yield "prune is blocked", s._replace(prune=None)
            else:
                yield "prune takes its locks", s._replace(prune=Prune(s.prune.unit, s.current))

    def carry(self, s: State) -> Iterator[Step]:
        """Look again, then decide of each row by one clock whether it is carried or dropped."""
        if not s.prune or s.prune.current is None or s.prune.carried is not None:
            return
        unit = s.prune.unit
        if unit >= 0 and self._in_use(s, unit) and self.fault is not Fault.NO_SECOND_LOOK:
            yield "prune finds the slot in use", s._replace(prune=None)
            return
        rows = {row for row in s.done if row.place == unit}
        whole = self.fault is Fault.SEGMENT_UNSEEN and unit < 0
        inside = {row for row in rows if row.failed and not row.past and not whole}
        for goal in self._goals(s, unit):
            carried = frozenset((row, goal) for row in inside)
            dropped = frozenset(rows if self.fault is Fault.FOLD_CARRIED else rows - inside)
            decided = s._replace(prune=s.prune._replace(carried=carried, dropped=dropped))
            if self.fault is Fault.COMMIT_IN_BETWEEN:
                decided = self._moved(decided, carried)
            yield "prune carries", decided

    def truncate(self, s: State) -> Iterator[Step]:
        """Check that every row is accounted for, count, truncate and commit in one; or roll back, at any time."""
        if not s.prune:
            return
        if s.prune.carried is None:
            return
        yield "prune crashes", s._replace(prune=None)
        unit, carried, dropped = s.prune.unit, s.prune.carried, s.prune.dropped
        rows = frozenset(row for row in s.done if row.place == unit)
        kept = {row.key for row, _ in carried}
        decided = {row.key: row for row in dropped}
        gone = frozenset(decided.get(row.key, row) for row in rows if row.key not in kept)
        if self.fault is Fault.TWO_CLOCKS:
            dropped = frozenset(row for row in rows if row.past or not row.failed)
        failed = 0 if self.fault is Fault.FOLD_AS_COMPLETED else sum(row.failed for row in dropped)
        after = s if self.fault is Fault.COMMIT_IN_BETWEEN else self._moved(s, carried)
        yield (
            "prune commits",
            after._replace(
                prune=None,
                bodies=frozenset(body for body in after.bodies if body.slot != unit),
                tombs=frozenset(body for body in after.tombs if body.slot != unit),
                done=frozenset(row for row in after.done if row.place != unit),
                counts=tuple((place, c) for place, c in after.counts if place != unit),
                pruned_failed=s.pruned_failed + failed,
                pruned_completed=s.pruned_completed + len(dropped) - failed,
                left=s.left | gone,
            ),
        )

    def _moved(self, s: State, carried: frozenset[tuple[Done, int]]) -> State:
        """Return the state with the carried rows written where they go, and their counts."""
        wide = self.fault is not Fault.NARROW_CARRY
        past = {row.key: row.past for row in s.done}
        for row, goal in carried:
            moved = row._replace(place=goal, wide=row.wide or wide, past=past.get(row.key, row.past))
            counts = s.counts if self.fault is Fault.NO_DELTAS else s.counted(goal, failed=1)
            s = s._replace(done=s.done | {moved}, counts=counts)
        return s

    def _goals(self, s: State, unit: int) -> tuple[int, ...]:
        """Return where carried rows may go: which segment depends on times, so any but the unit itself.

        Segments differ by their names only, so of those that are empty one stands for all.
        """
        if self.carry_to == "live" and unit >= 0 and s.prune and s.prune.current is not None:
            return (s.prune.current,)
        goals = [segment for segment in SEGMENTS if segment != unit]
        empty = [segment for segment in goals if not s.holds(segment)]
        return tuple(segment for segment in goals if segment not in empty[1:])

    def _in_use(self, s: State, slot: int) -> bool:
        claims = set() if self.fault is Fault.IGNORE_CLAIMS else {b for b in s.claims if b.slot == slot}
        return bool(s.waiting(slot) or claims)

    def _reclaimable(self, s: State, unit: int) -> bool:
        rows = [row for row in s.done if row.place == unit]
        if unit >= 0:
            return not self._in_use(s, unit)
        some = any if self.fault is Fault.SEGMENT_UNSEEN else all
        return bool(rows) and some(row.past for row in rows)


def check(s: State, jobs: int) -> None:
    """Refuse a state in which a guarantee does not hold.

    Raises
    ------
    Broken
        Naming the guarantee.
    """
    places: list[tuple[int, int]] = [(b.job, b.seq) for b in s.waiting() | s.claims]
    places += [(row.job, row.seq) for row in s.done | s.left]
    if len({job for job, _ in places}) != len(places):
        raise Broken("a job stands in two places")
    known = {body.job for body in s.bodies} | {job for job, _ in places}
    if {job for job, _ in places} != known or known != set(range(len(known))):
        raise Broken("a job stands nowhere")
    for row in s.done:
        if not row.wide and Body(row.job, row.seq, row.place) not in s.bodies:
            raise Broken("a terminal row has lost its arguments")
    if not s.claims <= s.bodies:
        raise Broken("a claim has no body")
    totals = tuple(sum(column) for column in zip(*(c for _, c in s.counts), strict=True)) or (0, 0, 0, 0)
    failed = sum(row.failed for row in s.done)
    if totals != (len(s.waiting()), len(s.claims), len(s.done) - failed, failed):
        raise Broken("the counters are not the rows")
    gone = sum(row.failed for row in s.left)
    if (s.pruned_failed, s.pruned_completed) != (gone, len(s.left) - gone):
        raise Broken("the rollups are not what has left")
    if any(row.failed and not row.past for row in s.left):
        raise Broken("a failed row inside the floor was dropped")
