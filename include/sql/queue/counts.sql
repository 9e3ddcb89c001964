-- Counting: from the ledger of signed differences, so that it costs the same at any size; from the rows only while the
-- ledger is not believed.

-- name: queue_counts
SELECT available, running, terminal, pruned_failed, deferred, failed, dead_lettered, purged_dead_letters, known
  FROM {schema}.count_queue(%(queue)s)

-- name: keep_roll_up_away
-- It moves what is being counted here.
SELECT pg_advisory_xact_lock(%(key)s)

-- name: settle_cursors
-- After a restore no cursor tells what waits until the lanes have begun anew. Asked first, since it locks every lane: a
-- rebuild in daily use neither waits for claims nor keeps them waiting.
SELECT {schema}.rebase_claims() WHERE {schema}.queue_was_restored()

-- name: probe_by_key
-- Statistics of a child that was just filled say nothing; rows are read in the order of their keys.
SELECT set_config('enable_seqscan', 'off', true) AS seqscan, set_config('enable_hashjoin', 'off', true) AS hashjoin,
       set_config('enable_mergejoin', 'off', true) AS mergejoin

-- name: forget_live_counts
DELETE FROM {schema}.queue_terminal_live_counts

-- name: count_rows
-- What the differences do not explain is put into the live counts. Rows and differences are read by one statement: a
-- transaction that is still open is missing from both.
INSERT INTO {schema}.queue_terminal_live_counts (ready_slot, lane_id, state, bucket, count)
SELECT ready_slot, lane_id, state, 0, sum(jobs)
  FROM (SELECT ready_slot, lane_id, state, jobs FROM {schema}.queue_counted_rows
        UNION ALL
        SELECT ready_slot, lane_id, state, -sum(delta) FROM {schema}.queue_terminal_count_deltas
         GROUP BY ready_slot, lane_id, state) AS counted
 GROUP BY ready_slot, lane_id, state
HAVING sum(jobs) <> 0

-- name: trust
UPDATE {schema}.queue_counter_state SET distrusted_at = NULL WHERE distrusted_at IS NOT NULL
