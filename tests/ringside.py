"""What the tests of the ring share: jobs brought to an end, an oracle of the counts, sessions that can be stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from parkkeeper.database import statements
from parkkeeper.queue import ClaimedJob, QueueStorage, ring
from parkkeeper.queue.outcomes import PruneOutcome, RotateOutcome

#: How long a test waits for what must happen at once; reached only when it fails.
SOON = 20

#: Where the statements of a prune of the queue's ring stand.
PRUNE = ("queue/prune", "queue/carry", "queue/floor")


def query(storage: QueueStorage, text: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run SQL of a test's own, with {ns} for the schema."""
    composed = sql.SQL(text).format(ns=sql.Identifier(storage.namespace.name))
    cursor = storage.connection.execute(composed, values or None)
    return cursor.fetchall() if cursor.description else []


def end_jobs(
    storage: QueueStorage, count: int = 1, *, state: str = "failed", queue: str = "q", kind: str = "work"
) -> list[int]:
    """Enqueue jobs and bring each to `state`; the arguments of the job at place n are {"n": n}."""
    ids = storage.enqueue_many(queue, kind, [{"n": n} for n in range(count)])
    if state == "cancelled":
        assert all(storage.cancel(job_id) for job_id in ids)
        return ids
    claims = []
    while more := storage.claim(queue, count):
        claims += more
    assert {claim.job_id for claim in claims} == set(ids)
    if state == "completed":
        assert storage.complete(claims) == count
    else:
        outcomes = storage.fail_many([(claim, "no such file") for claim in claims], terminal=True)
        assert set(outcomes) == {"failed"}
    return ids


def age(storage: QueueStorage, job_ids: Iterable[int], by: timedelta) -> None:
    """Let time pass for terminal jobs: their stamps are set back, and what is noted of them in the floor segments."""
    query(
        storage,
        "UPDATE {ns}.done_entries SET finalized_at = finalized_at - %s, attempted_at = attempted_at - %s"
        " WHERE job_id = ANY (%s)",
        by,
        by,
        list(job_ids),
    )
    query(
        storage,
        "UPDATE {ns}.floor_segment_contents AS contents"
        "   SET newest_finalized_at = held.newest,"
        "       expected_until = expected_until - (newest_finalized_at - held.newest)"
        "  FROM (SELECT ready_slot, queue, max(finalized_at) AS newest"
        "          FROM {ns}.done_entries JOIN {ns}.queue_lanes USING (lane_id)"
        "         WHERE ready_slot < 0 GROUP BY ready_slot, queue) AS held"
        " WHERE contents.segment = held.ready_slot AND contents.queue = held.queue",
    )


def run_out(storage: QueueStorage) -> None:
    """Let time pass for all leases that there are."""
    query(storage, "UPDATE {ns}.lease_claim_batches SET lease_until = lease_until - interval '2 h'")
    query(storage, "UPDATE {ns}.leases SET lease_until = lease_until - interval '2 h'")
    query(storage, "UPDATE {ns}.running_evacuated SET lease_until = lease_until - interval '2 h'")


def terminal(storage: QueueStorage) -> dict[int, tuple[str, int, bool]]:
    """Return the terminal jobs in the ring: state, slot, and whether the row stands alone."""
    rows = query(
        storage,
        "SELECT job_id, state::text, ready_slot, enqueue_xid IS NULL AND args IS NOT NULL FROM {ns}.done_entries",
    )
    assert len({row[0] for row in rows}) == len(rows), "a job stands in two places"
    return {job_id: (state, slot, wide) for job_id, state, slot, wide in rows}


def pruned(storage: QueueStorage) -> tuple[int, int]:
    """Return how many terminal rows have left the ring: not failed, failed."""
    return query(
        storage,
        "SELECT coalesce(sum(pruned_completed_count), 0)::bigint, coalesce(sum(pruned_failed_count), 0)::bigint"
        " FROM {ns}.queue_terminal_rollups",
    )[0]


