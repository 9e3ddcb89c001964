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
           streak_circuit = NULL,
           streak = NULL,
           streak_attempts = 0,
           claim_token = NULL,
           claimed_until = NULL
     WHERE observation_id = %(observation_id)s
       AND claim_token = %(token)s
       AND formed_at IS NULL
       AND parked_at IS NULL
    RETURNING observation_id, scope, language
), replaced AS (
    DELETE FROM {schema}.projection_dependency AS d USING turn WHERE d.source_id = turn.observation_id
), item AS MATERIALIZED (
    SELECT nextval(pg_get_serial_sequence('{schema}.projection_dependency', 'derived_id')) AS derived_id,
           turn.observation_id, turn.scope, turn.language, m.kind, m.text, m.search_text
      FROM turn
     CROSS JOIN unnest(%(kinds)s::text[], %(texts)s::text[], %(search_texts)s::text[]) AS m (kind, text, search_text)
), dependency AS (
    INSERT INTO {schema}.projection_dependency (derived_id, source_id, derived_kind) OVERRIDING SYSTEM VALUE
    SELECT derived_id, observation_id, 'memory' FROM item
), memory AS (
    INSERT INTO {schema}.memory (memory_id, scope, kind, text, search_text, language, extractor, extractor_version)
    SELECT derived_id, scope, kind, text, search_text, language, %(extractor)s, %(extractor_version)s FROM item
)
SELECT observation_id FROM turn

-- name: hold
-- Under the circuit's lock: the turn, if the claim stands, and what it has behind it.
SELECT formation_attempts, deferrals, streak_circuit, streak, streak_attempts
  FROM {schema}.observation
 WHERE observation_id = %(observation_id)s
   AND claim_token = %(token)s
   AND formed_at IS NULL
   AND parked_at IS NULL
   FOR NO KEY UPDATE

-- name: fail
-- A failure, be it the last one: what parks a turn is the answer of a canary, which comes later. An attempt that is not
-- `spent` is a deferral.
UPDATE {schema}.observation
   SET formation_attempts = formation_attempts + %(spent)s - 1,
       deferrals = deferrals + 1 - %(spent)s,
       formation_failed_at = clock_timestamp(),
       formation_error_class = %(error_class)s::{schema}.formation_error_class,
       formation_error = %(error)s,
       next_attempt_at = clock_timestamp() + %(wait)s,
       streak_circuit = %(circuit_id)s,
       streak = %(streak)s,
       streak_attempts = %(streak_attempts)s,
       claim_token = NULL,
       claimed_until = NULL
 WHERE observation_id = %(observation_id)s
   AND claim_token = %(token)s

-- name: left
-- What is still to be formed, and whether it may be.
SELECT coalesce(sum(w.log_offset + 1 - f.formed - f.parked - f.erased), 0)::bigint AS backlog,
       EXISTS (
            SELECT FROM {schema}.formation_circuit AS c
             WHERE c.extractor = %(extractor)s AND c.extractor_version = %(version)s AND c.identity = %(identity)s
               AND c.opened_at IS NOT NULL
       ) AS open
  FROM {schema}.watermark AS w
  JOIN {schema}.watermark_formed AS f ON f.scope = w.scope
 WHERE %(scope)s::text IS NULL OR w.scope = %(scope)s
