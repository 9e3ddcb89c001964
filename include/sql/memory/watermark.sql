-- The formed side of the watermark. Lock order: rows here by scope, then observations by offset, then derived rows.

-- name: lock
-- First of two statements: what the second one reads must be younger than the wait for this lock.
SELECT scope
  FROM {schema}.watermark_formed
 WHERE scope = ANY(%(scopes)s)
 ORDER BY scope
   FOR NO KEY UPDATE

-- name: recompute
-- Takes in what the transaction changed and finds both offsets anew. The probes start where the stored value stands:
-- all below it has passed, and an old snapshot may keep the index entries of that part alive. So does that for the
-- longest parked turn: a turn that is parked now is not older than this transaction. `reopened` is the lowest
-- offset that is to be formed again, from which they start instead.
UPDATE {schema}.watermark_formed AS f
   SET formed = f.formed + %(formed)s,
       parked = f.parked + %(parked)s,
       erased = f.erased + %(erased)s,
       oldest_parked_at = CASE
            WHEN %(parked)s = 0 THEN f.oldest_parked_at
            WHEN f.parked + %(parked)s > 0 THEN coalesce(
                (SELECT o.parked_at
                   FROM {schema}.observation AS o
                  WHERE o.scope = %(scope)s
                    AND o.parked_at >= CASE WHEN %(parked)s > 0 THEN least(f.oldest_parked_at, now())
                                            ELSE f.oldest_parked_at END
                  ORDER BY o.parked_at
                  LIMIT 1),
                -- The server's clock was set back.
                (SELECT min(o.parked_at)
                   FROM {schema}.observation AS o
                  WHERE o.scope = %(scope)s AND o.parked_at IS NOT NULL)
            )
       END,
       epoch = f.epoch + (%(reopened)s::bigint IS NOT NULL OR %(replaced)s)::integer,
       (formed_offset, formed_strict_offset) = (
            SELECT coalesce(first.pending - 1, w.log_offset),
                   coalesce(least(first.pending, first.parked) - 1, w.log_offset)
              FROM {schema}.watermark AS w
             CROSS JOIN (
                    SELECT (SELECT o.log_offset
                              FROM {schema}.observation AS o
                             WHERE o.scope = %(scope)s
                               AND o.formed_at IS NULL
                               AND o.parked_at IS NULL
                               AND o.log_offset > least(f.formed_offset, %(reopened)s::bigint - 1)
                             ORDER BY o.log_offset
                             LIMIT 1) AS pending,
                           (SELECT o.log_offset
                              FROM {schema}.observation AS o
                             WHERE o.scope = %(scope)s
                               AND o.parked_at IS NOT NULL
                               AND o.log_offset > least(f.formed_strict_offset, %(reopened)s::bigint - 1)
                               AND f.parked + %(parked)s > 0
                             ORDER BY o.log_offset
                             LIMIT 1) AS parked
                   ) AS first
             WHERE w.scope = %(scope)s)
 WHERE f.scope = %(scope)s

-- name: count_parked
-- By class of error, with a record of each change; none becomes a row before it has something to count.
WITH change AS (
    SELECT c.error_class::{schema}.formation_error_class AS error_class, c.parked
      FROM unnest(%(classes)s::text[], %(parked)s::bigint[]) AS c (error_class, parked)
), record AS (
    INSERT INTO {schema}.parking_record (change, scope, error_class, turns)
    SELECT %(change)s::{schema}.parking_change, %(scope)s, error_class, abs(parked) FROM change
), fewer AS (
    UPDATE {schema}.parked_class AS p
       SET parked = p.parked + change.parked
      FROM change
     WHERE p.scope = %(scope)s AND p.error_class = change.error_class AND change.parked < 0
)
INSERT INTO {schema}.parked_class AS p (scope, error_class, parked)
SELECT %(scope)s, error_class, parked FROM change WHERE parked > 0
    ON CONFLICT (scope, error_class) DO UPDATE SET parked = p.parked + excluded.parked
