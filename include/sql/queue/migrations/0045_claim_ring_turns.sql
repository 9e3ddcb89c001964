-- The claim ring turns: batches and closures of a sealed slot leave by TRUNCATE when every claim in it has ended.
--
-- What a batch says of its own jobs is of no use then: a claim is looked up by (claim_slot, run_lease), and not to be found
-- means what closed means. What must outlive it is the cursor that rides on it, if it is the one in force for its lane in
-- its slot of the queue ring. It is carried: as a batch of no jobs, under the same run_lease, in the current claim slot.
--
-- So the cursor in force may stand in any claim slot. Nor is it in the newest one otherwise: a claim reads which slot is
-- current, waits for its lane, and appends its batch where it was told, though the ring has turned since. The one rule
-- that holds whatever the interleaving is that the cursor in force has the highest run_lease, since that is drawn under
-- the lane's lock. It is asked for over all claim slots in one statement, which locks all their children before it takes
-- its snapshot: no prune can carry a cursor from behind its back to a place that it has looked at already.
--
-- A cursor of a slot that was reclaimed since (its run_lease is not above settled_batch_id) is not in force any more. At
-- that moment everything in the slot had been claimed and was dropped; what stands there now came later and was taken by no
-- batch that is older, so a lane that has no newer cursor there begins before the first row.

CREATE OR REPLACE FUNCTION {schema}.read_cursor(p_slot integer, p_lane_id integer) RETURNS {schema}.lane_cursor
LANGUAGE plpgsql
SET enable_sort = off AS $function$
DECLARE
    v_found {schema}.lane_cursor;
BEGIN
    -- Without a sort the plan merges the children's indexes, and takes one row from each.
    SELECT cursor_xid, cursor_seq, highest_seq, late_xids, late_seqs INTO v_found
      FROM {schema}.lease_claim_batches
     WHERE ready_slot = p_slot AND lane_id = p_lane_id
     ORDER BY run_lease DESC
     LIMIT 1;
    IF FOUND THEN
        RETURN v_found;
    END IF;
    RETURN ('0', 0, 0, '{}', '{}')::{schema}.lane_cursor;  -- never claimed from: before the first row there can be
END
$function$;

CREATE FUNCTION {schema}.cursor_is_in_force(p_slot integer, p_lane_id integer, p_run_lease bigint) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.queue_ring_slots WHERE slot = p_slot AND settled_batch_id < p_run_lease)
       AND NOT EXISTS (
           SELECT FROM {schema}.lease_claim_batches
            WHERE ready_slot = p_slot AND lane_id = p_lane_id AND run_lease > p_run_lease);
END
$function$;
COMMENT ON FUNCTION {schema}.cursor_is_in_force(integer, integer, bigint) IS
    'Whether the cursor on this batch is the one by which the lane is claimed in this slot of the queue ring.';

CREATE FUNCTION {schema}.claim_slot_has_claims(p_slot integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $function$
DECLARE
    v_found boolean;
BEGIN
    -- Cursors in force alone are nothing to reclaim: to carry them on and on would keep an idle ring turning.
    EXECUTE format(
        'SELECT EXISTS (SELECT FROM {schema}.lease_claim_batches_%1$s WHERE job_count > 0)
             OR EXISTS (SELECT FROM {schema}.lease_claim_batches_%1$s
                         WHERE job_count = 0 AND NOT {schema}.cursor_is_in_force(ready_slot, lane_id, run_lease))', p_slot)
       INTO v_found;
    RETURN v_found;
END
$function$;
COMMENT ON FUNCTION {schema}.claim_slot_has_claims(integer) IS
    'Whether anything stands in the slot of the claim ring that its prune would drop. Without it the slot may be opened.';

CREATE FUNCTION {schema}.carry_cursors(p_slot integer, p_current_slot integer) RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $function$
DECLARE
    v_carried integer;
BEGIN
    EXECUTE format($carry$
        INSERT INTO {schema}.lease_claim_batches
               (claim_slot, run_lease, ready_slot, ready_generation, lane_id, claimed_at, lease_until, job_count,
                cursor_xid, cursor_seq, highest_seq, late_xids, late_seqs, has_unique_keys,
                job_ids, lane_seqs, enqueue_xids, attempts, max_attempts, kinds)
        SELECT $1, newest.run_lease, newest.ready_slot, newest.ready_generation, newest.lane_id, newest.claimed_at,
               newest.lease_until, 0, newest.cursor_xid, newest.cursor_seq, newest.highest_seq, newest.late_xids,
               newest.late_seqs, false, '{}', '{}', '{}', '{}', '{}', '{}'
          FROM {schema}.queue_ring_slots AS slot
         CROSS JOIN {schema}.queue_lanes AS lane
         CROSS JOIN LATERAL (
               SELECT * FROM {schema}.lease_claim_batches_%1$s AS batch
                WHERE batch.ready_slot = slot.slot AND batch.lane_id = lane.lane_id
                ORDER BY batch.run_lease DESC
                LIMIT 1) AS newest
         WHERE {schema}.cursor_is_in_force(newest.ready_slot, newest.lane_id, newest.run_lease)
        $carry$, p_slot)
      USING p_current_slot;
    GET DIAGNOSTICS v_carried = ROW_COUNT;
    RETURN v_carried;
END
$function$;
COMMENT ON FUNCTION {schema}.carry_cursors(integer, integer) IS
    'Copy the cursors in force from one slot of the claim ring to the current one, before the first is truncated.';

-- As for the slots of the queue ring: a vacuum would hold off the TRUNCATE that leaves it nothing to do.
DO $do$
DECLARE
    v_slot integer;
BEGIN
    FOR v_slot IN SELECT slot FROM {schema}.claim_ring_slots ORDER BY slot LOOP
        EXECUTE format('ALTER TABLE {schema}.lease_claim_batches_%s SET (autovacuum_enabled = off)', v_slot);
        EXECUTE format('ALTER TABLE {schema}.lease_claim_closures_%s SET (autovacuum_enabled = off)', v_slot);
    END LOOP;
END
$do$;
