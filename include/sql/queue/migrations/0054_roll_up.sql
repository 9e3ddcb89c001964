-- Roll-up folds the ledger of counts, and a marker says whether the ledger is believed.
--
-- Every change of state appends a difference, and counting reads them all. Folding adds up what was appended and keeps
-- the sums, so that counting stays cheap however long a slot is current. It moves numbers and never makes one: folded
-- counts + differences are the same before and after.
--
-- A ledger can be wrong all the same: somebody changed rows by hand, or restored a part of a namespace. One that shows it,
-- by a sum below zero, and one that came from a dump is not believed any more: jobs are then counted from their rows,
-- which takes longer and cannot be wrong, until the counters have been rebuilt.

CREATE TABLE {schema}.queue_counter_state (
    singleton     boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    distrusted_at timestamptz
);
INSERT INTO {schema}.queue_counter_state DEFAULT VALUES;
COMMENT ON COLUMN {schema}.queue_counter_state.distrusted_at IS
    'Since when the ledger of counts is not believed; NULL when it is. rebuild_terminal_counters sets it back.';

CREATE FUNCTION {schema}.counters_are_trusted() RETURNS boolean
LANGUAGE plpgsql STABLE AS $function$
BEGIN
    RETURN (SELECT distrusted_at IS NULL FROM {schema}.queue_counter_state) AND NOT {schema}.queue_was_restored();
END
$function$;
COMMENT ON FUNCTION {schema}.counters_are_trusted() IS 'Whether the ledger of counts is believed.';

-- A view and not a function: a statement that names it locks all that it reads before it takes its snapshot, so no
-- TRUNCATE can come between the two. A tombstone is looked for body by body, by its key: asked for by NOT EXISTS, it may be
-- searched for among all of the lane, and a restore leaves one on each body.
--
-- A body waits when no claim can have taken it: it lies beyond the newest cursor of its lane, or beyond what was taken of
-- a transaction that was late, or its sequence is above all that was taken. The last is true of the first two as well,
-- unless the cursors are another cluster's: so the view is right after a restore, too.
CREATE VIEW {schema}.queue_counted_rows AS
SELECT slot.slot AS ready_slot, lane.lane_id, 'available'::{schema}.job_state AS state, found.jobs
  FROM {schema}.queue_ring_slots AS slot
 CROSS JOIN {schema}.queue_lanes AS lane
  LEFT JOIN LATERAL (
       SELECT batch.cursor_xid, batch.cursor_seq, batch.highest_seq, batch.late_xids, batch.late_seqs
         FROM {schema}.lease_claim_batches AS batch
        WHERE batch.ready_slot = slot.slot AND batch.lane_id = lane.lane_id
        ORDER BY batch.run_lease DESC
        LIMIT 1) AS newest ON true
 CROSS JOIN LATERAL (
       SELECT count(*) AS jobs
         FROM {schema}.ready_entries AS ready
         LEFT JOIN LATERAL (
              SELECT true AS found
                FROM {schema}.ready_tombstones AS stone
               WHERE stone.ready_slot = slot.slot AND stone.lane_id = lane.lane_id
                 AND stone.enqueue_xid = ready.enqueue_xid AND stone.lane_seq = ready.lane_seq
               LIMIT 1) AS tombstone ON true
        WHERE ready.ready_slot = slot.slot AND ready.lane_id = lane.lane_id
          AND (newest.cursor_xid IS NULL
               OR ready.lane_seq > newest.highest_seq
               OR (ready.enqueue_xid, ready.lane_seq) > (newest.cursor_xid, newest.cursor_seq)
               OR EXISTS (SELECT FROM unnest(newest.late_xids, newest.late_seqs) AS late (xid, seq)
                           WHERE late.xid = ready.enqueue_xid AND late.seq < ready.lane_seq))
          AND tombstone.found IS NULL) AS found
UNION ALL
SELECT batch.ready_slot, batch.lane_id, 'running', sum(batch.job_count)
  FROM {schema}.lease_claim_batches AS batch
  JOIN {schema}.queue_ring_slots AS slot ON slot.slot = batch.ready_slot AND batch.run_lease > slot.settled_batch_id
 GROUP BY batch.ready_slot, batch.lane_id
UNION ALL
SELECT closure.ready_slot, batch.lane_id, 'running', -sum(closure.job_count)
  FROM {schema}.lease_claim_closures AS closure
  JOIN {schema}.queue_ring_slots AS slot ON slot.slot = closure.ready_slot AND closure.run_lease > slot.settled_batch_id
 CROSS JOIN LATERAL (
       SELECT claimed.lane_id
         FROM {schema}.lease_claim_batches AS claimed
        WHERE claimed.claim_slot = closure.claim_slot AND claimed.run_lease = closure.run_lease
        LIMIT 1) AS batch
 GROUP BY closure.ready_slot, batch.lane_id
UNION ALL
SELECT done.ready_slot, done.lane_id, done.state, count(*)
  FROM {schema}.done_entries AS done
 GROUP BY done.ready_slot, done.lane_id, done.state
UNION ALL
-- Outside of the ring: whatever slot their differences stand in, the sum over all slots is the same.
SELECT -1000, deferred.lane_id, deferred.state, count(*)
  FROM {schema}.deferred_jobs AS deferred
 GROUP BY deferred.lane_id, deferred.state
UNION ALL
SELECT -1000, letter.lane_id, 'dead_lettered', count(*)
  FROM {schema}.dlq_entries AS letter
 GROUP BY letter.lane_id
