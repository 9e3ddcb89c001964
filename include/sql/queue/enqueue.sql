-- Enqueue, in one round trip, inside the caller's transaction or in one of its own.

-- name: enqueue
SELECT job_ids, holder_job_id
  FROM {schema}.enqueue_jobs(%(queue)s, %(priority)s::smallint, %(kind)s, %(args)s::jsonb, %(run_at)s::timestamptz,
                             %(max_attempts)s::smallint, %(unique_key)s::bytea, %(unique_states)s::{schema}.job_state[])
