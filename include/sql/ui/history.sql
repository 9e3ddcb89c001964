-- What maintenance did over time, from its record.

-- name: bounds
-- The clock that the steps are cut by, and the end of the oldest run that is not read any more where there are too many.
SELECT now() AS ends_at,
       (SELECT ended_at FROM {schema}.maintenance_run
         WHERE ended_at > now() - %(range)s::interval
         ORDER BY ended_at DESC
        OFFSET %(limit)s LIMIT 1) AS cut_at

-- name: steps
-- Added up step by step, each a stretch of the index: grouped in one go, all rows would be sorted first.
SELECT %(ends_at)s::timestamptz - make_interval(secs => (back + 1) * %(step)s) AS begins_at, step.*
  FROM generate_series(%(steps)s - 1, 0, -1) AS back
 CROSS JOIN LATERAL (
       SELECT count(*) AS runs,
              count(*) FILTER (WHERE action = 'deadline') AS deadline_misses,
              count(*) FILTER (WHERE outcome = 'failed' AND action <> 'deadline') AS failed_runs,
              count(*) FILTER (WHERE outcome = 'blocked') AS blocked_runs,
              coalesce(sum((figures ->> 'carried_failed')::bigint) FILTER (WHERE action = 'prune_with_carry'), 0)::bigint
                  AS carried_failed,
              coalesce(sum((figures ->> 'pruned_failed')::bigint) FILTER (WHERE action = 'prune_with_carry'), 0)::bigint
                  AS pruned_failed,
              coalesce(sum((figures ->> 'pruned_completed')::bigint) FILTER (WHERE action = 'prune_with_carry'), 0)::bigint
                  AS pruned_completed,
              coalesce(sum((figures ->> 'formed')::bigint) FILTER (WHERE action = 'formation_batch'), 0)::bigint AS formed,
              coalesce(sum((figures ->> 'parked')::bigint) FILTER (WHERE action IN ('formation_batch', 'park_sweep')), 0)::bigint
                  AS parked,
              max((figures ->> 'lock_ms')::float8) FILTER (WHERE action = 'prune_with_carry') AS lock_ms,
              max((figures ->> 'backlog')::bigint) FILTER (WHERE action IN ('formation_batch', 'freshness', 'park_sweep'))
                  AS backlog,
              max((figures ->> 'oldest_pending_seconds')::float8) FILTER (WHERE action = 'lag_check') AS backlog_seconds
         FROM {schema}.maintenance_run
        WHERE ended_at > greatest(%(ends_at)s::timestamptz - make_interval(secs => (back + 1) * %(step)s),
                                  coalesce(%(cut_at)s::timestamptz, '-infinity'))
          AND ended_at <= %(ends_at)s::timestamptz - make_interval(secs => back * %(step)s)) AS step
 WHERE step.runs > 0

-- name: last_runs
-- Of each action the newest row: one step of the index an action. Compared as a pair: for an action alone the index on
-- times may be walked from its end, which is all of it for one that has long not run.
WITH RECURSIVE known AS (
    (SELECT action FROM {schema}.maintenance_run ORDER BY action LIMIT 1)
    UNION ALL
    SELECT (SELECT run.action FROM {schema}.maintenance_run AS run WHERE run.action > known.action ORDER BY run.action LIMIT 1)
      FROM known
     WHERE known.action IS NOT NULL
)
SELECT newest.action, newest.outcome, newest.started_at, newest.ended_at, newest.figures, newest.dag_id, newest.dag_run_id,
       newest.task_id
  FROM known
 CROSS JOIN LATERAL (
       SELECT *
         FROM {schema}.maintenance_run AS run
        WHERE (run.action, run.ended_at) <= (known.action, timestamptz 'infinity')
        ORDER BY run.action DESC, run.ended_at DESC
        LIMIT 1) AS newest
 ORDER BY newest.action
 LIMIT 50

-- name: last_day
-- What happened since yesterday that wants a look.
SELECT coalesce(sum((figures ->> 'pruned_failed')::bigint) FILTER (WHERE action = 'prune_with_carry'), 0)::bigint
           AS pruned_failed,
       count(*) FILTER (WHERE action = 'deadline') AS deadline_misses
  FROM {schema}.maintenance_run
 WHERE action IN ('prune_with_carry', 'deadline') AND ended_at > now() - interval '1 day'

-- name: of_dag
-- What the runs of a DAG did, or one of them, among the newest rows.
SELECT action, outcome, started_at, ended_at, figures, dag_id, dag_run_id, task_id
  FROM (SELECT * FROM {schema}.maintenance_run ORDER BY ended_at DESC LIMIT %(looked)s) AS newest
 WHERE dag_id = %(dag_id)s AND (%(dag_run_id)s::text IS NULL OR dag_run_id = %(dag_run_id)s)
 ORDER BY ended_at DESC
 LIMIT %(limit)s
