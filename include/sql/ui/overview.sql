-- What the page shows of a namespace at a glance: sums that are kept, and probes of an index. Nothing here grows with the
-- number of jobs or turns.

-- name: queue_totals
SELECT coalesce(sum(jobs) FILTER (WHERE state = 'available'), 0)::bigint AS available,
       coalesce(sum(jobs) FILTER (WHERE state = 'running'), 0)::bigint AS running,
       coalesce(sum(jobs) FILTER (WHERE state IN ('scheduled', 'retryable')), 0)::bigint AS deferred,
       coalesce(sum(jobs) FILTER (WHERE state = 'failed'), 0)::bigint AS failed,
       coalesce(sum(jobs) FILTER (WHERE state = 'dead_lettered'), 0)::bigint AS dead_lettered,
       (SELECT coalesce(sum(pruned_failed_count), 0)::bigint FROM {schema}.queue_terminal_rollups) AS pruned_failed,
       {schema}.counters_are_trusted() AS trusted
  FROM {schema}.queue_believed_counts

-- name: expiring
-- Failed jobs that pass the floor within a time, counted up to a limit: each lane is a stretch of the index on failed rows.
WITH found AS (
    SELECT
      FROM {schema}.queue_lanes AS lane
      LEFT JOIN {schema}.queue_settings AS setting USING (queue)
     CROSS JOIN LATERAL (
           SELECT make_interval(secs => coalesce(setting.failed_retention_seconds, %(retention)s::bigint)) AS floor) AS kept
     CROSS JOIN LATERAL (
           SELECT
             FROM {schema}.done_entries AS done
            WHERE done.lane_id = lane.lane_id AND done.state = 'failed'
              AND done.finalized_at <= now() + %(within)s::interval - kept.floor
            ORDER BY done.finalized_at
            LIMIT %(limit)s) AS due
     LIMIT %(limit)s
)
SELECT count(*) AS jobs FROM found

-- name: first_expiry
-- When the next failed job passes its floor, or did: one probe a lane and slot.
SELECT min(found.expires_at) AS first_expires_at
  FROM {schema}.queue_lanes AS lane
  LEFT JOIN {schema}.queue_settings AS setting USING (queue)
 CROSS JOIN LATERAL (
       SELECT done.finalized_at
              + make_interval(secs => coalesce(setting.failed_retention_seconds, %(retention)s::bigint)) AS expires_at
         FROM {schema}.done_entries AS done
        WHERE done.lane_id = lane.lane_id AND done.state = 'failed'
        ORDER BY done.finalized_at
        LIMIT 1) AS found

-- name: pending_since
-- Since when the longest waiting turn waits, among the scopes with the largest backlogs. The probe begins behind what is
-- formed: under an old snapshot the index has an entry for each turn that was formed before.
SELECT min(turn.ingested_at) AS pending_since
  FROM (SELECT w.scope, coalesce(f.formed_offset, -1) AS formed_offset
          FROM {schema}.watermark AS w
          LEFT JOIN {schema}.watermark_formed AS f USING (scope)
         WHERE w.log_offset > coalesce(f.formed_offset, -1)
         ORDER BY w.log_offset - coalesce(f.formed_offset, -1) DESC, w.scope
         LIMIT %(scopes)s) AS behind
 CROSS JOIN LATERAL (
       SELECT o.ingested_at
         FROM {schema}.observation AS o
        WHERE o.scope = behind.scope AND o.log_offset > behind.formed_offset
          AND o.formed_at IS NULL AND o.parked_at IS NULL
        ORDER BY o.log_offset
        LIMIT 1) AS turn

-- name: oldest_parked
SELECT min(oldest_parked_at) AS oldest_parked_at FROM {schema}.watermark_formed WHERE parked > 0

-- name: circuits
-- The open ones first.
SELECT extractor, extractor_version, identity,
       CASE WHEN opened_at IS NULL THEN 'closed' ELSE 'open' END AS state,
       opened_at, next_probe_at,
       CASE WHEN opened_at IS NOT NULL THEN error_class::text END AS error_class,
       failing
  FROM {schema}.formation_circuit
 ORDER BY opened_at NULLS LAST, extractor, extractor_version, identity
 LIMIT %(limit)s
