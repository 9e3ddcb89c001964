-- Giving turns up and taking them back.

-- name: capped
-- Turns that have had their attempts and that nobody is forming: what the claim would park when it came to them.
SELECT observation_id, scope
  FROM {schema}.observation
 WHERE formed_at IS NULL AND parked_at IS NULL AND formation_attempts > 0
   AND formation_attempts >= %(max_attempts)s
   AND (claim_token IS NULL OR claimed_until <= now())
 ORDER BY scope, log_offset
 LIMIT %(limit)s

-- name: park_capped
-- Under the locks of their scopes. A claim that was never answered means that its worker went down with it.
WITH capped AS (
    SELECT observation_id, scope, claim_token IS NOT NULL AS crashed
      FROM {schema}.observation
     WHERE observation_id = ANY(%(observation_ids)s)
       AND formed_at IS NULL AND parked_at IS NULL
       AND formation_attempts > 0 AND formation_attempts >= %(max_attempts)s
       AND (claim_token IS NULL OR claimed_until <= now())
     ORDER BY scope, log_offset
       FOR NO KEY UPDATE
)
UPDATE {schema}.observation AS o
   SET parked_at = clock_timestamp(),
       park_count = o.park_count + 1,
       formation_failed_at = CASE WHEN capped.crashed THEN o.claimed_until ELSE o.formation_failed_at END,
       formation_error_class = CASE WHEN capped.crashed THEN 'worker_crash'
                                    ELSE coalesce(o.formation_error_class, 'other') END,
       formation_error = CASE WHEN capped.crashed THEN NULL ELSE o.formation_error END,
       claim_token = NULL,
       claimed_until = NULL
  FROM capped
 WHERE o.observation_id = capped.observation_id
RETURNING o.scope, o.log_offset, o.formation_error_class::text AS error_class

-- name: return_expired
-- Claims that were never answered. The attempt stays counted; turns that have no more are parked before.
WITH expired AS (
    SELECT observation_id
      FROM {schema}.observation
     WHERE formed_at IS NULL AND parked_at IS NULL AND formation_attempts > 0
       AND claimed_until <= now()
     ORDER BY scope, log_offset
     LIMIT %(limit)s
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {schema}.observation AS o
   SET formation_failed_at = o.claimed_until,
       formation_error_class = 'worker_crash',
       formation_error = NULL,
       next_attempt_at = now(),
       claim_token = NULL,
       claimed_until = NULL
  FROM expired
 WHERE o.observation_id = expired.observation_id

-- name: parked
SELECT observation_id, scope, log_offset, formation_attempts AS attempts, park_count,
       coalesce(formation_error_class::text, 'other') AS error_class, parked_at
  FROM {schema}.observation
 WHERE parked_at IS NOT NULL
   AND (%(scope)s::text IS NULL OR scope = %(scope)s)
   AND (%(after_scope)s::text IS NULL OR (scope, log_offset) > (%(after_scope)s, %(after_offset)s))
 ORDER BY scope, log_offset
 LIMIT %(limit)s

-- name: to_unpark
-- Which parked turns meet the filter, the longest parked first.
SELECT observation_id, scope, parked_at
  FROM {schema}.observation
 WHERE parked_at IS NOT NULL
   AND (%(observation_ids)s::bigint[] IS NULL OR observation_id = ANY(%(observation_ids)s))
   AND (%(scope)s::text IS NULL OR scope = %(scope)s)
   AND (%(classes)s::text[] IS NULL OR coalesce(formation_error_class::text, 'other') = ANY(%(classes)s))
   AND (%(older_than)s::interval IS NULL OR parked_at <= now() - %(older_than)s::interval)
   AND (%(max_park_count)s::integer IS NULL OR park_count <= %(max_park_count)s)
 ORDER BY parked_at, observation_id
 LIMIT %(limit)s

-- name: unpark
-- Under the locks of their scopes; a turn that was unparked meanwhile, even if it was parked again, is left alone.
WITH chosen AS (
    SELECT o.observation_id, o.scope, o.log_offset, coalesce(o.formation_error_class::text, 'other') AS error_class
      FROM {schema}.observation AS o
      JOIN unnest(%(observation_ids)s::bigint[], %(parked_at)s::timestamptz[]) AS c (observation_id, parked_at)
        ON c.observation_id = o.observation_id AND c.parked_at = o.parked_at
     ORDER BY o.scope, o.log_offset
       FOR NO KEY UPDATE OF o
), reopened AS (
    UPDATE {schema}.observation AS o
       SET parked_at = NULL,
           formation_attempts = 0,
           deferrals = 0,
           formation_failed_at = NULL,
           formation_error_class = NULL,
           formation_error = NULL,
           next_attempt_at = now()
      FROM chosen
     WHERE o.observation_id = chosen.observation_id
    RETURNING o.observation_id
)
SELECT chosen.scope, chosen.log_offset, chosen.error_class
  FROM chosen
  JOIN reopened ON reopened.observation_id = chosen.observation_id

-- name: parked_totals
SELECT error_class::text AS error_class, sum(parked)::bigint AS parked
  FROM {schema}.parked_class
 GROUP BY error_class
HAVING sum(parked) > 0
 ORDER BY error_class::text
