-- Erasing turns. `matching` alone says which; it finds the scopes, the turns, and what is left of them afterwards.

-- name: matching
SELECT observation_id, scope
  FROM {schema}.observation
 WHERE (%(scope)s::text IS NULL OR scope = %(scope)s)
   AND (%(subject)s::text IS NULL OR data_subject_id = %(subject)s)
   AND (%(observation_ids)s::bigint[] IS NULL OR observation_id = ANY(%(observation_ids)s))

-- name: hold
-- Under the locks of their scopes.
SELECT scope,
       log_offset,
       formed_at IS NOT NULL AS formed,
       CASE WHEN parked_at IS NOT NULL THEN coalesce(formation_error_class::text, 'other') END AS parked_class
  FROM {schema}.observation
 WHERE observation_id = ANY(%(observation_ids)s)
 ORDER BY scope, log_offset
   FOR UPDATE

-- name: delete_derived
-- Whatever was derived from the turns: the tables of derived rows follow by foreign key.
WITH gone AS (
    DELETE FROM {schema}.projection_dependency WHERE source_id = ANY(%(observation_ids)s) RETURNING derived_kind
)
SELECT derived_kind AS kind, count(*) AS number FROM gone GROUP BY derived_kind

-- name: delete_source
-- The foreign keys are checked when the statement ends, so the order in which it deletes does not matter.
WITH message AS (
    DELETE FROM {schema}.turn_message WHERE observation_id = ANY(%(observation_ids)s) RETURNING 1
), digest AS (
    UPDATE {schema}.turn_idempotency
       SET content_digest = NULL, erased_at = clock_timestamp()
     WHERE observation_id = ANY(%(observation_ids)s) AND erased_at IS NULL
    RETURNING 1
), turn AS (
    DELETE FROM {schema}.observation WHERE observation_id = ANY(%(observation_ids)s) RETURNING 1
)
SELECT 'turn_message' AS kind, count(*) AS number FROM message
UNION ALL SELECT 'idempotency_digest', count(*) FROM digest
UNION ALL SELECT 'observation', count(*) FROM turn

-- name: residual
-- Of the turns that were to go and of those that match still.
SELECT derived_kind AS kind, count(*) AS number
  FROM {schema}.projection_dependency WHERE source_id = ANY(%(observation_ids)s) GROUP BY derived_kind
UNION ALL
SELECT 'turn_message', count(*) FROM {schema}.turn_message WHERE observation_id = ANY(%(observation_ids)s)
UNION ALL
SELECT 'idempotency_digest', count(*) FROM {schema}.turn_idempotency
 WHERE observation_id = ANY(%(observation_ids)s) AND content_digest IS NOT NULL
UNION ALL
SELECT 'observation', count(*) FROM {schema}.observation WHERE observation_id = ANY(%(observation_ids)s)

-- name: receipt
INSERT INTO {schema}.erasure_request (reason, scope, subject_digest, by_ids, erased_at, deleted, residual, clean)
VALUES (%(reason)s, %(scope)s, %(subject_digest)s, %(by_ids)s, clock_timestamp(), %(deleted)s, %(residual)s, %(clean)s)
RETURNING request_id, deleted, residual, clean

-- name: cutoff
-- By the database's clock, once for the whole expiry.
SELECT clock_timestamp() - %(older_than)s AS before

-- name: expired
-- The next of those that were stored before, behind the last step's.
SELECT observation_id, scope, ingested_at, log_offset
  FROM {schema}.observation
 WHERE ingested_at < %(before)s
   AND (ingested_at, observation_id) > (%(after)s::timestamptz, %(after_id)s)
 ORDER BY ingested_at, observation_id
 LIMIT %(limit)s

-- name: last_offset
SELECT log_offset FROM {schema}.watermark WHERE scope = %(scope)s

-- name: of_scope
-- The next of a scope's turns, up to the last one that there was when the scope began to be dropped.
SELECT observation_id, scope, ingested_at, log_offset
  FROM {schema}.observation
 WHERE scope = %(scope)s
   AND log_offset > %(after_offset)s
   AND log_offset <= %(last_offset)s
 ORDER BY log_offset
 LIMIT %(limit)s

-- name: open_receipt
INSERT INTO {schema}.erasure_request
       (action, reason, scope, ingested_before, by_ids, erased_at, deleted, residual, clean)
VALUES (%(action)s::{schema}.erasure_action, %(reason)s, %(scope)s, %(before)s, false, clock_timestamp(), %(deleted)s,
        jsonb_build_object(), false)
RETURNING request_id

-- name: add_to_receipt
UPDATE {schema}.erasure_request
   SET erased_at = clock_timestamp(), deleted = %(deleted)s
 WHERE request_id = %(request_id)s

-- name: close_receipt
UPDATE {schema}.erasure_request
   SET erased_at = clock_timestamp(), residual = %(residual)s, clean = %(clean)s
 WHERE request_id = %(request_id)s

-- name: left_of_age
SELECT count(*) AS number FROM {schema}.observation WHERE ingested_at < %(before)s

-- name: left_of_scope
SELECT count(*) AS number FROM {schema}.observation WHERE scope = %(scope)s

-- name: forget_scope
-- What is kept about a scope beside its numbers, under its lock. Turns that came meanwhile are found by their languages.
WITH setting AS (
    DELETE FROM {schema}.scope_setting WHERE scope = %(scope)s
), record AS (
    DELETE FROM {schema}.parking_record WHERE scope = %(scope)s
), language AS (
    DELETE FROM {schema}.scope_language
     WHERE scope = %(scope)s AND NOT EXISTS (SELECT FROM {schema}.observation WHERE scope = %(scope)s)
)
DELETE FROM {schema}.rebuild WHERE scope = %(scope)s
