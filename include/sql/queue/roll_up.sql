-- Roll-up: fold the ledger of counts, then sweep unique keys that no job holds any more. In bounded steps, each a
-- transaction of its own.

-- name: look
-- Without a lock that lasts or a transaction id: with nothing to fold nothing is written. Terms are added up over all
-- slots, since a job that is outside of the ring may be counted into one slot and out of another.
WITH ledger AS MATERIALIZED (
    SELECT ready_slot, lane_id, state, count AS jobs, 0 AS deltas FROM {schema}.queue_terminal_live_counts
    UNION ALL
    SELECT ready_slot, lane_id, state, sum(delta), count(*) FROM {schema}.queue_terminal_count_deltas
     GROUP BY ready_slot, lane_id, state
), appended AS (
    SELECT ready_slot, sum(deltas)::bigint AS deltas FROM ledger GROUP BY ready_slot HAVING sum(deltas) > 0
)
SELECT ARRAY (SELECT ready_slot FROM appended ORDER BY ready_slot) AS slots,
       ARRAY (SELECT deltas FROM appended ORDER BY ready_slot) AS deltas,
       EXISTS (SELECT FROM ledger GROUP BY lane_id, state HAVING sum(jobs) < 0) AS impossible,
       (SELECT distrusted_at IS NULL FROM {schema}.queue_counter_state) AS unmarked,
       {schema}.counters_are_trusted() AS trusted,
       (SELECT swept_seq IS NOT NULL
               OR (swept_dropped < (SELECT coalesce(sum(pruned_completed_count + pruned_failed_count), 0)
                                      FROM {schema}.queue_terminal_rollups)
                   AND EXISTS (SELECT FROM {schema}.job_unique_claims WHERE done_lane_seq IS NOT NULL))
          FROM {schema}.queue_counter_state) AS keys_due

-- name: old_snapshot
-- Rows that are deleted stay for as long as a snapshot or a transaction is open that began before: each reader would step
-- over them, and over each version of a folded count. A minute is more than what is at work and less than what hangs.
SELECT EXISTS (
           SELECT FROM pg_catalog.pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()
              AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
              AND xact_start < clock_timestamp() - interval '1 minute')
    OR EXISTS (
           SELECT FROM pg_catalog.pg_prepared_xacts
            WHERE database = current_database() AND prepared < clock_timestamp() - interval '1 minute') AS found

-- name: hold_slot
-- Before the child is read: whoever had read it and then waited for a prune to let it write would keep that prune from its
-- TRUNCATE, so that each waited for the other.
LOCK TABLE {schema}.queue_terminal_count_deltas_{number} IN ROW EXCLUSIVE MODE

-- name: hold_segment
LOCK TABLE {schema}.queue_terminal_count_deltas_floor_{number} IN ROW EXCLUSIVE MODE

-- name: fold
-- A literal slot: the plan and the locks reach one child, and a prune of another goes on. Whatever is deleted here is
-- what is added there. No bucket: nobody but the one who folds writes these rows.
WITH taken AS (
    DELETE FROM {schema}.queue_terminal_count_deltas
     WHERE ready_slot = {slot}
       AND ctid = ANY (ARRAY (
           SELECT ctid FROM {schema}.queue_terminal_count_deltas WHERE ready_slot = {slot} LIMIT %(limit)s))
    RETURNING lane_id, state, delta
), folded AS (
    INSERT INTO {schema}.queue_terminal_live_counts AS live (ready_slot, lane_id, state, bucket, count)
    SELECT {slot}, lane_id, state, 0, sum(delta)
      FROM taken
     GROUP BY lane_id, state
    HAVING sum(delta) <> 0
     ORDER BY lane_id, state
    ON CONFLICT (ready_slot, lane_id, state, bucket) DO UPDATE SET count = live.count + excluded.count
)
SELECT count(*) AS rows FROM taken

-- name: forget_zeros
DELETE FROM {schema}.queue_terminal_live_counts WHERE ready_slot = {slot} AND count = 0

-- name: distrust
UPDATE {schema}.queue_counter_state SET distrusted_at = clock_timestamp() WHERE distrusted_at IS NULL

-- name: hold_prunes
-- Before the snapshot that is asked for rows: no prune can carry one between the two, which would look as if it were gone.
LOCK TABLE {schema}.done_entries IN ACCESS SHARE MODE

-- name: probe_by_key
-- Statistics of a child that was just filled say nothing; each row is one probe of a primary key.
SELECT set_config('enable_seqscan', 'off', true) AS seqscan, set_config('enable_bitmapscan', 'off', true) AS bitmapscan

-- name: sweep
-- A key is let go of only as it was found: one that a retry or a new job takes meanwhile is theirs, and one that a
-- transaction is about to take is left to it. The row is looked for in every slot, since it may have been carried.
WITH passed AS MATERIALIZED (
    SELECT unique_key, job_id, done_lane_id, done_lane_seq
      FROM {schema}.job_unique_claims
     WHERE done_lane_seq > (SELECT coalesce(swept_seq, 0) FROM {schema}.queue_counter_state)
     ORDER BY done_lane_seq
     LIMIT %(limit)s
), orphaned AS MATERIALIZED (
    SELECT held.unique_key
      FROM passed
      JOIN {schema}.job_unique_claims AS held
        ON held.unique_key = passed.unique_key AND held.job_id = passed.job_id
       AND held.done_lane_id = passed.done_lane_id AND held.done_lane_seq = passed.done_lane_seq
     WHERE NOT EXISTS (
           SELECT FROM {schema}.terminal_slots() AS slot
            CROSS JOIN LATERAL (
                  SELECT FROM {schema}.done_entries AS done
                   WHERE done.ready_slot = slot
                     AND done.lane_id = passed.done_lane_id AND done.lane_seq = passed.done_lane_seq
                   LIMIT 1) AS found)
       FOR UPDATE OF held SKIP LOCKED
), released AS (
    DELETE FROM {schema}.job_unique_claims AS held
     USING orphaned
     WHERE held.unique_key = orphaned.unique_key
    RETURNING held.job_id
), place AS (
    UPDATE {schema}.queue_counter_state
       SET swept_dropped = CASE WHEN swept_seq IS NULL
                                THEN (SELECT coalesce(sum(pruned_completed_count + pruned_failed_count), 0)
                                        FROM {schema}.queue_terminal_rollups)
                                ELSE swept_dropped END,
           swept_seq = (SELECT CASE WHEN count(*) = %(limit)s THEN max(done_lane_seq) END FROM passed)
)
SELECT (SELECT count(*) FROM passed) AS passed, (SELECT count(*) FROM released) AS released
