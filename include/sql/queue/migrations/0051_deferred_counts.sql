-- Jobs outside of the ring are counted through the ledger, too.
--
-- Until now deferred_jobs was counted row by row, so that queue_counts became slower with each job that waits for its time.
-- From here on the table keeps its own account: whatever adds rows to it or takes rows out appends the difference, in one
-- place that no path can forget. A job that stands outside of the ring has no slot, so its difference goes to the slot that
-- is current at that moment, and only the sum over all slots says how many there are.
--
-- When a slot is pruned, what it has of jobs that have not ended is such differences only, since no job waits or runs in
-- it. Prune moves their sum, when it is not zero, to the live counts of slot -1000, which does not exist: so it outlives the
-- TRUNCATE.

CREATE FUNCTION {schema}.count_deferred() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog AS $function$
BEGIN
    -- Without a lock on the ring: wherever the difference lands, it is summed up.
    INSERT INTO {schema}.queue_terminal_count_deltas (ready_slot, ready_generation, lane_id, state, bucket, delta)
    SELECT ring.current_slot, ring.generation, moved.lane_id, moved.state, min(moved.job_id) % 64,
           CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE -count(*) END
      FROM {schema}.queue_ring_state AS ring, moved
     GROUP BY ring.current_slot, ring.generation, moved.lane_id, moved.state;
    RETURN NULL;
END
$function$;
COMMENT ON FUNCTION {schema}.count_deferred() IS
    'Append to the ledger of counts what a statement added to deferred_jobs or took out of it.';

-- First the ring, as in every order of locks: a rebuild of the counters must not count the same rows meanwhile.
SELECT FROM {schema}.queue_ring_state FOR UPDATE;
-- Then the table: writers wait from here on, and all that came before them is there to be counted.
CREATE TRIGGER deferred_jobs_entered AFTER INSERT ON {schema}.deferred_jobs
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_deferred();
CREATE TRIGGER deferred_jobs_left AFTER DELETE ON {schema}.deferred_jobs
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_deferred();

INSERT INTO {schema}.queue_terminal_live_counts (ready_slot, lane_id, state, bucket, count)
SELECT -1000, lane_id, state, 0, count(*)
  FROM {schema}.deferred_jobs
 GROUP BY lane_id, state;

COMMENT ON COLUMN {schema}.queue_terminal_live_counts.ready_slot IS
    'The slot; -1000 for jobs outside of the ring whose differences stood in a slot that was pruned since.';
