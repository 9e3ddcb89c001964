-- The record of what maintenance did.

-- name: record
-- A clock that was set back while it ran makes a run of no length, not an error.
INSERT INTO {schema}.maintenance_run (action, outcome, started_at, ended_at, figures, dag_id, dag_run_id, task_id)
VALUES (%(action)s, %(outcome)s, least(%(started_at)s, clock_timestamp()), clock_timestamp(), %(figures)s,
        %(dag_id)s, %(dag_run_id)s, %(task_id)s)

-- name: forget
-- In steps: after a long pause there may be many.
DELETE FROM {schema}.maintenance_run
 WHERE maintenance_run_id = ANY (ARRAY (
       SELECT maintenance_run_id
         FROM {schema}.maintenance_run
        WHERE ended_at < now() - interval '90 days'
        ORDER BY ended_at
        LIMIT 1000))

-- name: now
SELECT clock_timestamp()
