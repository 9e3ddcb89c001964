-- What rotate and prune ask before they touch a slot.
--
-- Each answer comes from one snapshot, the one of the statement that asks (hence STABLE), names its slot as a literal,
-- and has a plan that no statistics can change: a child that was just truncated or filled has none.

CREATE FUNCTION {schema}.queue_slot_has_rows(p_slot integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $function$
DECLARE
    v_found boolean;
BEGIN
    EXECUTE format(
        'SELECT EXISTS (SELECT FROM {schema}.done_entries_%1$s)
             OR EXISTS (SELECT FROM {schema}.ready_entries_%1$s)
             OR EXISTS (SELECT FROM {schema}.ready_tombstones_%1$s)', p_slot) INTO v_found;
    RETURN v_found;
END
$function$;
COMMENT ON FUNCTION {schema}.queue_slot_has_rows(integer) IS
    'Whether a job or the trace of one stands in the slot, of any generation. Without any the slot may be opened.';

-- A row waits when it lies beyond the newest cursor of its lane in the slot, or came from a transaction that was still
-- open when the cursor passed it (beyond what was already taken of that transaction), and no tombstone stands on it.
-- The generation of a row plays no part: one of another generation would be lost as surely. After a restore no cursor
-- means anything until a claim has set it anew, so all that has no tombstone counts as waiting.
CREATE FUNCTION {schema}.queue_waiting_rows(p_slot integer, p_limit bigint DEFAULT NULL)
RETURNS TABLE (lane_id integer, waiting bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $function$
BEGIN
    RETURN QUERY EXECUTE format($query$
        SELECT lane.lane_id, found.waiting
          FROM {schema}.queue_lanes AS lane
         CROSS JOIN LATERAL (
               SELECT FROM {schema}.ready_entries_%1$s AS ready
                WHERE ready.ready_slot = %1$s AND ready.lane_id = lane.lane_id
                LIMIT 1) AS present
          LEFT JOIN LATERAL (
               SELECT batch.cursor_xid, batch.cursor_seq, batch.late_xids, batch.late_seqs
                 FROM {schema}.lease_claim_batches AS batch
                WHERE batch.ready_slot = %1$s AND batch.lane_id = lane.lane_id
                ORDER BY batch.run_lease DESC
                LIMIT 1) AS newest ON NOT $2 AND newest.cursor_xid < pg_snapshot_xmax(pg_current_snapshot())
         CROSS JOIN LATERAL (
               SELECT count(*) AS waiting
                 FROM (SELECT FROM {schema}.ready_entries_%1$s AS ready
                        WHERE ready.ready_slot = %1$s AND ready.lane_id = lane.lane_id
                          AND (ready.enqueue_xid, ready.lane_seq)
                              > (coalesce(newest.cursor_xid, '0'), coalesce(newest.cursor_seq, 0))
                          AND NOT EXISTS (
                              SELECT FROM {schema}.ready_tombstones_%1$s AS stone
                               WHERE stone.ready_slot = %1$s AND stone.lane_id = ready.lane_id
                                 AND stone.enqueue_xid = ready.enqueue_xid AND stone.lane_seq = ready.lane_seq)
                       UNION ALL
                       SELECT FROM unnest(newest.late_xids, newest.late_seqs) AS late (xid, seq)
                         JOIN {schema}.ready_entries_%1$s AS ready
                           ON ready.ready_slot = %1$s AND ready.lane_id = lane.lane_id
                          AND ready.enqueue_xid = late.xid AND ready.lane_seq > late.seq
                        WHERE late.xid < newest.cursor_xid
                          AND NOT EXISTS (
                              SELECT FROM {schema}.ready_tombstones_%1$s AS stone
                               WHERE stone.ready_slot = %1$s AND stone.lane_id = ready.lane_id
                                 AND stone.enqueue_xid = ready.enqueue_xid AND stone.lane_seq = ready.lane_seq)
                       LIMIT $1) AS row) AS found
         WHERE found.waiting > 0
    $query$, p_slot) USING p_limit, {schema}.queue_was_restored();
END
$function$;
COMMENT ON FUNCTION {schema}.queue_waiting_rows(integer, bigint) IS
    'Jobs that no claim has taken yet, by lane; counted no further than the limit, when one is given.';

CREATE FUNCTION {schema}.queue_open_claims(p_slot integer) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $function$
DECLARE
    v_settled bigint;
    v_claimed bigint;
    v_closed  bigint;
BEGIN
    SELECT slot.settled_batch_id INTO v_settled FROM {schema}.queue_ring_slots AS slot WHERE slot.slot = p_slot;
    SELECT coalesce(sum(claimed.jobs), 0) INTO v_claimed
      FROM {schema}.queue_lanes AS lane
     CROSS JOIN LATERAL (
           SELECT sum(batch.job_count) AS jobs
             FROM {schema}.lease_claim_batches AS batch
            WHERE batch.ready_slot = p_slot AND batch.lane_id = lane.lane_id AND batch.run_lease > v_settled) AS claimed;
    SELECT coalesce(sum(closure.job_count), 0) INTO v_closed
      FROM {schema}.lease_claim_closures AS closure
     WHERE closure.ready_slot = p_slot AND closure.run_lease > v_settled;
    RETURN v_claimed - v_closed;
END
$function$;
COMMENT ON FUNCTION {schema}.queue_open_claims(integer) IS
    'How many jobs of the slot were claimed and have not ended: sums of batches and of closures, not rows.';

-- The one definition of the floor. Written so that it is inlined: the partial index on failed rows stays usable.
CREATE FUNCTION {schema}.within_failed_retention(p_state {schema}.job_state, p_finalized_at timestamptz, p_seconds bigint)
RETURNS boolean
LANGUAGE sql STABLE
RETURN p_state = 'failed' AND p_seconds > 0 AND p_finalized_at >= now() - make_interval(secs => p_seconds);
COMMENT ON FUNCTION {schema}.within_failed_retention({schema}.job_state, timestamptz, bigint) IS
    'Whether a terminal row is promised to be retryable still. Zero seconds promise nothing. now() is the start of the '
    'transaction, so that every statement of one prune draws the same line.';
