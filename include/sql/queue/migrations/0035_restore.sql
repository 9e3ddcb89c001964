-- A namespace that was restored from a dump counts its transactions anew.
--
-- enqueue_xid and the cursors compare transactions of one cluster. A dump that is restored into another one brings rows
-- and cursors with foreign numbers: what is enqueued there may lie below the cursor and would never be claimed. So before
-- the first claim each lane is rebased: its waiting jobs are given a position of their own, everything that stood there
-- gets a tombstone, and the cursor begins before the first row. Bodies stay: claims that were open and terminal rows
-- refer to them.

ALTER TABLE {schema}.queue_ring_state ADD COLUMN table_oid oid;
UPDATE {schema}.queue_ring_state SET table_oid = tableoid;
COMMENT ON COLUMN {schema}.queue_ring_state.table_oid IS
    'The oid of this table. A restore from a dump makes the table anew, with another oid: so it is noticed.';

CREATE FUNCTION {schema}.queue_was_restored() RETURNS boolean
LANGUAGE plpgsql STABLE AS $function$
BEGIN
    RETURN (SELECT table_oid IS DISTINCT FROM tableoid FROM {schema}.queue_ring_state);
END
$function$;
COMMENT ON FUNCTION {schema}.queue_was_restored() IS
    'Whether the namespace came from a dump and no claim was made since. Until then no cursor means anything.';

CREATE FUNCTION {schema}.rebase_lane(p_lane_id integer, p_slot integer, p_generation bigint) RETURNS void
LANGUAGE plpgsql AS $function$
DECLARE
    v_cursor {schema}.lane_cursor := {schema}.read_cursor(p_slot, p_lane_id);
BEGIN
    -- A row waits when no claim can have taken it: beyond the cursor or what was taken of its late transaction; or newer,
    -- by a sequence that goes on after a restore, than all that was taken.
    EXECUTE format($rebase$
        WITH body AS (
            SELECT ready.*,
                   (ready.lane_seq > $4
                    OR (ready.enqueue_xid, ready.lane_seq) > ($2, $3)
                    OR EXISTS (SELECT FROM unnest($5, $6) AS late (xid, seq)
                                WHERE late.xid = ready.enqueue_xid AND late.seq < ready.lane_seq))
                   AND NOT EXISTS (
                       SELECT FROM {schema}.ready_tombstones_%1$s AS stone
                        WHERE stone.ready_slot = %1$s AND stone.lane_id = $1
                          AND stone.enqueue_xid = ready.enqueue_xid AND stone.lane_seq = ready.lane_seq) AS waits
              FROM {schema}.ready_entries_%1$s AS ready
             WHERE ready.ready_slot = %1$s AND ready.lane_id = $1
        ), marked AS (
            INSERT INTO {schema}.ready_tombstones_%1$s (enqueue_xid, lane_seq, job_id, ready_slot, lane_id)
            SELECT enqueue_xid, lane_seq, job_id, ready_slot, lane_id FROM body
            ON CONFLICT DO NOTHING
        )
        INSERT INTO {schema}.ready_entries_%1$s
               (enqueue_xid, job_id, ready_generation, run_at, created_at, ready_slot, lane_id, attempt, max_attempts, kind,
                args, unique_key, unique_states)
        SELECT '0', job_id, ready_generation, run_at, created_at, ready_slot, lane_id, attempt, max_attempts, kind,
               args, unique_key, unique_states
          FROM body
         WHERE waits
         ORDER BY lane_seq
        $rebase$, p_slot)
      USING p_lane_id, v_cursor.xid, v_cursor.seq, v_cursor.highest_seq, v_cursor.late_xids, v_cursor.late_seqs;
    INSERT INTO {schema}.lease_claim_batches
           (claim_slot, run_lease, ready_slot, ready_generation, lane_id, claimed_at, lease_until, job_count,
            cursor_xid, cursor_seq, highest_seq, late_xids, late_seqs, has_unique_keys,
            job_ids, lane_seqs, enqueue_xids, attempts, max_attempts, kinds)
    SELECT current_slot, nextval('{schema}.run_lease_seq'), p_slot, p_generation, p_lane_id, clock_timestamp(),
           clock_timestamp(), 0, '0', 0, v_cursor.highest_seq, '{}', '{}', false, '{}', '{}', '{}', '{}', '{}', '{}'
      FROM {schema}.claim_ring_state;
END
$function$;
COMMENT ON FUNCTION {schema}.rebase_lane(integer, integer, bigint) IS
    'Begin a lane anew in one slot, with the jobs that still wait in it. The lane is locked by the caller.';

CREATE FUNCTION {schema}.rebase_claims() RETURNS void
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
END
$function$;
COMMENT ON FUNCTION {schema}.rebase_claims() IS 'Begin all lanes anew after a restore, once.';