UNION ALL
SELECT -1000, moved.lane_id, 'running', count(*)
  FROM {schema}.running_evacuated AS moved
 GROUP BY moved.lane_id;
COMMENT ON VIEW {schema}.queue_counted_rows IS
    'What the rows themselves say, by slot, lane and state; running jobs as those claimed and, negative, those that ended. '
    'Reads all that the ring holds, and what stands outside of it.';

CREATE OR REPLACE FUNCTION {schema}.rebase_claims() RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    -- Lanes before the ring, as in every other action. A lane that comes up meanwhile has nothing foreign in it.
    PERFORM {schema}.lock_lane(lane_id) FROM (SELECT lane_id FROM {schema}.queue_lanes ORDER BY lane_id OFFSET 0) AS lane;
    PERFORM FROM {schema}.queue_ring_state FOR UPDATE;
    IF NOT {schema}.queue_was_restored() THEN
        RETURN;  -- another session did it while this one waited
    END IF;
    PERFORM {schema}.rebase_lane(lane.lane_id, slot.slot, slot.generation)
       FROM {schema}.queue_lanes AS lane, {schema}.queue_ring_slots AS slot
      WHERE slot.generation IS NOT NULL;
    UPDATE {schema}.queue_ring_state SET table_oid = tableoid;
    -- Whether the dump had all of the ledger nobody can tell from here on.
    UPDATE {schema}.queue_counter_state SET distrusted_at = coalesce(distrusted_at, clock_timestamp());
END
$function$;
COMMENT ON FUNCTION {schema}.rebase_claims() IS 'Begin all lanes anew after a restore, once.';

CREATE VIEW {schema}.queue_ledger AS
SELECT ready_slot, lane_id, state, count AS jobs FROM {schema}.queue_terminal_live_counts
UNION ALL
SELECT ready_slot, lane_id, state, delta FROM {schema}.queue_terminal_count_deltas;
COMMENT ON VIEW {schema}.queue_ledger IS
    'The ledger of counts: what was folded, and each difference since. Only sums mean something.';

CREATE VIEW {schema}.queue_believed_counts AS
SELECT ready_slot, lane_id, state, jobs FROM {schema}.queue_ledger WHERE (SELECT {schema}.counters_are_trusted())
UNION ALL
SELECT ready_slot, lane_id, state, jobs FROM {schema}.queue_counted_rows WHERE NOT (SELECT {schema}.counters_are_trusted());
COMMENT ON VIEW {schema}.queue_believed_counts IS
    'How many jobs are in each slot, lane and state, as terms to be added up: from the ledger, or from the rows while the ledger '
    'is not believed.';

CREATE FUNCTION {schema}.count_queue(
    p_queue text,
    OUT available bigint, OUT running bigint, OUT terminal bigint, OUT pruned_failed bigint, OUT deferred bigint,
    OUT failed bigint, OUT dead_lettered bigint, OUT purged_dead_letters bigint, OUT known boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $function$
BEGIN
    -- Made from text, so that as long as the ledger is believed nothing else is touched, nor waited for. One statement, one
    -- snapshot: a job that moves meanwhile is counted once.
    EXECUTE format($query$
        WITH lane AS MATERIALIZED (
            SELECT lane_id FROM {schema}.queue_lanes WHERE queue = $1
        ), live AS (
            SELECT coalesce(sum(jobs) FILTER (WHERE state = 'available'), 0) AS available,
                   coalesce(sum(jobs) FILTER (WHERE state = 'running'), 0) AS running,
                   coalesce(sum(jobs) FILTER (WHERE state IN ('scheduled', 'retryable')), 0) AS deferred,
                   coalesce(sum(jobs) FILTER (WHERE state IN ('completed', 'failed', 'cancelled')), 0) AS terminal,
                   coalesce(sum(jobs) FILTER (WHERE state = 'failed'), 0) AS failed,
                   coalesce(sum(jobs) FILTER (WHERE state = 'dead_lettered'), 0) AS dead_lettered
              FROM {schema}.%I
             WHERE lane_id = ANY (ARRAY (SELECT lane_id FROM lane))
        ), pruned AS (
            SELECT coalesce(sum(pruned_completed_count), 0) AS completed, coalesce(sum(pruned_failed_count), 0) AS failed,
                   coalesce(sum(purged_dead_letters), 0) AS dead_letters
              FROM {schema}.queue_terminal_rollups
             WHERE queue = $1
        )
        SELECT live.available, live.running, live.terminal + pruned.completed + pruned.failed, pruned.failed, live.deferred,
               live.failed, live.dead_lettered, pruned.dead_letters,
               EXISTS (SELECT FROM lane)
                   OR EXISTS (SELECT FROM {schema}.queue_settings WHERE queue = $1)
                   OR EXISTS (SELECT FROM {schema}.queue_terminal_rollups WHERE queue = $1)
          FROM live, pruned
        $query$, CASE WHEN {schema}.counters_are_trusted() THEN 'queue_ledger' ELSE 'queue_counted_rows' END)
       INTO available, running, terminal, pruned_failed, deferred, failed, dead_lettered, purged_dead_letters, known
      USING p_queue;
END
$function$;
COMMENT ON FUNCTION {schema}.count_queue(text) IS
    'The jobs of a queue, exactly; known is false when it never had one, nothing of it was pruned and it has no settings.';
