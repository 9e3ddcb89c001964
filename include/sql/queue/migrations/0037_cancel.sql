-- Cancel: end a job wherever it stands.
--
-- A job moves one way: deferred to waiting, waiting to running, running to deferred again or to its end. So it is looked
-- for in that order, and once more when it was found to have moved on while its claim was waited for.

CREATE FUNCTION {schema}.find_body(p_job_id bigint) RETURNS {schema}.ready_entries
LANGUAGE plpgsql
SET enable_bitmapscan = on AS $function$
DECLARE
    v_slot   integer;
    v_body   {schema}.ready_entries;
    v_newest {schema}.ready_entries;
BEGIN
    -- A job that was tried before may have left bodies behind; the one in force has the highest sequence.
    FOR v_slot IN
        SELECT slot FROM {schema}.queue_ring_slots WHERE {schema}.has_pages('ready_entries', slot)
    LOOP
        -- By the job's id alone: with the slot in the condition a plan may prefer to walk the primary key.
        EXECUTE format('SELECT * FROM {schema}.ready_entries_%s WHERE job_id = $1 ORDER BY lane_seq DESC LIMIT 1', v_slot)
           INTO v_body USING p_job_id;
        IF v_body.lane_seq > coalesce(v_newest.lane_seq, 0) THEN
            v_newest := v_body;
        END IF;
    END LOOP;
    RETURN v_newest;
END
$function$;
COMMENT ON FUNCTION {schema}.find_body(bigint) IS 'The body of a job that is waiting, running or has ended; NULL without one.';

CREATE FUNCTION {schema}.is_waiting(p_body {schema}.ready_entries) RETURNS boolean
LANGUAGE plpgsql AS $function$
DECLARE
    v_cursor     {schema}.lane_cursor := {schema}.read_cursor(p_body.ready_slot, p_body.lane_id);
    v_tombstoned boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM {schema}.ready_tombstones_%1$s
                     WHERE ready_slot = %1$s AND lane_id = $1 AND enqueue_xid = $2 AND lane_seq = $3)', p_body.ready_slot)
       INTO v_tombstoned USING p_body.lane_id, p_body.enqueue_xid, p_body.lane_seq;
    RETURN NOT v_tombstoned
       AND ((p_body.enqueue_xid, p_body.lane_seq) > (v_cursor.xid, v_cursor.seq)
            OR EXISTS (SELECT FROM unnest(v_cursor.late_xids, v_cursor.late_seqs) AS late (xid, seq)
                        WHERE late.xid = p_body.enqueue_xid AND late.seq < p_body.lane_seq));
END
$function$;
COMMENT ON FUNCTION {schema}.is_waiting({schema}.ready_entries) IS
    'Whether a claim may still hand this body out. It may do so at any moment unless the lane is locked.';

CREATE FUNCTION {schema}.has_ended(p_body {schema}.ready_entries) RETURNS boolean
LANGUAGE plpgsql AS $function$
DECLARE
    v_ended boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM {schema}.done_entries_%1$s
                     WHERE ready_slot = %1$s AND lane_id = $1 AND lane_seq = $2)', p_body.ready_slot)
       INTO v_ended USING p_body.lane_id, p_body.lane_seq;
    RETURN v_ended;
END
$function$;
COMMENT ON FUNCTION {schema}.has_ended({schema}.ready_entries) IS 'Whether this body has a terminal row.';

CREATE FUNCTION {schema}.cancel_deferred(p_job_id bigint) RETURNS boolean
LANGUAGE plpgsql AS $function$
DECLARE
    v_job      {schema}.deferred_jobs;
    v_ring     {schema}.queue_ring_state;
    v_lane_seq bigint;
BEGIN
    DELETE FROM {schema}.deferred_jobs WHERE job_id = p_job_id RETURNING * INTO v_job;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT * INTO STRICT v_ring FROM {schema}.queue_ring_state;
    v_lane_seq := nextval('{schema}.lane_seq');
    INSERT INTO {schema}.done_entries
           (ready_slot, ready_generation, lane_id, lane_seq, job_id, attempted_at, finalized_at, state, attempt, max_attempts,
            kind, error, args, run_at, created_at, unique_key, unique_states)
    VALUES (v_ring.current_slot, v_ring.generation, v_job.lane_id, v_lane_seq, v_job.job_id, v_job.attempted_at,
            clock_timestamp(), 'cancelled', v_job.attempt, v_job.max_attempts, v_job.kind, v_job.error, v_job.args, v_job.run_at,
            v_job.created_at, v_job.unique_key, v_job.unique_states);
    PERFORM {schema}.add_count_delta(v_ring.current_slot, v_ring.generation, v_job.lane_id, p_job_id, 'cancelled', 1);
    IF v_job.unique_key IS NOT NULL THEN
        PERFORM {schema}.release_unique_keys(ARRAY[p_job_id], v_job.lane_id, ARRAY[v_lane_seq], 'cancelled');
    END IF;
    RETURN true;
