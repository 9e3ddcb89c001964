"""The claim ring and the lease ring: what a prune of a slot of them leaves behind, and what pins one.

Neither holds a job, nor the only trace of one. See ``docs/explanation/ring.md``.
"""

from __future__ import annotations

from typing import Any

import psycopg

from parkkeeper.database import statements
from parkkeeper.queue.outcomes import PruneOutcome
from parkkeeper.queue.reclaim import SlotPrune, Stopwatch
from parkkeeper.queue.ring import Ring


class ClaimSlotPrune(SlotPrune):
    """A slot of the claim ring: pinned while a claim in it is open; the cursors that it holds are carried."""

    ring = "claim"
    sql = statements("queue/claim_ring")
    afterwards = ("drop_leases",)

    def pinned(
        self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None, *, exact: bool
    ) -> PruneOutcome | None:
        """Tell how many claims are open."""
        count = self.row(cursor, "proofs", slot).open_claims
        return PruneOutcome("skipped_active", slot, generation, "open_claims", count) if count else None

    def keep(
        self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None, state: Ring
    ) -> PruneOutcome:
        """Carry the cursors in force to the current slot."""
        self.do(cursor, "carry", slot, current_slot=state.current_slot)
        return self.foresee(cursor, slot, generation)

    def foresee(self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None) -> PruneOutcome:
        """Return the outcome, which has no figures: no job leaves with a claim that has ended."""
        return PruneOutcome("pruned", slot, generation)


class LeaseSlotPrune(SlotPrune):
    """A slot of the lease ring: never pinned, since the leases that are needed still are moved."""

    ring = "lease"
    sql = statements("queue/lease_ring")

    def pinned(
        self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None, *, exact: bool
    ) -> PruneOutcome | None:
        """Tell of nothing."""
        return None

    def hold_writers(self, cursor: psycopg.Cursor[Any], slot: int, watch: Stopwatch) -> None:
        """Make writers and readers of the slot wait at once: a rescue reads a lease before it deletes it."""
        self.do(cursor, "hold_claims", slot)
        self.hold_all(cursor, slot, watch)

    def keep(
        self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None, state: Ring
    ) -> PruneOutcome:
        """Move the leases of batches that are open to the current slot."""
        self.do(cursor, "carry", slot, current_slot=state.current_slot)
        return self.foresee(cursor, slot, generation)

    def foresee(self, cursor: psycopg.Cursor[Any], slot: int, generation: int | None) -> PruneOutcome:
        """Return the outcome, which has no figures: a lease is no job."""
        return PruneOutcome("pruned", slot, generation)
