-- Prune: what one transaction does to one slot, in this order. The slot is a literal in every statement, so that no
-- plan and no lock reaches another slot's children.

-- name: candidates
-- Sealed slots that hold a row, the one that was opened first in front.
SELECT slot.slot, slot.generation
  FROM {schema}.queue_ring_slots AS slot, {schema}.queue_ring_state AS ring
 WHERE slot.slot <> ring.current_slot AND {schema}.queue_slot_has_rows(slot.slot)
 ORDER BY slot.generation NULLS FIRST, slot.slot

-- name: hold_claims
-- Cursors and sums are read of all slots of the claim ring. Whoever locks first and takes its snapshot then cannot miss a
-- cursor that a prune of that ring carries meanwhile.
LOCK TABLE {schema}.lease_claim_batches, {schema}.lease_claim_closures IN ACCESS SHARE MODE

-- name: proofs
SELECT (SELECT coalesce(sum(waiting), 0)::bigint
          FROM {schema}.queue_waiting_rows({slot}, %(limit)s)) AS ready_rows,
       {schema}.queue_open_claims({slot}) AS open_claims

-- name: lock_slot
SELECT generation, {schema}.queue_slot_has_rows({slot}) AS holds_rows
  FROM {schema}.queue_ring_slots
 WHERE slot = {slot}
   FOR UPDATE

-- name: probe
-- Taken in a savepoint and given back at once: whether a reader is in the way is known before the work begins.
LOCK TABLE {schema}.ready_entries_{slot}, {schema}.ready_tombstones_{slot}, {schema}.done_entries_{slot},
           {schema}.queue_terminal_count_deltas_{slot}
        IN ACCESS EXCLUSIVE MODE NOWAIT

-- name: hold_writers
-- Writers wait from here on, readers do not: the long part of the work is done under this lock.
LOCK TABLE {schema}.ready_entries_{slot}, {schema}.ready_tombstones_{slot}, {schema}.done_entries_{slot},
           {schema}.queue_terminal_count_deltas_{slot}
        IN SHARE ROW EXCLUSIVE MODE

-- name: keep_outside
-- What the slot's ledger says of jobs that have not ended, or are dead letters, is about jobs outside of the ring, since none
-- waits or runs here: it is kept for a slot that does not exist. In the order of the key, as all who write these rows do.
INSERT INTO {schema}.queue_terminal_live_counts AS kept (ready_slot, lane_id, state, bucket, count)
SELECT -1000, lane_id, state, 0, sum(jobs)
  FROM (SELECT lane_id, state, delta AS jobs FROM {schema}.queue_terminal_count_deltas_{slot}
        UNION ALL
        SELECT lane_id, state, count FROM {schema}.queue_terminal_live_counts WHERE ready_slot = {slot}) AS ledger
 WHERE state NOT IN ('completed', 'failed', 'cancelled')
 GROUP BY lane_id, state
HAVING sum(jobs) <> 0
 ORDER BY lane_id, state
ON CONFLICT (ready_slot, lane_id, state, bucket) DO UPDATE SET count = kept.count + excluded.count

-- name: hold_all
LOCK TABLE {schema}.ready_entries_{slot}, {schema}.ready_tombstones_{slot}, {schema}.done_entries_{slot},
           {schema}.queue_terminal_count_deltas_{slot}
        IN ACCESS EXCLUSIVE MODE

-- name: filled
-- Which children have pages; TRUNCATE of the others would only cost writes to the catalog.
SELECT pg_relation_size('{schema}.ready_entries_{slot}') > 0 AS truncate_ready,
       pg_relation_size('{schema}.ready_tombstones_{slot}') > 0 AS truncate_tombstones,
       pg_relation_size('{schema}.done_entries_{slot}') > 0 AS truncate_done,
       pg_relation_size('{schema}.queue_terminal_count_deltas_{slot}') > 0 AS truncate_deltas

-- name: truncate_ready
TRUNCATE {schema}.ready_entries_{slot}

-- name: truncate_tombstones
TRUNCATE {schema}.ready_tombstones_{slot}

-- name: truncate_done
TRUNCATE {schema}.done_entries_{slot}

-- name: truncate_deltas
TRUNCATE {schema}.queue_terminal_count_deltas_{slot}

-- name: forget_counts
DELETE FROM {schema}.queue_terminal_live_counts WHERE ready_slot = {slot}

-- name: reclaimed
-- A sequence that was never used shows its first value as if it had been.
UPDATE {schema}.queue_ring_slots
   SET reclaimed_at = clock_timestamp(),
       settled_batch_id = (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {schema}.run_lease_seq)
 WHERE slot = {slot}
