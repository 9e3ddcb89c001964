-- How far behind a namespace is: what alarms and sensors look at. Each statement is one snapshot.

-- name: oldest_pending
-- The first turn behind what is formed is one that is not: one probe a scope that is behind, however long its log is.
SELECT extract(epoch FROM clock_timestamp() - min(first.ingested_at))::float8 AS seconds
  FROM {schema}.watermark AS stored
  LEFT JOIN {schema}.watermark_formed AS formed USING (scope)
 CROSS JOIN LATERAL (
       SELECT turn.ingested_at
         FROM {schema}.observation AS turn
        WHERE turn.scope = stored.scope AND turn.log_offset = coalesce(formed.formed_offset, -1) + 1) AS first
 WHERE coalesce(formed.formed_offset, -1) < stored.log_offset

-- name: blocked
-- How many prunes of the queue's ring were blocked since the last that had its locks. One that failed for another reason
-- says nothing about locks.
SELECT count(*) AS blocked
  FROM {schema}.maintenance_run AS run
 WHERE run.action = 'prune_with_carry' AND run.outcome = 'blocked' AND run.figures->>'ring' = 'queue'
   AND run.maintenance_run_id > coalesce((
       SELECT max(had.maintenance_run_id)
         FROM {schema}.maintenance_run AS had
        WHERE had.action = 'prune_with_carry' AND had.outcome NOT IN ('blocked', 'failed')
          AND had.figures->>'ring' = 'queue'), 0)
