-- What a prune would do, for people to read before it does.

-- name: by_kind
-- The rows of one unit by what will become of them, and failed rows everywhere else, which stay: in one statement, so that
-- none is counted twice that a prune moves meanwhile. A queue's own retention wins, as in a prune.
SELECT lane.queue, done.kind,
       count(*) FILTER (WHERE done.in_unit AND within.floor) AS carried_failed_rows,
       count(*) FILTER (WHERE done.in_unit AND done.state = 'failed' AND NOT within.floor) AS pruned_failed,
       count(*) FILTER (WHERE done.in_unit AND done.state <> 'failed') AS pruned_completed,
       count(*) FILTER (WHERE NOT done.in_unit) AS kept_failed_rows
  FROM (SELECT true AS in_unit, lane_id, kind, state, finalized_at
          FROM {schema}.done_entries WHERE ready_slot = {slot}
        UNION ALL
        SELECT false, lane_id, kind, state, finalized_at
          FROM {schema}.done_entries WHERE ready_slot <> {slot} AND state = 'failed') AS done
  JOIN {schema}.queue_lanes AS lane USING (lane_id)
  LEFT JOIN {schema}.queue_settings AS setting USING (queue)
 CROSS JOIN LATERAL (
       SELECT {schema}.within_failed_retention(
              done.state, done.finalized_at, coalesce(setting.failed_retention_seconds, %(retention)s)) AS floor) AS within
 GROUP BY lane.queue, done.kind
 ORDER BY lane.queue, done.kind
