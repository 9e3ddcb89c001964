-- Giving turns up and taking them back.

-- name: capped
-- Turns that have had their attempts and that nobody is forming, but for those whose last failure may be an outage's:
-- these wait for the canary of the next batch.
SELECT o.observation_id, o.scope
  FROM {schema}.observation AS o
 WHERE o.formed_at IS NULL AND o.parked_at IS NULL AND o.formation_attempts > 0
   AND (%(scope)s::text IS NULL OR o.scope = %(scope)s)
   AND o.formation_attempts >= CASE WHEN o.formation_error_class::text = ANY(%(at_once)s::text[]) THEN 1
                                    ELSE %(max_attempts)s END
   AND (o.claim_token IS NULL OR o.claimed_until <= now())
   AND NOT EXISTS (
        SELECT FROM {schema}.formation_circuit AS c
         WHERE c.circuit_id = o.streak_circuit AND c.answered < o.streak
       )
 ORDER BY o.scope, o.log_offset
 LIMIT %(limit)s

-- name: park_capped
-- Under the locks of their scopes. A claim that was never answered means that its worker went down with it. What is read
-- of a circuit needs no lock: a streak that was answered stays so, and what it gives back is not at its cap.
WITH capped AS (
    SELECT o.observation_id, o.scope, o.claim_token IS NOT NULL AS crashed
      FROM {schema}.observation AS o
     WHERE o.observation_id = ANY(%(observation_ids)s)
       AND o.formed_at IS NULL AND o.parked_at IS NULL
       AND o.formation_attempts > 0
       AND o.formation_attempts >= CASE WHEN o.formation_error_class::text = ANY(%(at_once)s::text[]) THEN 1
                                        ELSE %(max_attempts)s END
       AND (o.claim_token IS NULL OR o.claimed_until <= now())
       AND NOT EXISTS (
            SELECT FROM {schema}.formation_circuit AS c
             WHERE c.circuit_id = o.streak_circuit AND c.answered < o.streak
               AND (%(circuit_id)s::bigint IS NULL OR c.circuit_id = %(circuit_id)s)
           )
     ORDER BY o.scope, o.log_offset
       FOR NO KEY UPDATE OF o
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

-- name: expired
-- How many claims were never answered, but for turns that are to be parked.
SELECT count(*) AS number
  FROM (
        SELECT
          FROM {schema}.observation
         WHERE formed_at IS NULL AND parked_at IS NULL AND formation_attempts > 0
           AND (%(scope)s::text IS NULL OR scope = %(scope)s)
           AND claimed_until <= now()
           AND observation_id <> ALL(%(but)s)
         LIMIT %(limit)s
       ) AS expired

-- name: return_expired
-- Claims that were never answered. The attempt stays counted; turns that have no more are parked before.
WITH expired AS (
    SELECT observation_id
      FROM {schema}.observation
     WHERE formed_at IS NULL AND parked_at IS NULL AND formation_attempts > 0
       AND (%(scope)s::text IS NULL OR scope = %(scope)s)
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
-- Planned for its values, of which those that are null fall away. Within one scope the offset alone says where to begin:
-- an index is not entered at a pair whose first half stands beside an equality.
SELECT observation_id, scope, log_offset, formation_attempts AS attempts, park_count,
       coalesce(formation_error_class::text, 'other') AS error_class, parked_at
  FROM {schema}.observation
 WHERE parked_at IS NOT NULL
   AND (%(scope)s::text IS NULL OR scope = %(scope)s)
   AND (%(after_scope)s::text IS NULL OR (scope, log_offset) > (%(after_scope)s, %(after_offset)s))
   AND (%(after_scope)s::text IS NULL OR %(scope)s::text IS NULL OR %(scope)s::text <> %(after_scope)s::text
        OR log_offset > %(after_offset)s)
 ORDER BY scope, log_offset
 LIMIT %(limit)s

-- name: to_unpark
-- Which parked turns meet the filter, the longest parked first. With `answering`, none whose provider is known not to
-- answer; an open circuit that nobody has come to probe for an hour belongs to an extractor that is no longer used.
SELECT o.observation_id, o.scope, o.parked_at, coalesce(o.formation_error_class::text, 'other') AS error_class
  FROM {schema}.observation AS o
 WHERE o.parked_at IS NOT NULL
   AND (%(observation_ids)s::bigint[] IS NULL OR o.observation_id = ANY(%(observation_ids)s))
   AND (%(scope)s::text IS NULL OR o.scope = %(scope)s)
   AND (%(classes)s::text[] IS NULL OR coalesce(o.formation_error_class::text, 'other') = ANY(%(classes)s))
   AND (%(older_than)s::interval IS NULL OR o.parked_at <= now() - %(older_than)s::interval)
   AND (%(max_park_count)s::integer IS NULL OR o.park_count <= %(max_park_count)s)
   AND NOT (%(answering)s AND EXISTS (
            SELECT FROM {schema}.formation_circuit AS c
             WHERE c.circuit_id = o.streak_circuit
               AND c.opened_at IS NOT NULL
               AND c.next_probe_at > now() - interval '1 hour'
           ))
 ORDER BY o.parked_at, o.observation_id
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
           streak_circuit = NULL,
           streak = NULL,
           streak_attempts = 0,
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

-- name: parked_scopes
SELECT scope, parked FROM {schema}.watermark_formed WHERE parked > 0 ORDER BY parked DESC, scope LIMIT %(limit)s
