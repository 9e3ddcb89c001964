-- Snooze: a worker hands jobs back for later, and that spends no attempt.

CREATE FUNCTION {schema}.snooze_claims(p_batch {schema}.lease_claim_batches, p_ordinals integer[], p_until timestamptz)
RETURNS void
LANGUAGE plpgsql AS $function$
DECLARE
    v_count        integer := cardinality(p_ordinals);
    v_moved        integer;
    v_lane_seqs    bigint[] := p_batch.lane_seqs;
    v_enqueue_xids xid8[] := p_batch.enqueue_xids;
    v_attempts     smallint[] := p_batch.attempts;
BEGIN
    INSERT INTO {schema}.lease_claim_closures (claim_slot, run_lease, ready_slot, closed_at, job_count, outcome, ordinals)
    VALUES (p_batch.claim_slot, p_batch.run_lease, p_batch.ready_slot, clock_timestamp(), v_count, 'scheduled',
            CASE WHEN v_count < p_batch.job_count THEN p_ordinals END);

    -- Keys need no look: a job that has one holds it while it is scheduled.
    EXECUTE format($defer$
        INSERT INTO {schema}.deferred_jobs
               (job_id, run_at, created_at, attempted_at, lane_id, state, attempt, max_attempts, kind, args, unique_key,
                unique_states)
        SELECT body.job_id, $4, body.created_at, $5, body.lane_id, 'scheduled', snoozed.attempt - 1, body.max_attempts,
               body.kind, body.args, body.unique_key, body.unique_states
          FROM unnest($1, $2, $3) AS snoozed (enqueue_xid, lane_seq, attempt)
         CROSS JOIN LATERAL (
               SELECT * FROM {schema}.ready_entries_%1$s AS ready
                WHERE ready.ready_slot = %1$s AND ready.lane_id = $6
                  AND ready.enqueue_xid = snoozed.enqueue_xid AND ready.lane_seq = snoozed.lane_seq
                LIMIT 1) AS body
        $defer$, p_batch.ready_slot)
      USING ARRAY(SELECT coalesce(v_enqueue_xids[o], v_enqueue_xids[1]) FROM unnest(p_ordinals) AS o),
            ARRAY(SELECT v_lane_seqs[o] FROM unnest(p_ordinals) AS o),
            ARRAY(SELECT coalesce(v_attempts[o], v_attempts[1]) FROM unnest(p_ordinals) AS o),
            p_until, p_batch.claimed_at, p_batch.lane_id;
    GET DIAGNOSTICS v_moved = ROW_COUNT;
    IF v_moved <> v_count THEN
        RAISE EXCEPTION 'run_lease %: % claims to snooze, % bodies found', p_batch.run_lease, v_count, v_moved
              USING ERRCODE = 'data_corrupted';
    END IF;
    PERFORM {schema}.add_count_delta(
        p_batch.ready_slot, p_batch.ready_generation, p_batch.lane_id, p_batch.job_ids[p_ordinals[1]], 'running', -v_count);
END
$function$;
COMMENT ON FUNCTION {schema}.snooze_claims({schema}.lease_claim_batches, integer[], timestamptz) IS
    'Put open claims of a batch, which hold_claims has locked, off until a time; the attempt is given back.';

-- Claims are given as to complete_jobs.
CREATE FUNCTION {schema}.snooze_jobs(
    p_claim_slots integer[], p_run_leases bigint[], p_sizes integer[], p_ordinals integer[], p_job_ids bigint[],
    p_until timestamptz)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_held    record;
    v_first   integer := 1;
    v_snoozed integer := 0;
BEGIN
    PERFORM {schema}.require_read_committed();
    FOR i IN 1 .. cardinality(p_run_leases) LOOP
        SELECT * INTO v_held FROM {schema}.hold_claims(
            p_claim_slots[i], p_run_leases[i],
            p_ordinals[v_first : v_first + p_sizes[i] - 1], p_job_ids[v_first : v_first + p_sizes[i] - 1]);
        IF cardinality(v_held.ordinals) > 0 THEN
            PERFORM {schema}.snooze_claims(v_held.batch, v_held.ordinals, p_until);
            v_snoozed := v_snoozed + cardinality(v_held.ordinals);
        END IF;
        v_first := v_first + p_sizes[i];
    END LOOP;
    RETURN v_snoozed;
END
$function$;
COMMENT ON FUNCTION {schema}.snooze_jobs(integer[], bigint[], integer[], integer[], bigint[], timestamptz) IS
    'Put claims off until a time; the answer is how many were still open.';