END
$function$;
COMMENT ON FUNCTION {schema}.cancel_deferred(bigint) IS 'Cancel a job whose time has not come; false when there is none.';

CREATE FUNCTION {schema}.cancel_waiting(p_body {schema}.ready_entries) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    INSERT INTO {schema}.ready_tombstones (ready_slot, lane_id, enqueue_xid, lane_seq, job_id)
    VALUES (p_body.ready_slot, p_body.lane_id, p_body.enqueue_xid, p_body.lane_seq, p_body.job_id);
    INSERT INTO {schema}.done_entries
           (ready_slot, ready_generation, lane_id, lane_seq, job_id, finalized_at, state, attempt, max_attempts, kind, args,
            run_at, created_at, unique_key, unique_states)
    VALUES (p_body.ready_slot, p_body.ready_generation, p_body.lane_id, p_body.lane_seq, p_body.job_id, clock_timestamp(),
            'cancelled', p_body.attempt, p_body.max_attempts, p_body.kind, p_body.args, p_body.run_at, p_body.created_at,
            p_body.unique_key, p_body.unique_states);
    PERFORM {schema}.add_count_delta(
        p_body.ready_slot, p_body.ready_generation, p_body.lane_id, p_body.job_id, 'available', -1);
    PERFORM {schema}.add_count_delta(
        p_body.ready_slot, p_body.ready_generation, p_body.lane_id, p_body.job_id, 'cancelled', 1);
    IF p_body.unique_key IS NOT NULL THEN
        PERFORM {schema}.release_unique_keys(ARRAY[p_body.job_id], p_body.lane_id, ARRAY[p_body.lane_seq], 'cancelled');
    END IF;
END
$function$;
COMMENT ON FUNCTION {schema}.cancel_waiting({schema}.ready_entries) IS
    'Cancel a job that no claim has taken. The lane is locked by the caller.';

CREATE FUNCTION {schema}.cancel_running(p_body {schema}.ready_entries) RETURNS boolean
LANGUAGE plpgsql AS $function$
DECLARE
    v_slot  integer;
    v_claim record;
    v_held  record;
BEGIN
    FOR v_slot IN
        SELECT slot FROM {schema}.claim_ring_slots WHERE generation IS NOT NULL ORDER BY generation DESC
    LOOP
        -- Newest first: a job that runs is in one of the last batches of its lane.
        EXECUTE format('SELECT claim_slot, run_lease, array_position(job_ids, $3) AS ordinal
                          FROM {schema}.lease_claim_batches_%s
                         WHERE ready_slot = $1 AND lane_id = $2 AND $3 = ANY (job_ids)
                         ORDER BY run_lease DESC
                         LIMIT 1', v_slot)
           INTO v_claim USING p_body.ready_slot, p_body.lane_id, p_body.job_id;
        EXIT WHEN v_claim.run_lease IS NOT NULL;
    END LOOP;
    IF v_claim.run_lease IS NULL THEN
        RETURN false;
    END IF;
    SELECT * INTO v_held FROM {schema}.hold_claims(
        v_claim.claim_slot, v_claim.run_lease, ARRAY[v_claim.ordinal], ARRAY[p_body.job_id]);
    IF cardinality(v_held.ordinals) = 0 THEN
        RETURN false;
    END IF;
    PERFORM {schema}.close_claims(v_held.batch, v_held.ordinals, 'cancelled', NULL);
    RETURN true;
END
$function$;
COMMENT ON FUNCTION {schema}.cancel_running({schema}.ready_entries) IS
    'Close the claim of a job as cancelled; false when its claim is closed already.';

CREATE FUNCTION {schema}.cancel_job(p_job_id bigint) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_body     {schema}.ready_entries;
    v_seen_seq bigint := 0;
BEGIN
    PERFORM {schema}.require_read_committed();
    IF {schema}.queue_was_restored() THEN
        PERFORM {schema}.rebase_claims();
    END IF;
    LOOP
        IF {schema}.cancel_deferred(p_job_id) THEN
            RETURN true;
        END IF;

        v_body := {schema}.find_body(p_job_id);
        -- No body: there never was such a job, or it ended so long ago. The same one again: it has not moved on, so it ended.
        IF v_body.lane_seq IS NULL OR v_body.lane_seq = v_seen_seq OR {schema}.has_ended(v_body) THEN
            RETURN false;
        END IF;
        v_seen_seq := v_body.lane_seq;

        -- A claim never goes back, so a job that is not waiting needs no lock to be sure of it.
        IF {schema}.is_waiting(v_body) THEN
            PERFORM {schema}.lock_lane(v_body.lane_id);
            IF {schema}.is_waiting(v_body) THEN
                PERFORM {schema}.cancel_waiting(v_body);
                RETURN true;
            END IF;
        END IF;
        IF {schema}.cancel_running(v_body) THEN
            RETURN true;
        END IF;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION {schema}.cancel_job(bigint) IS
    'Cancel a job that is deferred, waiting or running. False when there is none, or it has ended.';
