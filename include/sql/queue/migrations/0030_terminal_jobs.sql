-- The one reading of terminal rows: narrow ones are completed from the body of the same slot, wide ones stand alone.

CREATE VIEW {schema}.terminal_jobs AS
SELECT done.job_id,
       lane.queue,
       done.kind,
       done.state,
       lane.priority,
       done.attempt,
       coalesce(done.max_attempts, ready.max_attempts) AS max_attempts,
       done.lane_seq,
       coalesce(done.args, ready.args)                 AS args,
       coalesce(done.run_at, ready.run_at)             AS run_at,
       done.attempted_at,
       done.finalized_at,
       coalesce(done.created_at, ready.created_at)     AS created_at,
       coalesce(done.unique_key, ready.unique_key)     AS unique_key,
       done.ready_slot                                 AS slot,
       done.ready_generation                           AS generation
  FROM {schema}.done_entries AS done
  JOIN {schema}.queue_lanes AS lane USING (lane_id)
  LEFT JOIN {schema}.ready_entries AS ready
         ON ready.ready_slot = done.ready_slot
        AND ready.lane_id = done.lane_id
        AND ready.enqueue_xid = done.enqueue_xid
        AND ready.lane_seq = done.lane_seq;
COMMENT ON VIEW {schema}.terminal_jobs IS
    'Every completed, failed or cancelled job that is still in the ring, with its body.';
