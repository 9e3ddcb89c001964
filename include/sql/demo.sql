-- What the demo does to its own namespace and nobody else ever should.

-- name: made_by_demo
-- No row: there is no such schema. The comment is the mark that it is the demo's to drop.
SELECT obj_description(oid, 'pg_namespace') IS NOT DISTINCT FROM 'made by the Parkkeeper demo, dropped when it runs again'
  FROM pg_namespace
 WHERE nspname = %(namespace)s

-- name: drop
DROP SCHEMA IF EXISTS {schema} CASCADE

-- name: create
CREATE SCHEMA {schema}

-- name: mark
COMMENT ON SCHEMA {schema} IS 'made by the Parkkeeper demo, dropped when it runs again'

-- name: make_due
-- Turns that wait for their next attempt wait no longer.
UPDATE {schema}.observation
   SET next_attempt_at = clock_timestamp()
 WHERE scope = %(scope)s
   AND formed_at IS NULL
   AND parked_at IS NULL
   AND next_attempt_at > clock_timestamp()

-- name: age_failed
-- Some failed jobs ended long ago: past every retention that a namespace has by default.
UPDATE {schema}.done_entries
   SET finalized_at = finalized_at - interval '90 days'
 WHERE job_id = ANY (%(job_ids)s)
   AND state = 'failed'

-- name: failed_jobs
-- The oldest failed jobs of some kinds that no prune has met yet.
SELECT job_id
  FROM {schema}.terminal_jobs
 WHERE state = 'failed'
   AND slot >= 0
   AND kind = ANY (%(kinds)s)
 ORDER BY job_id
 LIMIT %(limit)s
