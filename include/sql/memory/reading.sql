-- What is asked about the memory.

-- name: freshness
-- One statement, one snapshot. Counts are kept, so its cost does not grow with the log; the ranges of parked turns are
-- bounded by the rows that are looked at, starting where parked turns can be.
SELECT w.log_offset + 1 AS stored,
       f.formed_offset,
       f.formed_strict_offset,
       f.formed AS formed_turns,
       f.parked,
       f.erased,
       f.epoch,
       (SELECT s.paused_at FROM {schema}.scope_setting AS s WHERE s.scope = w.scope) AS paused_at,
       CASE WHEN f.parked > 0 THEN (
            SELECT o.parked_at
              FROM {schema}.observation AS o
             WHERE o.scope = w.scope AND o.parked_at IS NOT NULL
             ORDER BY o.parked_at
             LIMIT 1
       ) END AS oldest_parked_at,
       CASE WHEN f.parked > 0 THEN ARRAY(
            SELECT o.log_offset
              FROM {schema}.observation AS o
             WHERE o.scope = w.scope AND o.parked_at IS NOT NULL AND o.log_offset > f.formed_strict_offset
             ORDER BY o.log_offset
             LIMIT %(walk)s
       ) ELSE '{}' END AS parked_offsets,
       ARRAY(SELECT c.error_class::text FROM {schema}.parked_class AS c
              WHERE c.scope = w.scope AND c.parked > 0 ORDER BY c.error_class) AS classes,
       ARRAY(SELECT c.parked FROM {schema}.parked_class AS c
              WHERE c.scope = w.scope AND c.parked > 0 ORDER BY c.error_class) AS class_counts
  FROM {schema}.watermark AS w
  JOIN {schema}.watermark_formed AS f ON f.scope = w.scope
 WHERE w.scope = %(scope)s

-- name: turn_status
SELECT CASE
           WHEN o.parked_at IS NOT NULL THEN 'parked'
           WHEN o.formed_at IS NOT NULL THEN 'formed'
           WHEN o.observation_id IS NOT NULL THEN 'pending'
           ELSE 'erased'
       END
  FROM {schema}.watermark AS w
  LEFT JOIN {schema}.observation AS o ON o.scope = w.scope AND o.log_offset = %(log_offset)s
 WHERE w.scope = %(scope)s
   AND %(log_offset)s BETWEEN 0 AND w.log_offset

-- name: words
-- The words of a text as the index knows them.
SELECT tsvector_to_array(to_tsvector('pg_catalog.simple', %(text)s))

-- name: recall
-- The scope is a word of the index too: it narrows the search before any row is looked at. Where a memory comes from is
-- looked up for the best only.
WITH best AS (
    SELECT m.memory_id, m.kind, m.text, m.extractor, m.extractor_version,
           ts_rank(m.search, %(words)s::tsquery)::float8 AS rank
      FROM {schema}.memory AS m
     WHERE m.search @@ (%(words)s::tsquery && %(scope_word)s::tsquery)
       AND m.scope = %(scope)s
     ORDER BY rank DESC, m.memory_id DESC
     LIMIT %(limit)s
)
SELECT best.memory_id, d.source_id AS observation_id, o.log_offset, o.occurred_at, best.kind, best.text, best.rank,
       best.extractor, best.extractor_version
  FROM best
  JOIN {schema}.projection_dependency AS d ON d.derived_id = best.memory_id
  JOIN {schema}.observation AS o ON o.observation_id = d.source_id
 ORDER BY best.rank DESC, best.memory_id DESC
