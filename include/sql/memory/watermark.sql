-- The formed side of the watermark. Lock order: rows here by scope, then observations by offset, then derived rows.

-- name: lock
-- First of two statements: what the second one reads must be younger than the wait for this lock.
SELECT scope
  FROM {schema}.watermark_formed
 WHERE scope = ANY(%(scopes)s)
 ORDER BY scope
   FOR NO KEY UPDATE

-- name: recompute
-- Takes in what the transaction changed, one element a scope, and finds both offsets anew. The probes start where the
-- stored value stands: all below it has passed, and an old snapshot may keep the entries of that part alive. `reopened`
-- is the lowest offset that is to be formed again, from which they start instead.
WITH change AS (
    SELECT *
      FROM unnest(%(scopes)s::text[], %(formed)s::bigint[], %(parked)s::bigint[], %(erased)s::bigint[],
                  %(reopened)s::bigint[]) AS c (scope, formed, parked, erased, reopened)
), class_change AS (
    SELECT c.scope, c.error_class::{schema}.formation_error_class AS error_class, c.parked
      FROM unnest(%(class_scopes)s::text[], %(classes)s::text[], %(class_parked)s::bigint[])
           AS c (scope, error_class, parked)
), more_parked AS (
    INSERT INTO {schema}.parked_class AS p (scope, error_class, parked)
    SELECT scope, error_class, parked FROM class_change WHERE parked > 0
        ON CONFLICT (scope, error_class) DO UPDATE SET parked = p.parked + excluded.parked
), fewer_parked AS (
    UPDATE {schema}.parked_class AS p
       SET parked = p.parked + c.parked
      FROM class_change AS c
     WHERE p.scope = c.scope AND p.error_class = c.error_class AND c.parked < 0
)
UPDATE {schema}.watermark_formed AS f
   SET formed = f.formed + change.formed,
       parked = f.parked + change.parked,
       erased = f.erased + change.erased,
       formed_offset = coalesce(pending.log_offset - 1, assigned.log_offset),
       formed_strict_offset = coalesce(least(pending.log_offset, parked.log_offset) - 1, assigned.log_offset),
       epoch = f.epoch + (change.reopened IS NOT NULL)::integer
  FROM change
  JOIN {schema}.watermark_formed AS stored ON stored.scope = change.scope
  JOIN {schema}.watermark AS assigned ON assigned.scope = change.scope
  LEFT JOIN LATERAL (
        SELECT o.log_offset
          FROM {schema}.observation AS o
         WHERE o.scope = change.scope
           AND o.formed_at IS NULL
           AND o.parked_at IS NULL
           AND o.log_offset > least(stored.formed_offset, change.reopened - 1)
         ORDER BY o.log_offset
         LIMIT 1
       ) AS pending ON true
  LEFT JOIN LATERAL (
        SELECT o.log_offset
          FROM {schema}.observation AS o
         WHERE o.scope = change.scope
           AND o.parked_at IS NOT NULL
           AND o.log_offset > least(stored.formed_strict_offset, change.reopened - 1)
         ORDER BY o.log_offset
         LIMIT 1
       ) AS parked ON true
 WHERE f.scope = change.scope
