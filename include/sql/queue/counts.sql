-- Counting: from the ledger of signed differences, never from the rows, so that it costs the same at any size.

-- name: queue_counts
-- One statement, one snapshot: a job that moves meanwhile is counted once.
WITH lane AS MATERIALIZED (
    SELECT lane_id FROM {schema}.queue_lanes WHERE queue = %(queue)s
), ledger AS (
    SELECT state, count AS jobs
      FROM {schema}.queue_terminal_live_counts
     WHERE lane_id = ANY (ARRAY (SELECT lane_id FROM lane))
    UNION ALL
    SELECT state, delta
      FROM {schema}.queue_terminal_count_deltas
     WHERE lane_id = ANY (ARRAY (SELECT lane_id FROM lane))
), live AS (
    SELECT coalesce(sum(jobs) FILTER (WHERE state = 'available'), 0)::bigint AS available,
           coalesce(sum(jobs) FILTER (WHERE state = 'running'), 0)::bigint AS running,
           coalesce(sum(jobs) FILTER (WHERE state IN ('scheduled', 'retryable')), 0)::bigint AS deferred,
           coalesce(sum(jobs) FILTER (WHERE state IN ('completed', 'failed', 'cancelled')), 0)::bigint AS terminal,
           coalesce(sum(jobs) FILTER (WHERE state = 'failed'), 0)::bigint AS failed,
           coalesce(sum(jobs) FILTER (WHERE state = 'dead_lettered'), 0)::bigint AS dead_lettered
      FROM ledger
), pruned AS (
    SELECT coalesce(sum(pruned_completed_count), 0)::bigint AS completed,
           coalesce(sum(pruned_failed_count), 0)::bigint AS failed,
           coalesce(sum(purged_dead_letters), 0)::bigint AS dead_letters
      FROM {schema}.queue_terminal_rollups
     WHERE queue = %(queue)s
)
SELECT live.available, live.running, live.terminal + pruned.completed + pruned.failed AS terminal,
       pruned.failed AS pruned_failed, live.deferred, live.failed,
       live.dead_lettered, pruned.dead_letters AS purged_dead_letters,
       EXISTS (SELECT FROM lane)
           OR EXISTS (SELECT FROM {schema}.queue_settings WHERE queue = %(queue)s)
           OR EXISTS (SELECT FROM {schema}.queue_terminal_rollups WHERE queue = %(queue)s) AS known
  FROM live, pruned

-- name: settle_cursors
-- After a restore no cursor tells what waits until the lanes have begun anew. Asked first, since it locks every lane: a
-- rebuild in daily use neither waits for claims nor keeps them waiting.
SELECT {schema}.rebase_claims() WHERE {schema}.queue_was_restored()

-- name: forget_live_counts
DELETE FROM {schema}.queue_terminal_live_counts

-- name: count_rows
-- What the differences do not explain is put into the live counts. Rows and differences are read by one statement: a
-- transaction that is still open is missing from both.
INSERT INTO {schema}.queue_terminal_live_counts (ready_slot, lane_id, state, bucket, count)
SELECT ready_slot, lane_id, state, 0, sum(jobs)
  FROM (SELECT slot.slot AS ready_slot, waiting.lane_id, 'available'::{schema}.job_state AS state, waiting.waiting AS jobs
          FROM {schema}.queue_ring_slots AS slot
         CROSS JOIN LATERAL {schema}.queue_waiting_rows(slot.slot) AS waiting
        UNION ALL
        SELECT batch.ready_slot, batch.lane_id, 'running', sum(batch.job_count)
          FROM {schema}.lease_claim_batches AS batch
          JOIN {schema}.queue_ring_slots AS slot ON slot.slot = batch.ready_slot AND batch.run_lease > slot.settled_batch_id
         GROUP BY batch.ready_slot, batch.lane_id
        UNION ALL
        SELECT closure.ready_slot, batch.lane_id, 'running', -sum(closure.job_count)
          FROM {schema}.lease_claim_closures AS closure
          JOIN {schema}.queue_ring_slots AS slot
            ON slot.slot = closure.ready_slot AND closure.run_lease > slot.settled_batch_id
         CROSS JOIN LATERAL (
               SELECT claimed.lane_id
                 FROM {schema}.lease_claim_batches AS claimed
                WHERE claimed.claim_slot = closure.claim_slot AND claimed.run_lease = closure.run_lease
                LIMIT 1) AS batch
         GROUP BY closure.ready_slot, batch.lane_id
        UNION ALL
        SELECT ready_slot, lane_id, state, count(*) FROM {schema}.done_entries GROUP BY ready_slot, lane_id, state
        UNION ALL
        -- Outside of the ring: whatever slot their differences stand in, the sum is right.
        SELECT -1000, lane_id, state, count(*) FROM {schema}.deferred_jobs GROUP BY lane_id, state
        UNION ALL
        SELECT -1000, lane_id, 'dead_lettered', count(*) FROM {schema}.dlq_entries GROUP BY lane_id
        UNION ALL
        SELECT -1000, lane_id, 'running', count(*) FROM {schema}.running_evacuated GROUP BY lane_id
        UNION ALL
        SELECT ready_slot, lane_id, state, -sum(delta) FROM {schema}.queue_terminal_count_deltas
         GROUP BY ready_slot, lane_id, state) AS counted
 GROUP BY ready_slot, lane_id, state
HAVING sum(jobs) <> 0
