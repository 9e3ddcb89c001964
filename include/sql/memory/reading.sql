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

-- name: recall
-- Any word of the query may match. Words go into the tsquery one by one, quoted, so that nothing a person types is read
-- as an operator. The scope is a word of the index too: it narrows the search before any row is looked at.
WITH asked AS (
    SELECT string_agg('''' || replace(replace(word, '\', '\\'), '''', '''''') || '''', ' | ')::tsquery AS words,
           ('''' || chr(1) || replace(replace(%(scope)s, '\', '\\'), '''', '''''') || '''')::tsquery AS scope
      FROM unnest(tsvector_to_array(to_tsvector('pg_catalog.simple', %(query)s))) AS word
)
SELECT m.memory_id, d.source_id AS observation_id, o.log_offset, o.occurred_at, m.kind, m.text,
       ts_rank(m.search, asked.words)::float8 AS rank, m.extractor, m.extractor_version
  FROM asked
  JOIN {schema}.memory AS m ON m.search @@ (asked.words && asked.scope) AND m.scope = %(scope)s
  JOIN {schema}.projection_dependency AS d ON d.derived_id = m.memory_id
  JOIN {schema}.observation AS o ON o.observation_id = d.source_id
 ORDER BY rank DESC, m.memory_id DESC
 LIMIT %(limit)s
