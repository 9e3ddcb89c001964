-- Putting failed jobs back: scan once, then take them chunk by chunk, each chunk a transaction of its own.

-- name: matching
-- Through the parent, since carried rows may stand in any slot; the partial index on failed rows finds them.
SELECT done.ready_slot, done.lane_id, done.lane_seq, lane.queue
  FROM {schema}.done_entries AS done
  JOIN {schema}.queue_lanes AS lane USING (lane_id)
 WHERE done.state = 'failed'
   AND (%(queue)s::text IS NULL OR lane.queue = %(queue)s)
   AND (%(kind)s::text IS NULL OR done.kind = %(kind)s)
   AND (%(job_ids)s::bigint[] IS NULL OR done.job_id = ANY (%(job_ids)s::bigint[]))
   AND done.finalized_at >= coalesce(%(finalized_from)s::timestamptz, '-infinity')
   AND done.finalized_at < coalesce(%(finalized_before)s::timestamptz, 'infinity')
 ORDER BY done.finalized_at, done.lane_seq
 LIMIT %(limit)s

-- name: hold_pruners
-- First of all, and on all children at once: a prune that holds one of them is waited for while nothing is held that it
-- may want, and none can move a row from here on.
LOCK TABLE {schema}.done_entries IN ROW EXCLUSIVE MODE

-- name: probe_by_key
-- Statistics of a child that was just filled say nothing; each row is one probe of a primary key. For the same reason the
-- state is asked for outside of each probe: inside, it would offer the partial index on failed rows, which knows only lanes.
SELECT set_config('enable_seqscan', 'off', true) AS seqscan,
       set_config('enable_bitmapscan', 'off', true) AS bitmapscan,
       set_config('enable_hashjoin', 'off', true) AS hashjoin,
       set_config('enable_mergejoin', 'off', true) AS mergejoin

-- name: locate
-- Where a row stands now that is no longer where it was: its sequence is its own in every slot.
SELECT slot AS ready_slot, asked.lane_id, asked.lane_seq
  FROM unnest(%(lane_ids)s::integer[], %(lane_seqs)s::bigint[]) AS asked (lane_id, lane_seq)
 CROSS JOIN {schema}.terminal_slots() AS slot
 CROSS JOIN LATERAL (
       SELECT done.state
         FROM {schema}.done_entries AS done
        WHERE done.ready_slot = slot AND done.lane_id = asked.lane_id AND done.lane_seq = asked.lane_seq
        LIMIT 1) AS present
 WHERE present.state = 'failed'

-- name: retry
-- The rows are locked before the keys are asked for, so that a key is taken only for a job that is ours to put back.
-- Attempts and clocks begin anew; the job keeps its id and its age.
WITH found AS MATERIALIZED (
    SELECT done.ready_slot, done.ready_generation, done.lane_id, done.lane_seq, done.job_id, done.kind,
           coalesce(done.max_attempts, body.max_attempts) AS max_attempts,
           coalesce(done.args, body.args) AS args,
           coalesce(done.created_at, body.created_at) AS created_at,
           coalesce(done.unique_key, body.unique_key) AS unique_key,
           coalesce(done.unique_states, body.unique_states) AS unique_states
      FROM unnest(%(slots)s::integer[], %(lane_ids)s::integer[], %(lane_seqs)s::bigint[])
           AS asked (ready_slot, lane_id, lane_seq)
     CROSS JOIN LATERAL (
           SELECT entry.*
             FROM {schema}.done_entries AS entry
            WHERE entry.ready_slot = asked.ready_slot AND entry.lane_id = asked.lane_id
              AND entry.lane_seq = asked.lane_seq
            LIMIT 1
              FOR UPDATE) AS done
      LEFT JOIN LATERAL (
           SELECT ready.*
             FROM {schema}.ready_entries AS ready
            WHERE ready.ready_slot = done.ready_slot AND ready.lane_id = done.lane_id
              AND ready.enqueue_xid = done.enqueue_xid AND ready.lane_seq = done.lane_seq
            LIMIT 1) AS body ON true
     WHERE done.state = 'failed'
), decided AS MATERIALIZED (
    SELECT found.*,
           CASE WHEN unique_key IS NOT NULL
                 AND 'available' = ANY (coalesce(unique_states, '{scheduled,available,running,retryable}'))
                THEN {schema}.take_unique_key(unique_key, job_id, unique_states) = job_id
                ELSE true
           END AS granted
      FROM found
), removed AS (
    DELETE FROM {schema}.done_entries AS done
     USING decided
     WHERE decided.granted
       AND done.ready_slot = decided.ready_slot AND done.lane_id = decided.lane_id AND done.lane_seq = decided.lane_seq
    RETURNING decided.*
), returned AS (
    INSERT INTO {schema}.ready_entries
           (ready_slot, ready_generation, lane_id, job_id, created_at, max_attempts, kind, args, unique_key, unique_states)
    SELECT ring.current_slot, ring.generation, removed.lane_id, removed.job_id, removed.created_at, removed.max_attempts,
           removed.kind, removed.args, removed.unique_key, removed.unique_states
      FROM {schema}.queue_ring_state AS ring, removed
    RETURNING ready_slot, ready_generation, lane_id, job_id
), counted AS (
    INSERT INTO {schema}.queue_terminal_count_deltas (ready_slot, ready_generation, lane_id, state, bucket, delta)
    SELECT ready_slot, min(ready_generation), lane_id, 'failed'::{schema}.job_state, min(job_id) %% 64, -count(*)
      FROM removed
     GROUP BY ready_slot, lane_id
    UNION ALL
    SELECT ready_slot, ready_generation, lane_id, 'available', min(job_id) %% 64, count(*)
      FROM returned
     GROUP BY ready_slot, ready_generation, lane_id
)
SELECT lane_seq, job_id, granted AS retried FROM decided

-- name: wake
-- Who waits for jobs of these queues is told when the transaction commits.
SELECT {schema}.wake_workers(queue) FROM unnest(%(queues)s::text[]) AS queue
