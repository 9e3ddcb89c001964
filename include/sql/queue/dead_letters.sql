-- Dead letters: list them, put them back, purge them. Never what they carry nor why they failed.

-- name: listed
-- Newest first.
SELECT letter.job_id, lane.queue, letter.kind, lane.priority, letter.attempt, letter.max_attempts, letter.created_at,
       letter.attempted_at, letter.dead_at
  FROM {schema}.dlq_entries AS letter
  JOIN {schema}.queue_lanes AS lane USING (lane_id)
 WHERE %(queue)s::text IS NULL OR lane.queue = %(queue)s
 ORDER BY letter.dead_at DESC, letter.job_id DESC
 LIMIT %(limit)s

-- name: matching
SELECT letter.job_id, letter.dead_at, lane.queue
  FROM {schema}.dlq_entries AS letter
  JOIN {schema}.queue_lanes AS lane USING (lane_id)
 WHERE (%(queue)s::text IS NULL OR lane.queue = %(queue)s)
   AND (%(kind)s::text IS NULL OR letter.kind = %(kind)s)
   AND (%(ids)s::bigint[] IS NULL OR letter.job_id = ANY (%(ids)s))
   AND letter.dead_at >= coalesce(%(dead_from)s::timestamptz, '-infinity')
   AND letter.dead_at < coalesce(%(dead_before)s::timestamptz, 'infinity')
 ORDER BY letter.dead_at, letter.job_id
 LIMIT %(limit)s

-- name: retry
SELECT retried, conflicts
  FROM {schema}.retry_dead_letters(%(job_ids)s::bigint[], %(dead_ats)s::timestamptz[])

-- name: wake
SELECT {schema}.wake_workers(queue) FROM unnest(%(queues)s::text[]) AS queue

-- name: purgeable
-- Which queues have a letter that is to go, and after how many seconds. Read only: with nothing to purge nothing is written.
SELECT lane.queue, age.seconds
  FROM {schema}.queue_lanes AS lane
  LEFT JOIN {schema}.queue_settings AS setting USING (queue)
 CROSS JOIN LATERAL (
       SELECT coalesce(%(older_seconds)s::bigint, setting.dead_letter_retention_seconds) AS seconds) AS age
 WHERE (%(queue)s::text IS NULL OR lane.queue = %(queue)s)
   AND EXISTS (SELECT FROM {schema}.dlq_entries AS letter
                WHERE letter.lane_id = lane.lane_id AND letter.dead_at <= clock_timestamp() - make_interval(secs => age.seconds))
 GROUP BY lane.queue, age.seconds
 ORDER BY lane.queue

-- name: purge
SELECT {schema}.purge_dead_letters(%(queue)s, %(older_seconds)s::bigint, %(limit)s::integer)
