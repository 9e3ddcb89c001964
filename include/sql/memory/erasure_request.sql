-- Erasures that are asked for first and carried out later.

-- name: request
INSERT INTO {schema}.erasure_request (reason, scope, subject_digest, by_ids, observation_ids)
VALUES (%(reason)s, %(scope)s, %(subject_digest)s, %(observation_ids)s::bigint[] IS NOT NULL, %(observation_ids)s::bigint[])
RETURNING request_id

-- name: requested
SELECT request_id, requested_at, reason, scope, subject_digest, by_ids, observation_ids, erased_at, deleted, residual,
       clean
  FROM {schema}.erasure_request
 WHERE request_id = %(request_id)s AND action = 'erase'

-- name: waiting
-- Erasures that were asked for and are not carried out, or left something; the oldest first.
SELECT request_id
  FROM {schema}.erasure_request
 WHERE action = 'erase' AND clean IS NOT TRUE AND NOT (by_ids AND observation_ids IS NULL)
 ORDER BY requested_at, request_id
 LIMIT %(limit)s

-- name: subjects
-- The next subjects in their order, one probe of the index each, however many turns each has.
WITH RECURSIVE found AS (
    (SELECT data_subject_id AS subject
       FROM {schema}.observation
      WHERE data_subject_id > %(after)s
      ORDER BY data_subject_id
      LIMIT 1)
    UNION ALL
    SELECT (SELECT o.data_subject_id
              FROM {schema}.observation AS o
             WHERE o.data_subject_id > found.subject
             ORDER BY o.data_subject_id
             LIMIT 1)
      FROM found
     WHERE found.subject IS NOT NULL
)
SELECT subject FROM found WHERE subject IS NOT NULL LIMIT %(limit)s

-- name: carried_out
-- What was deleted is added to what an earlier try has deleted: that one was not clean. The ids are kept no longer than
-- they are needed.
UPDATE {schema}.erasure_request AS request
   SET erased_at = clock_timestamp(),
       deleted = (SELECT jsonb_object_agg(kind, number)
                    FROM (SELECT each.key AS kind, sum(each.value::bigint)::bigint AS number
                            FROM (SELECT * FROM jsonb_each_text(coalesce(request.deleted, '{}'))
                                  UNION ALL
                                  SELECT * FROM jsonb_each_text(%(deleted)s::jsonb)) AS each
                           GROUP BY each.key) AS summed),
       residual = %(residual)s::jsonb,
       clean = %(clean)s,
       observation_ids = CASE WHEN %(clean)s THEN NULL ELSE request.observation_ids END
 WHERE request_id = %(request_id)s
RETURNING request_id, deleted, residual, clean
