-- What operators report beside their own figures: totals over the namespace.

-- name: pruned_failed_total
-- Failed jobs dropped past their retention, ever. Never decreases.
SELECT coalesce(sum(pruned_failed_count), 0)::bigint FROM {schema}.queue_terminal_rollups

-- name: memory_totals
-- One snapshot over all scopes. A scope that nobody has formed anything of has no row on the formed side.
SELECT count(*)                                                           AS scopes,
       coalesce(sum(log_offset + 1), 0)::bigint                           AS stored,
       coalesce(sum(formed), 0)::bigint                                   AS formed,
       coalesce(sum(parked), 0)::bigint                                   AS parked,
       coalesce(sum(erased), 0)::bigint                                   AS erased,
       (coalesce(sum(log_offset + 1), 0)
           - coalesce(sum(formed + parked + erased), 0))::bigint          AS backlog,
       count(*) FILTER (WHERE coalesce(formed_offset, -1) < log_offset)   AS scopes_behind
  FROM {schema}.watermark
  LEFT JOIN {schema}.watermark_formed USING (scope)
