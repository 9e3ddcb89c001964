-- How an attempt ends. Every statement is fenced by the claim's token: a result that comes after the turn was erased,
-- parked or taken over finds nothing.

-- name: form
-- Under the scope's lock. What was remembered of the turn before is replaced; derived rows follow their dependency.
WITH turn AS (
    UPDATE {schema}.observation
       SET formed_at = clock_timestamp(),
           formation_error = NULL,
           formation_error_class = NULL,
           formation_failed_at = NULL,
           claim_token = NULL,
           claimed_until = NULL
     WHERE observation_id = %(observation_id)s
       AND claim_token = %(token)s
       AND formed_at IS NULL
       AND parked_at IS NULL
    RETURNING observation_id, scope
), replaced AS (
    DELETE FROM {schema}.projection_dependency AS d USING turn WHERE d.source_id = turn.observation_id
), item AS MATERIALIZED (
    SELECT nextval(pg_get_serial_sequence('{schema}.projection_dependency', 'derived_id')) AS derived_id,
           turn.observation_id, turn.scope, m.kind, m.text, m.search_text
      FROM turn
     CROSS JOIN unnest(%(kinds)s::text[], %(texts)s::text[], %(search_texts)s::text[]) AS m (kind, text, search_text)
), dependency AS (
    INSERT INTO {schema}.projection_dependency (derived_id, source_id, derived_kind) OVERRIDING SYSTEM VALUE
    SELECT derived_id, observation_id, 'memory' FROM item
), memory AS (
    INSERT INTO {schema}.memory (memory_id, scope, kind, text, search_text, extractor, extractor_version)
    SELECT derived_id, scope, kind, text, search_text, %(extractor)s, %(extractor_version)s FROM item
)
SELECT observation_id FROM turn

-- name: retry_later
-- A failure with attempts left, or one that is not the turn's own: `returned` gives the attempt back.
UPDATE {schema}.observation
   SET formation_attempts = formation_attempts - %(returned)s,
       deferrals = deferrals + %(returned)s,
       formation_failed_at = clock_timestamp(),
       formation_error_class = %(error_class)s::{schema}.formation_error_class,
       formation_error = %(error)s,
       next_attempt_at = clock_timestamp() + %(wait)s,
       claim_token = NULL,
       claimed_until = NULL
 WHERE observation_id = %(observation_id)s
   AND claim_token = %(token)s
   AND formed_at IS NULL
   AND parked_at IS NULL

-- name: park
-- Under the scope's lock.
UPDATE {schema}.observation
   SET parked_at = clock_timestamp(),
       park_count = park_count + 1,
       formation_failed_at = clock_timestamp(),
       formation_error_class = %(error_class)s::{schema}.formation_error_class,
       formation_error = %(error)s,
       claim_token = NULL,
       claimed_until = NULL
 WHERE observation_id = %(observation_id)s
   AND claim_token = %(token)s
   AND formed_at IS NULL
   AND parked_at IS NULL

-- name: backlog
SELECT coalesce(sum(w.log_offset + 1 - f.formed - f.parked - f.erased), 0)::bigint
  FROM {schema}.watermark AS w
  JOIN {schema}.watermark_formed AS f ON f.scope = w.scope
 WHERE %(scope)s::text IS NULL OR w.scope = %(scope)s
