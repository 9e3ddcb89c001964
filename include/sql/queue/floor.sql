-- Floor segments: which of them have passed, and what a prune does to the children of one.

-- name: candidates
-- All rows of the segment have had the time that they were carried for, or are past what their queue's retention is now.
-- Where a retention was raised meanwhile some are inside the floor still: they move on to another segment.
SELECT contents.segment AS slot, NULL::bigint AS generation
  FROM {schema}.floor_segment_contents AS contents
  LEFT JOIN unnest(%(own)s::text[], %(seconds)s::bigint[]) AS setting (queue, seconds) USING (queue)
 WHERE %(slot)s::integer IS NULL OR contents.segment = %(slot)s
 GROUP BY contents.segment
HAVING bool_and(contents.expected_until < now()
                OR NOT {schema}.within_failed_retention(
                       'failed', contents.newest_finalized_at, coalesce(setting.seconds, %(retention)s)))
 ORDER BY min(contents.expected_until)

-- name: probe
LOCK TABLE {schema}.done_entries_floor_{number}, {schema}.queue_terminal_count_deltas_floor_{number}
        IN ACCESS EXCLUSIVE MODE NOWAIT

-- name: hold_writers
-- A retry that takes rows out waits from here on, readers do not.
LOCK TABLE {schema}.done_entries_floor_{number}, {schema}.queue_terminal_count_deltas_floor_{number}
        IN SHARE ROW EXCLUSIVE MODE

-- name: hold_all
LOCK TABLE {schema}.done_entries_floor_{number}, {schema}.queue_terminal_count_deltas_floor_{number}
        IN ACCESS EXCLUSIVE MODE

-- name: filled
SELECT pg_relation_size('{schema}.done_entries_floor_{number}') > 0 AS truncate_done,
       pg_relation_size('{schema}.queue_terminal_count_deltas_floor_{number}') > 0 AS truncate_deltas

-- name: truncate_done
TRUNCATE {schema}.done_entries_floor_{number}

-- name: truncate_deltas
TRUNCATE {schema}.queue_terminal_count_deltas_floor_{number}

-- name: forget_counts
DELETE FROM {schema}.queue_terminal_live_counts WHERE ready_slot = {slot}

-- name: reclaimed
DELETE FROM {schema}.floor_segment_contents WHERE segment = {slot}
