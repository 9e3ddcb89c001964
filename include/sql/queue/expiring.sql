-- What is going to pass the floor, while it can still be retried.

-- name: expiring
-- Lane by lane, so that each is a stretch of the partial index on failed rows. A queue's own retention wins, as in a prune.
SELECT lane.queue, found.kind, sum(found.jobs)::bigint AS jobs, sum(found.past)::bigint AS past,
       min(found.first_expires_at) AS first_expires_at, max(found.last_expires_at) AS last_expires_at
  FROM {schema}.queue_lanes AS lane
  LEFT JOIN {schema}.queue_settings AS setting USING (queue)
 CROSS JOIN LATERAL (
       SELECT make_interval(secs => coalesce(setting.failed_retention_seconds, %(retention)s::bigint)) AS floor) AS kept
 CROSS JOIN LATERAL (
       SELECT done.kind, count(*) AS jobs,
              count(*) FILTER (WHERE done.finalized_at < now() - kept.floor) AS past,
              min(done.finalized_at) + kept.floor AS first_expires_at,
              max(done.finalized_at) + kept.floor AS last_expires_at
         FROM {schema}.done_entries AS done
        WHERE done.lane_id = lane.lane_id AND done.state = 'failed'
          AND done.finalized_at <= now() + %(within)s::interval - kept.floor
        GROUP BY done.kind) AS found
 WHERE %(queue)s::text IS NULL OR lane.queue = %(queue)s
 GROUP BY lane.queue, found.kind
 ORDER BY first_expires_at, lane.queue, found.kind
