-- What is asked about the memory.

-- name: freshness
-- One statement, one snapshot. Counts are kept, so its cost does not grow with the log; the ranges of parked turns are
-- bounded by the rows that are looked at, from where parked turns can be to the last one that there is.
SELECT coalesce(w.log_offset + 1, 0) AS stored,
       coalesce(f.formed_offset, -1) AS formed_offset,
       coalesce(f.formed_strict_offset, -1) AS formed_strict_offset,
       coalesce(f.formed, 0) AS formed_turns,
       coalesce(f.parked, 0) AS parked,
       coalesce(f.erased, 0) AS erased,
       coalesce(f.epoch, 0) AS epoch,
       s.paused_at,
       f.oldest_parked_at,
       CASE WHEN f.parked > 0 THEN ARRAY(
            SELECT o.log_offset
              FROM {schema}.observation AS o
             WHERE o.scope = w.scope AND o.parked_at IS NOT NULL AND o.log_offset > f.formed_strict_offset
             ORDER BY o.log_offset
             LIMIT least(%(walk)s, f.parked)
       ) ELSE '{}' END AS parked_offsets,
       ARRAY(SELECT c.error_class::text FROM {schema}.parked_class AS c
              WHERE c.scope = w.scope AND c.parked > 0 ORDER BY c.error_class) AS classes,
       ARRAY(SELECT c.parked FROM {schema}.parked_class AS c
              WHERE c.scope = w.scope AND c.parked > 0 ORDER BY c.error_class) AS class_counts
  FROM (SELECT %(scope)s::text AS scope) AS asked
  LEFT JOIN {schema}.watermark AS w ON w.scope = asked.scope
  LEFT JOIN {schema}.watermark_formed AS f ON f.scope = asked.scope
  LEFT JOIN {schema}.scope_setting AS s ON s.scope = asked.scope

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
-- The words of a text as the index knows them: as they stand, and in each language that the scope has memories of.
SELECT array_agg(DISTINCT words.word) AS words
  FROM (SELECT 'simple' AS name
        UNION ALL
        SELECT configuration FROM {schema}.scope_language WHERE scope = %(scope)s) AS configuration
 CROSS JOIN unnest(tsvector_to_array(to_tsvector({schema}.search_configuration(configuration.name), %(text)s)))
       AS words (word)

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

-- name: miscounts
-- Kept numbers that are not what a count of the rows says, in one snapshot. It reads every turn.
WITH counted AS (
    SELECT scope,
           count(*) AS turns,
           count(formed_at) AS formed,
           count(parked_at) AS parked,
           min(log_offset) FILTER (WHERE formed_at IS NULL AND parked_at IS NULL) AS pending,
           min(log_offset) FILTER (WHERE formed_at IS NULL) AS unformed
      FROM {schema}.observation
     GROUP BY scope
), numbers AS (
    SELECT scope, number.name, number.kept, number.counted
      FROM {schema}.watermark AS w
      FULL JOIN {schema}.watermark_formed AS f USING (scope)
      FULL JOIN counted AS c USING (scope)
     CROSS JOIN LATERAL (
            VALUES ('formed', coalesce(f.formed, 0), coalesce(c.formed, 0)),
                   ('parked', coalesce(f.parked, 0), coalesce(c.parked, 0)),
                   ('erased', coalesce(f.erased, 0), coalesce(w.log_offset, -1) + 1 - coalesce(c.turns, 0)),
                   ('formed_offset', coalesce(f.formed_offset, -1), coalesce(c.pending - 1, w.log_offset, -1)),
                   ('formed_strict_offset', coalesce(f.formed_strict_offset, -1),
                    coalesce(c.unformed - 1, w.log_offset, -1))
           ) AS number (name, kept, counted)
), classes AS (
    SELECT scope, 'parked for ' || error_class::text AS name, coalesce(p.parked, 0) AS kept,
           coalesce(c.parked, 0) AS counted
      FROM {schema}.parked_class AS p
      FULL JOIN (
            SELECT scope, coalesce(formation_error_class, 'other') AS error_class, count(*) AS parked
              FROM {schema}.observation
             WHERE parked_at IS NOT NULL
             GROUP BY 1, 2
           ) AS c USING (scope, error_class)
)
SELECT scope, name, kept, counted FROM numbers WHERE kept <> counted
UNION ALL
SELECT scope, name, kept, counted FROM classes WHERE kept <> counted
 ORDER BY scope, name
