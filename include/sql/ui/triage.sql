-- What failed and can still be put back: never what a job carries nor why it failed, never a turn's words. Each statement
-- looks at a bounded number of rows, those that want a look first, and says whether there were more.

-- name: failed_jobs
-- Lane by lane from the oldest on, which is what is lost first. A kind is looked for among the rows that are looked at: the
-- index does not know kinds.
SELECT done.job_id, lane.queue, done.kind, done.attempt, done.finalized_at,
       done.finalized_at + kept.floor AS expires_at
  FROM {schema}.queue_lanes AS lane
  LEFT JOIN {schema}.queue_settings AS setting USING (queue)
 CROSS JOIN LATERAL (
       SELECT make_interval(secs => coalesce(setting.failed_retention_seconds, %(retention)s::bigint)) AS floor) AS kept
 CROSS JOIN LATERAL (
       SELECT entry.job_id, entry.kind, entry.attempt, entry.finalized_at
         FROM {schema}.done_entries AS entry
        WHERE entry.lane_id = lane.lane_id AND entry.state = 'failed'
        ORDER BY entry.finalized_at
        LIMIT %(limit)s) AS done
 WHERE %(queue)s::text IS NULL OR lane.queue = %(queue)s
 ORDER BY expires_at, done.job_id
 LIMIT %(limit)s

-- name: failed_total
SELECT coalesce(sum(counted.jobs), 0)::bigint AS failed
  FROM {schema}.queue_believed_counts AS counted
  JOIN {schema}.queue_lanes AS lane USING (lane_id)
 WHERE counted.state = 'failed' AND (%(queue)s::text IS NULL OR lane.queue = %(queue)s)

-- name: parked_groups
-- Kept counts, the largest first.
SELECT kept.scope, kept.error_class::text AS error_class, kept.parked, formed.oldest_parked_at
  FROM {schema}.parked_class AS kept
  LEFT JOIN {schema}.watermark_formed AS formed USING (scope)
 WHERE kept.parked > 0
   AND (%(scope)s::text IS NULL OR kept.scope = %(scope)s)
   AND (%(error_class)s::text IS NULL OR kept.error_class::text = %(error_class)s)
 ORDER BY kept.parked DESC, kept.scope, kept.error_class
 LIMIT %(limit)s

-- name: parked_total
SELECT coalesce(sum(parked), 0)::bigint AS parked
  FROM {schema}.parked_class
 WHERE (%(scope)s::text IS NULL OR scope = %(scope)s)
   AND (%(error_class)s::text IS NULL OR error_class::text = %(error_class)s)

-- name: parked_turns
-- A class is looked for among the rows that are looked at.
SELECT observation_id, scope, log_offset, formation_attempts AS attempts, park_count, error_class, parked_at
  FROM (SELECT observation_id, scope, log_offset, formation_attempts, park_count,
               coalesce(formation_error_class::text, 'other') AS error_class, parked_at
          FROM {schema}.observation
         WHERE parked_at IS NOT NULL AND (%(scope)s::text IS NULL OR scope = %(scope)s)
         ORDER BY scope, log_offset
         LIMIT %(looked)s) AS parked
 WHERE %(error_class)s::text IS NULL OR error_class = %(error_class)s
 ORDER BY scope, log_offset
 LIMIT %(limit)s

-- name: rebuildable
-- What a rebuild of a scope goes through: turns that are formed, and parked ones, which are tried too.
SELECT (formed + parked)::bigint AS turns FROM {schema}.watermark_formed WHERE scope = %(scope)s