# Which jobs wait and which run is read from the batches' own lists here, not from cursors and sums. Jobs that have not
# ended are compared by lane: those outside of the ring are counted in whatever slot was current.
_DIFFERENCE = """
WITH claimed AS (
    SELECT batch.ready_slot, batch.lane_id, job.lane_seq,
           NOT EXISTS (SELECT FROM {ns}.lease_claim_closures AS closure
                        WHERE closure.run_lease = batch.run_lease
                          AND (closure.ordinals IS NULL OR job.ordinal = ANY (closure.ordinals))) AS open
      FROM {ns}.lease_claim_batches AS batch, unnest(batch.lane_seqs) WITH ORDINALITY AS job (lane_seq, ordinal)
), rows AS (
    SELECT ready_slot, lane_id, 'available' AS state
      FROM {ns}.ready_entries
     WHERE lane_seq NOT IN (SELECT lane_seq FROM claimed)
       AND lane_seq NOT IN (SELECT lane_seq FROM {ns}.ready_tombstones)
    UNION ALL
    SELECT ready_slot, lane_id, 'running' FROM claimed WHERE open
    UNION ALL
    SELECT ready_slot, lane_id, state::text FROM {ns}.done_entries
    UNION ALL
    SELECT NULL, lane_id, state::text FROM {ns}.deferred_jobs
    UNION ALL
    SELECT NULL, lane_id, 'running' FROM {ns}.running_evacuated
    UNION ALL
    SELECT NULL, lane_id, 'dead_lettered' FROM {ns}.dlq_entries
), counted AS (
    SELECT ready_slot, lane_id, state, count(*) AS rows, 0 AS ledger FROM rows GROUP BY 1, 2, 3
    UNION ALL
    SELECT ready_slot, lane_id, state::text, 0, delta FROM {ns}.queue_terminal_count_deltas
    UNION ALL
    SELECT ready_slot, lane_id, state::text, 0, count FROM {ns}.queue_terminal_live_counts
)
SELECT CASE WHEN state IN ('completed', 'failed', 'cancelled') THEN ready_slot END, lane_id, state,
       sum(rows), sum(ledger)
  FROM counted
 GROUP BY 1, 2, 3
HAVING sum(rows) <> sum(ledger)
"""


_KEEP = """
CREATE TABLE {ns}.KEPT AS SELECT * FROM {ns}.CLAIMS;
CREATE FUNCTION {ns}.keep_CLAIMS() RETURNS trigger LANGUAGE plpgsql SET search_path = {ns} AS
    $$ BEGIN INSERT INTO KEPT SELECT NEW.*; RETURN NULL; END $$;
CREATE TRIGGER keep AFTER INSERT ON {ns}.CLAIMS FOR EACH ROW EXECUTE FUNCTION {ns}.keep_CLAIMS();
"""
_KEPT = {"lease_claim_batches": "kept_batches", "lease_claim_closures": "kept_closures"}


def keep_claims(storage: QueueStorage) -> None:
    """Let the oracle know of claims that have left with their slot of the claim ring."""
    for claims, kept in _KEPT.items():
        query(storage, _KEEP.replace("CLAIMS", claims).replace("KEPT", kept))


def differences(storage: QueueStorage) -> list[tuple[Any, ...]]:
    """Return where the ledger of counts is not what the rows are: slot, lane, state, rows, ledger."""
    text = _DIFFERENCE
    with storage.connection.transaction():
        query(storage, "SET LOCAL jit = off")  # Compiling this takes seconds, where it is compiled.
        for claims, kept in _KEPT.items():
            if query(storage, "SELECT to_regclass(%s)", f"{storage.namespace.name}.{kept}") != [(None,)]:
                text = text.replace(claims, kept)
        return query(storage, text)


def snapshot(storage: QueueStorage) -> dict[str, list[tuple[Any, ...]]]:
    """Return all that a prune may change, to be compared before and after."""
    tables = {
        "ready": "SELECT * FROM {ns}.ready_entries ORDER BY lane_seq",
        "tombstones": "SELECT * FROM {ns}.ready_tombstones ORDER BY lane_seq",
        "done": "SELECT * FROM {ns}.done_entries ORDER BY lane_seq, ready_slot",
        "deltas": "SELECT * FROM {ns}.queue_terminal_count_deltas ORDER BY 1, 2, 3, 4, 5, 6",
        "live": "SELECT * FROM {ns}.queue_terminal_live_counts ORDER BY 1, 2, 3, 4",
        "rollups": "SELECT * FROM {ns}.queue_terminal_rollups ORDER BY queue",
        "floor": "SELECT * FROM {ns}.floor_segment_contents ORDER BY segment, queue",
        "slots": "SELECT * FROM {ns}.queue_ring_slots ORDER BY slot",
        "ring": "SELECT * FROM {ns}.queue_ring_state",
    }
    return {name: query(storage, text) for name, text in tables.items()}


