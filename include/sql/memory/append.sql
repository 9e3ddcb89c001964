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
-- Numbers and stores turns of one scope. Turns are counted from 1 in every array that refers to them. Nothing is stored
-- and no row returned when a cap forbids it. That of the scope is exact: what was assigned is read under the lock, and what
-- is formed meanwhile only makes more room. That of the namespace is looked at before, and appends to other scopes at the
-- same moment may go past it together.
WITH cap AS MATERIALIZED (
    SELECT s.backlog_cap AS of_scope,
           coalesce(f.formed + f.parked + f.erased, 0) AS passed,
           CASE WHEN n.value IS NOT NULL THEN
                n.value::bigint - (
                    SELECT coalesce(sum(w.log_offset + 1 - g.formed - g.parked - g.erased), 0)
                      FROM {schema}.watermark AS w
                      JOIN {schema}.watermark_formed AS g ON g.scope = w.scope
                )
           END AS room
      FROM (SELECT %(scope)s::text AS scope) AS asked
      LEFT JOIN {schema}.scope_setting AS s ON s.scope = asked.scope
      LEFT JOIN {schema}.watermark_formed AS f ON f.scope = asked.scope
      LEFT JOIN {schema}.settings AS n ON n.name = 'memory_backlog_cap'
), mark AS (
    INSERT INTO {schema}.watermark AS w (scope, log_offset)
    SELECT %(scope)s, %(turns)s - 1
      FROM cap
     WHERE %(turns)s <= least(cap.of_scope, cap.room, %(turns)s)
        ON CONFLICT (scope) DO UPDATE SET log_offset = w.log_offset + %(turns)s
     WHERE (
            SELECT cap.of_scope IS NULL OR w.log_offset + 1 - cap.passed + %(turns)s <= cap.of_scope FROM cap
           )
    RETURNING w.log_offset - %(turns)s AS before
), formed_side AS (
    INSERT INTO {schema}.watermark_formed (scope) SELECT %(scope)s FROM mark ON CONFLICT (scope) DO NOTHING
), turn AS (
    INSERT INTO {schema}.observation (scope, log_offset, occurred_at, data_subject_id, language)
    SELECT %(scope)s, mark.before + t.number, coalesce(t.occurred_at, clock_timestamp()), t.subject, t.language
      FROM mark
     CROSS JOIN unnest(%(occurred_at)s::timestamptz[], %(subjects)s::text[], %(languages)s::text[]) WITH ORDINALITY
           AS t (occurred_at, subject, language, number)
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

-- name: backlog
-- Why an append was refused: the caps, and what is to be formed already.
SELECT s.backlog_cap AS scope_cap,
       (SELECT value::bigint FROM {schema}.settings WHERE name = 'memory_backlog_cap') AS namespace_cap,
       coalesce(w.log_offset + 1 - coalesce(f.formed + f.parked + f.erased, 0), 0) AS scope_backlog,
       (
            SELECT coalesce(sum(w.log_offset + 1 - g.formed - g.parked - g.erased), 0)::bigint
              FROM {schema}.watermark AS w
              JOIN {schema}.watermark_formed AS g ON g.scope = w.scope
       ) AS namespace_backlog
  FROM (SELECT %(scope)s::text AS scope) AS asked
  LEFT JOIN {schema}.scope_setting AS s ON s.scope = asked.scope
  LEFT JOIN {schema}.watermark AS w ON w.scope = asked.scope
  LEFT JOIN {schema}.watermark_formed AS f ON f.scope = asked.scope
