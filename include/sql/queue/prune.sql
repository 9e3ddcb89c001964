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

-- name: census
-- What each queue has in the slot, by what will become of it.
SELECT lane.queue,
       count(*) FILTER (WHERE done.state <> 'failed') AS completed,
       count(*) FILTER (WHERE within.floor) AS carried,
       count(*) FILTER (WHERE done.state = 'failed' AND NOT within.floor) AS failed
  FROM {schema}.done_entries_{slot} AS done
  JOIN {schema}.queue_lanes AS lane USING (lane_id)
  LEFT JOIN {schema}.queue_settings AS setting USING (queue)
 CROSS JOIN LATERAL (
       SELECT {schema}.within_failed_retention(
              done.state, done.finalized_at, coalesce(setting.failed_retention_seconds, %(retention)s)) AS floor) AS within
 GROUP BY lane.queue

-- name: carry
-- Widen and insert through the parent. There is no ON CONFLICT: a key that is taken is a fault to be heard of. The body
-- is fetched row by row by its primary key (LATERAL with a LIMIT cannot become a join of whole tables); a narrow row
-- without one is left out here, and missed by the conservation check.
WITH carried AS (
    INSERT INTO {schema}.done_entries
           (ready_slot, ready_generation, lane_id, lane_seq, job_id, run_lease, attempted_at, finalized_at, state, attempt,
            kind, error, args, max_attempts, run_at, created_at, unique_key, unique_states)
    SELECT %(current_slot)s, %(generation)s, done.lane_id, done.lane_seq, done.job_id, done.run_lease, done.attempted_at,
           done.finalized_at, done.state, done.attempt, done.kind, done.error,
           coalesce(done.args, body.args), coalesce(done.max_attempts, body.max_attempts),
           coalesce(done.run_at, body.run_at), coalesce(done.created_at, body.created_at),
           coalesce(done.unique_key, body.unique_key), coalesce(done.unique_states, body.unique_states)
      FROM {schema}.done_entries_{slot} AS done
      JOIN {schema}.queue_lanes AS lane USING (lane_id)
      LEFT JOIN {schema}.queue_settings AS setting USING (queue)
      LEFT JOIN LATERAL (
           SELECT ready.*
             FROM {schema}.ready_entries_{slot} AS ready
            WHERE ready.ready_slot = {slot} AND ready.lane_id = done.lane_id
              AND ready.enqueue_xid = done.enqueue_xid AND ready.lane_seq = done.lane_seq
            LIMIT 1) AS body ON true
     WHERE {schema}.within_failed_retention(
               done.state, done.finalized_at, coalesce(setting.failed_retention_seconds, %(retention)s))
       AND (done.enqueue_xid IS NULL OR body.job_id = done.job_id)
    RETURNING ready_slot, ready_generation, lane_id, state, job_id
), counted AS (
    INSERT INTO {schema}.queue_terminal_count_deltas (ready_slot, ready_generation, lane_id, state, bucket, delta)
    SELECT ready_slot, ready_generation, lane_id, state, min(job_id) %% 64, count(*)
      FROM carried
     GROUP BY ready_slot, ready_generation, lane_id, state
)
SELECT count(*) AS rows FROM carried

-- name: fold
-- The answer counts what the table took, not what it was given.
WITH dropped AS (
    SELECT queue, completed, failed
      FROM unnest(%(queues)s::text[], %(completed)s::bigint[], %(failed)s::bigint[]) AS dropped (queue, completed, failed)
     WHERE completed + failed > 0
), folded AS (
    INSERT INTO {schema}.queue_terminal_rollups AS rollup (queue, pruned_completed_count, pruned_failed_count)
    SELECT queue, completed, failed FROM dropped
    ON CONFLICT (queue) DO UPDATE
       SET pruned_completed_count = rollup.pruned_completed_count + excluded.pruned_completed_count,
           pruned_failed_count = rollup.pruned_failed_count + excluded.pruned_failed_count
    RETURNING queue
)
SELECT coalesce(sum(completed), 0)::bigint AS completed, coalesce(sum(failed), 0)::bigint AS failed
  FROM dropped JOIN folded USING (queue)

-- name: terminal_rows
-- Counted without a join or a condition, so that no row can hide from the check that uses it.
SELECT count(*) AS rows FROM {schema}.done_entries_{slot}

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
