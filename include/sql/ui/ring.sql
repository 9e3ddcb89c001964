-- The ring for the page: slot by slot, with what pins it, at a cost that is bounded by the number of slots.

-- name: configure
-- Statistics of a child that was just filled say nothing; rows are probed by their keys.
SELECT set_config('enable_seqscan', 'off', true) AS seqscan, set_config('enable_hashjoin', 'off', true) AS hashjoin,
       set_config('enable_mergejoin', 'off', true) AS mergejoin, set_config('jit', 'off', true) AS jit

-- name: slots
-- Waiting jobs are counted up to a limit a lane: what matters is whether there are any, and whether they are many.
WITH ended AS MATERIALIZED (
    SELECT ready_slot AS slot, sum(jobs)::bigint AS terminal,
           coalesce(sum(jobs) FILTER (WHERE state = 'failed'), 0)::bigint AS failed
      FROM {schema}.queue_believed_counts
     WHERE state IN ('completed', 'failed', 'cancelled')
     GROUP BY ready_slot
)
SELECT slot.slot, slot.generation,
       CASE WHEN slot.slot = ring.current_slot THEN 'current'
            WHEN NOT held.rows THEN 'empty'
            WHEN used.waiting > 0 OR used.running > 0 THEN 'pinned'
            ELSE 'sealed' END AS state,
       slot.opened_at, slot.sealed_at,
       coalesce(ended.terminal, 0) AS terminal, coalesce(ended.failed, 0) AS failed,
       coalesce(used.waiting, 0) AS waiting, coalesce(used.running, 0) AS running
  FROM {schema}.queue_ring_slots AS slot
 CROSS JOIN {schema}.queue_ring_state AS ring
 CROSS JOIN LATERAL (SELECT {schema}.queue_slot_has_rows(slot.slot) AS rows OFFSET 0) AS held
  LEFT JOIN LATERAL (
       SELECT (SELECT coalesce(sum(waiting), 0)::bigint
                 FROM {schema}.queue_waiting_rows(slot.slot, %(limit)s)) AS waiting,
              {schema}.queue_open_claims(slot.slot) AS running
       OFFSET 0) AS used ON held.rows
  LEFT JOIN ended ON ended.slot = slot.slot
 ORDER BY slot.slot

-- name: segments
SELECT contents.segment,
       (SELECT coalesce(sum(counted.jobs), 0)::bigint
          FROM {schema}.queue_believed_counts AS counted
         WHERE counted.ready_slot = contents.segment AND counted.state = 'failed') AS failed,
       max(contents.expected_until) AS passes_at
  FROM {schema}.floor_segment_contents AS contents
 GROUP BY contents.segment
 ORDER BY contents.segment DESC
