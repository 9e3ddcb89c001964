-- What a prune does with the terminal rows of one unit: a slot of the ring, or a floor segment, which is a slot below zero.
-- The slot is a literal in every statement, so that no plan and no lock reaches another one's child.

-- name: census
-- What each queue has in the unit, by what will become of it.
SELECT lane.queue,
       count(*) FILTER (WHERE done.state <> 'failed') AS completed,
       count(*) FILTER (WHERE within.floor) AS carried,
       count(*) FILTER (WHERE done.state = 'failed' AND NOT within.floor) AS failed
  FROM {schema}.done_entries AS done
  JOIN {schema}.queue_lanes AS lane USING (lane_id)
  LEFT JOIN unnest(%(own)s::text[], %(seconds)s::bigint[]) AS setting (queue, seconds) USING (queue)
 CROSS JOIN LATERAL (
       SELECT {schema}.within_failed_retention(
              done.state, done.finalized_at, coalesce(setting.seconds, %(retention)s)) AS floor) AS within
 WHERE done.ready_slot = {slot}
 GROUP BY lane.queue
 ORDER BY lane.queue

-- name: carry
-- Widen and insert through the parent. There is no ON CONFLICT: a key that is taken is a fault to be heard of. The body
-- is fetched row by row by its primary key (LATERAL with a LIMIT cannot become a join of whole tables); a narrow row
-- without one is left out here, and missed by the conservation check. Nor does a row move to where it stands.
WITH carried AS (
    INSERT INTO {schema}.done_entries
           (ready_slot, ready_generation, lane_id, lane_seq, job_id, run_lease, attempted_at, finalized_at, state, attempt,
            kind, error, args, max_attempts, run_at, created_at, unique_key, unique_states)
    SELECT CASE WHEN NOT %(to_floor)s THEN %(current_slot)s WHEN home.segment = {slot} THEN {sibling} ELSE home.segment END,
           CASE WHEN %(to_floor)s THEN done.ready_generation ELSE %(generation)s END,
           done.lane_id, done.lane_seq, done.job_id, done.run_lease, done.attempted_at, done.finalized_at, done.state,
           done.attempt, done.kind, done.error,
           coalesce(done.args, body.args), coalesce(done.max_attempts, body.max_attempts),
           coalesce(done.run_at, body.run_at), coalesce(done.created_at, body.created_at),
           coalesce(done.unique_key, body.unique_key), coalesce(done.unique_states, body.unique_states)
      FROM {schema}.done_entries AS done
      JOIN {schema}.queue_lanes AS lane USING (lane_id)
      LEFT JOIN unnest(%(own)s::text[], %(seconds)s::bigint[]) AS setting (queue, seconds) USING (queue)
     CROSS JOIN LATERAL (
           SELECT coalesce(setting.seconds, %(retention)s) AS seconds) AS kept
     CROSS JOIN LATERAL (
           SELECT {schema}.floor_segment(
                  done.finalized_at + make_interval(secs => kept.seconds), now()) AS segment) AS home
      LEFT JOIN LATERAL (
           SELECT ready.*
             FROM {schema}.ready_entries AS ready
            WHERE ready.ready_slot = {slot} AND ready.lane_id = done.lane_id
              AND ready.enqueue_xid = done.enqueue_xid AND ready.lane_seq = done.lane_seq
            LIMIT 1) AS body ON true
     WHERE done.ready_slot = {slot}
       AND {schema}.within_failed_retention(done.state, done.finalized_at, kept.seconds)
       AND (done.enqueue_xid IS NULL OR body.job_id = done.job_id)
    RETURNING ready_slot, ready_generation, lane_id, state, job_id, finalized_at
), counted AS (
    INSERT INTO {schema}.queue_terminal_count_deltas (ready_slot, ready_generation, lane_id, state, bucket, delta)
    SELECT ready_slot, min(ready_generation), lane_id, state, min(job_id) %% 64, count(*)
      FROM carried
     GROUP BY ready_slot, lane_id, state
), noted AS (
    -- By these a later prune knows, without a scan, when all of a segment is past the floor.
    INSERT INTO {schema}.floor_segment_contents AS contents
           (segment, queue, carried_rows, newest_finalized_at, expected_until)
    SELECT carried.ready_slot, lane.queue, count(*), max(carried.finalized_at),
           max(carried.finalized_at)
           + make_interval(secs => coalesce(max(setting.seconds), %(retention)s))
      FROM carried
      JOIN {schema}.queue_lanes AS lane USING (lane_id)
      LEFT JOIN unnest(%(own)s::text[], %(seconds)s::bigint[]) AS setting (queue, seconds) USING (queue)
     WHERE carried.ready_slot < 0
     GROUP BY carried.ready_slot, lane.queue
    ON CONFLICT (segment, queue) DO UPDATE
       SET carried_rows = contents.carried_rows + excluded.carried_rows,
           newest_finalized_at = greatest(contents.newest_finalized_at, excluded.newest_finalized_at),
           expected_until = greatest(contents.expected_until, excluded.expected_until)
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
-- Counted without a join or a condition on what a row is, so that no row can hide from the check that uses it.
SELECT count(*) AS rows FROM {schema}.done_entries WHERE ready_slot = {slot}

-- name: require_whole
-- For whoever lists terminal rows: in a snapshot from before a prune, rows that were carried stand nowhere.
SELECT {schema}.require_untruncated(ARRAY['done_entries'])
