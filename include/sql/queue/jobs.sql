-- Listing jobs for people: never what they carry nor why they failed, which is the application's own.

-- name: terminal
-- Newest first. The view completes narrow rows from their bodies.
SELECT job_id, queue, kind, state::text AS state, priority, attempt, max_attempts,
       created_at, run_at, attempted_at, finalized_at
  FROM {schema}.terminal_jobs
 WHERE state = %(state)s AND (%(queue)s::text IS NULL OR queue = %(queue)s)
 ORDER BY finalized_at DESC, job_id DESC
 LIMIT %(limit)s

-- name: deferred
-- The next one due first.
SELECT job_id, queue, kind, state::text AS state, priority, attempt, max_attempts,
       created_at, run_at, attempted_at, NULL::timestamptz AS finalized_at
  FROM {schema}.deferred_jobs
  JOIN {schema}.queue_lanes USING (lane_id)
 WHERE state = %(state)s AND (%(queue)s::text IS NULL OR queue = %(queue)s)
 ORDER BY run_at, job_id
 LIMIT %(limit)s
