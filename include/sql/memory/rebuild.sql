-- Forming turns again that are formed or parked. Lock order: watermark_formed, the turn, derived rows, and last the row
-- of the rebuild.

-- name: begin
-- None comes to be while the scope has one that has not ended, or nothing in the range.
INSERT INTO {schema}.rebuild
       (scope, extractor, extractor_version, identity, from_offset, to_offset, asked_to, through_offset)
SELECT w.scope, %(extractor)s, %(version)s, %(identity)s, %(from_offset)s,
       least(%(to_offset)s::bigint, w.log_offset), %(to_offset)s::bigint, %(from_offset)s::bigint - 1
  FROM {schema}.watermark AS w
 WHERE w.scope = %(scope)s
   AND %(from_offset)s <= least(%(to_offset)s::bigint, w.log_offset)
    ON CONFLICT (scope) WHERE ended_at IS NULL DO NOTHING

-- name: ranges
-- By the index on when turns were stored. What lies between the first and the last turn of a window belongs to it.
SELECT scope, min(log_offset) AS from_offset, max(log_offset) AS to_offset
  FROM {schema}.observation
 WHERE ingested_at >= coalesce(%(ingested_from)s::timestamptz, '-infinity')
   AND ingested_at < coalesce(%(ingested_before)s::timestamptz, 'infinity')
   AND (%(scope)s::text IS NULL OR scope = %(scope)s)
 GROUP BY scope
 ORDER BY scope

-- name: active
SELECT rebuild_id, extractor, extractor_version AS version, identity, from_offset, to_offset, asked_to, through_offset,
       coalesce(leased_until > clock_timestamp(), false) AS taken
  FROM {schema}.rebuild
 WHERE scope = %(scope)s AND ended_at IS NULL
   FOR NO KEY UPDATE

-- name: take
UPDATE {schema}.rebuild
   SET token = %(token)s, leased_until = clock_timestamp() + %(lease)s
 WHERE rebuild_id = %(rebuild_id)s

-- name: leave
UPDATE {schema}.rebuild
   SET token = NULL, leased_until = NULL
 WHERE scope = %(scope)s AND ended_at IS NULL AND token = %(token)s

-- name: turns
-- What comes next, with its messages. Turns that are still to be formed are formation's.
SELECT o.observation_id, o.log_offset, o.occurred_at, message.roles, message.contents
  FROM {schema}.observation AS o
 CROSS JOIN LATERAL (
        SELECT array_agg(m.role::text ORDER BY m.position) AS roles, array_agg(m.content ORDER BY m.position) AS contents
          FROM {schema}.turn_message AS m
         WHERE m.observation_id = o.observation_id
       ) AS message
 WHERE o.scope = %(scope)s
   AND o.log_offset > %(through_offset)s
   AND o.log_offset <= %(to_offset)s
   AND (o.formed_at IS NOT NULL OR o.parked_at IS NOT NULL)
 ORDER BY o.log_offset
 LIMIT %(limit)s

-- name: hold
-- Under the scope's lock: the turn, if it is still one that a rebuild forms.
SELECT observation_id,
       formed_at IS NOT NULL AS formed,
       CASE WHEN parked_at IS NOT NULL THEN coalesce(formation_error_class::text, 'other') END AS parked_class
  FROM {schema}.observation
 WHERE observation_id = %(observation_id)s
   AND (formed_at IS NOT NULL OR parked_at IS NOT NULL)
   FOR NO KEY UPDATE

-- name: replace
-- What was remembered of the turn goes, and what was extracted now comes, in one statement: nobody sees both or neither.
WITH turn AS (
    UPDATE {schema}.observation
       SET formed_at = clock_timestamp(),
           parked_at = NULL,
           formation_error = NULL,
           formation_error_class = NULL,
           formation_failed_at = NULL,
           streak_circuit = NULL,
           streak = NULL,
           streak_attempts = 0
     WHERE observation_id = %(observation_id)s
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
)
INSERT INTO {schema}.memory (memory_id, scope, kind, text, search_text, language, extractor, extractor_version)
SELECT derived_id, scope, kind, text, search_text, language, %(extractor)s, %(extractor_version)s FROM item

-- name: advance
-- The last step of each transaction. No row: somebody else has taken the rebuild over, or it was cancelled, and the
-- transaction is to be undone.
UPDATE {schema}.rebuild
   SET through_offset = %(through_offset)s,
       rebuilt = rebuilt + %(rebuilt)s,
       failed = failed + %(failed)s,
       updated_at = clock_timestamp(),
       ended_at = CASE WHEN %(through_offset)s >= to_offset THEN clock_timestamp() END,
       token = CASE WHEN %(through_offset)s >= to_offset THEN NULL ELSE token END,
       leased_until = CASE WHEN %(through_offset)s >= to_offset THEN NULL ELSE clock_timestamp() + %(lease)s END
 WHERE rebuild_id = %(rebuild_id)s AND token = %(token)s AND ended_at IS NULL
RETURNING through_offset

-- name: note_failure
INSERT INTO {schema}.rebuild_failure (rebuild_id, log_offset, error_class)
VALUES (%(rebuild_id)s, %(log_offset)s, %(error_class)s::{schema}.formation_error_class)

-- name: cancel
UPDATE {schema}.rebuild
   SET ended_at = clock_timestamp(), cancelled = true, token = NULL, leased_until = NULL
 WHERE scope = %(scope)s AND ended_at IS NULL

-- name: figures
SELECT rebuilt, failed, through_offset - from_offset + 1 - rebuilt - failed AS skipped, through_offset,
       to_offset, cancelled
  FROM {schema}.rebuild
 WHERE rebuild_id = %(rebuild_id)s

-- name: rebuilds
SELECT r.scope, r.extractor, r.extractor_version AS version, r.from_offset, r.to_offset, r.through_offset,
       CASE WHEN r.cancelled THEN 'cancelled' WHEN r.ended_at IS NOT NULL THEN 'done'
            WHEN r.leased_until > now() THEN 'running' ELSE 'waiting' END AS state,
       r.rebuilt, r.failed, r.through_offset - r.from_offset + 1 - r.rebuilt - r.failed AS skipped,
       ARRAY(SELECT f.log_offset FROM {schema}.rebuild_failure AS f
              WHERE f.rebuild_id = r.rebuild_id ORDER BY f.log_offset LIMIT %(walk)s) AS failed_offsets,
       r.started_at, r.updated_at, r.ended_at
  FROM {schema}.rebuild AS r
 WHERE %(scope)s::text IS NULL OR r.scope = %(scope)s
 ORDER BY r.rebuild_id DESC
 LIMIT %(limit)s
