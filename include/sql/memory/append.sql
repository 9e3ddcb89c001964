-- Storing turns.

-- name: digest_key
SELECT value FROM {schema}.settings WHERE name = 'digest_key'

-- name: lock_scope
-- Before keys are looked up: what another append to this scope stored is then committed and visible, or rolled back.
INSERT INTO {schema}.watermark AS w (scope, log_offset)
VALUES (%(scope)s, -1)
    ON CONFLICT (scope) DO UPDATE SET log_offset = w.log_offset

-- name: known_keys
SELECT key_digest, content_digest, observation_id, log_offset
  FROM {schema}.turn_idempotency
 WHERE key_digest = ANY(%(keys)s)

-- name: append
-- Numbers and stores turns of one scope. Turns are counted from 1 in every array that refers to them.
WITH mark AS (
    INSERT INTO {schema}.watermark AS w (scope, log_offset)
    VALUES (%(scope)s, %(turns)s - 1)
        ON CONFLICT (scope) DO UPDATE SET log_offset = w.log_offset + %(turns)s
    RETURNING w.log_offset - %(turns)s AS before
), formed_side AS (
    INSERT INTO {schema}.watermark_formed (scope) VALUES (%(scope)s) ON CONFLICT (scope) DO NOTHING
), turn AS (
    INSERT INTO {schema}.observation (scope, log_offset, occurred_at, data_subject_id)
    SELECT %(scope)s, mark.before + t.number, coalesce(t.occurred_at, clock_timestamp()), t.subject
      FROM mark
     CROSS JOIN unnest(%(occurred_at)s::timestamptz[], %(subjects)s::text[]) WITH ORDINALITY
           AS t (occurred_at, subject, number)
     ORDER BY t.number
    RETURNING observation_id, log_offset
), message AS (
    INSERT INTO {schema}.turn_message (observation_id, position, role, content)
    SELECT turn.observation_id, m.position, m.role::{schema}.message_role, m.content
      FROM mark
     CROSS JOIN unnest(%(message_turns)s::bigint[], %(positions)s::integer[], %(roles)s::text[], %(contents)s::text[])
           AS m (number, position, role, content)
      JOIN turn ON turn.log_offset = mark.before + m.number
), key AS (
    INSERT INTO {schema}.turn_idempotency (key_digest, content_digest, observation_id, log_offset)
    SELECT k.key_digest, k.content_digest, turn.observation_id, turn.log_offset
      FROM mark
     CROSS JOIN unnest(%(key_turns)s::bigint[], %(key_digests)s::bytea[], %(content_digests)s::bytea[])
           AS k (number, key_digest, content_digest)
      JOIN turn ON turn.log_offset = mark.before + k.number
)
SELECT observation_id, log_offset FROM turn ORDER BY log_offset