def turn(storage: QueueStorage) -> RotateOutcome:
    """Rotate, and leave out the evacuation that a rotate of the storage begins with."""
    return ring.rotate(storage.connection, storage.namespace)


def prune_all(storage: QueueStorage, **arguments: Any) -> list[PruneOutcome]:
    """Prune until there is nothing left to do; return what was pruned."""
    done = []
    while (outcome := storage.prune_oldest(**arguments)).outcome == "pruned":
        done.append(outcome)
    assert outcome.outcome == "noop", outcome
    return done


def turn_claims(storage: QueueStorage) -> PruneOutcome:
    """Seal the current slot of the claim ring and reclaim the oldest one."""
    assert storage.rotate(ring="claim").outcome == "rotated"
    return storage.prune_oldest(ring="claim")


def batches(storage: QueueStorage) -> list[tuple[int, int, int]]:
    """Return where batches of claims stand: claim slot, run_lease, number of jobs."""
    return query(
        storage, "SELECT claim_slot, run_lease, job_count FROM {ns}.lease_claim_batches ORDER BY run_lease"
    )


def claim_all(storage: QueueStorage) -> list[ClaimedJob]:
    """Claim what there is of the queue, two by two."""
    claims: list[ClaimedJob] = []
    while more := storage.claim("q", 2):
        claims += more
    return claims


class Gate:
    """Stops a session before a named statement until the test lets it go on."""

    def __init__(self, storage: QueueStorage, path: str, name: str) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()
        on_statement(storage, path, self._stop_at(name))

    def _stop_at(self, wanted: str) -> Callable[[str], None]:
        def stop(name: str) -> None:
            if name == wanted and not self._opened.is_set():
                self.reached.set()
                assert self._opened.wait(SOON), "the test did not open the gate"

        return stop

    def open(self) -> None:
        """Let the session go on."""
        self._opened.set()


def until(condition: Callable[[], Any]) -> None:
    """Wait for what another session is about to do and gives no sign of."""
    pause = threading.Event()
    for _ in range(SOON * 100):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come to pass")


@contextmanager
def held(action: Callable[[], Any], gate: Gate) -> Iterator[Future[Any]]:
    """Run `action` in another thread up to the gate; it goes on when the block ends."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(action)
        try:
            assert gate.reached.wait(SOON), future
            yield future
        finally:
            gate.open()


def on_statement(
    storage: QueueStorage,
    paths: str | tuple[str, ...],
    before: Callable[[str], None] = lambda name: None,
    after: Callable[[str], None] = lambda name: None,
) -> None:
    """Call back around each statement of the storage's session, with its name in `paths`, or "" for others."""
    files = [statements(path) for path in ([paths] if isinstance(paths, str) else paths)]

    class Watched(psycopg.Cursor[Any]):
        def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
            if not isinstance(query, bytes):  # the test's own
                return super().execute(query, *arguments, **options)
            name = next(
                (key[0] for file in files for key, text in file._rendered.items() if text == query), ""
            )
            before(name)
            result = super().execute(query, *arguments, **options)
            after(name)
            return result

    storage.connection.cursor_factory = Watched


class CutOff:
    """Ends a session after so many statements, before what they did is committed; `killer` is another session."""

    def __init__(
        self,
        storage: QueueStorage,
        paths: str | tuple[str, ...],
        statements: int,
        killer: psycopg.Connection[Any],
    ) -> None:
        self.seen: list[str] = []
        self._left = statements
        self._pid, self._killer = storage.connection.info.backend_pid, killer
        on_statement(storage, paths, before=self._before, after=self._after)

    def _before(self, name: str) -> None:
        if not self._left:
            self._cut()

    def _after(self, name: str) -> None:
        self.seen.append(name)
        if len(self.seen) == self._left:
            self._cut()

    def _cut(self) -> None:
        killed = self._killer.execute("SELECT pg_terminate_backend(%s, 10000)", [self._pid])
        assert killed.fetchone() == (True,)
