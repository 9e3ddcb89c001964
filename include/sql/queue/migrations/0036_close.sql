-- Close: complete, fail and cancel, all by one arbiter.
--
-- Two sessions may want to end the same claim at once, and differently. Each first locks the batch's row, and only in a
-- statement after that reads what became of the batch: so the second one sees what the first one committed, and a claim
-- ends once. Who closes several batches does it in the order of run_lease, so that two such sessions cannot deadlock.
--
-- Ends are appended (a closure, terminal rows, differences in the ledger); nothing is updated. A terminal row stands in
-- the slot of its body, though that slot be sealed: prune waits for the claims of a slot to be closed.

CREATE FUNCTION {schema}.hold_claims(
    p_claim_slot integer, p_run_lease bigint, p_ordinals integer[], p_job_ids bigint[],
    OUT batch {schema}.lease_claim_batches, OUT ordinals integer[])
LANGUAGE plpgsql AS $function$
DECLARE
    v_job_ids bigint[];
    v_whole   boolean;
    v_closed  integer[];
BEGIN
    ordinals := '{}';
    EXECUTE format('SELECT * FROM {schema}.lease_claim_batches_%1$s WHERE claim_slot = %1$s AND run_lease = $1 FOR UPDATE',
                   p_claim_slot)
       INTO batch USING p_run_lease;
    IF batch.run_lease IS NULL THEN
        RETURN;
    END IF;

    EXECUTE format('SELECT bool_or(closure.ordinals IS NULL), array_agg(closed.ordinal)
                      FROM {schema}.lease_claim_closures_%1$s AS closure
                      LEFT JOIN LATERAL unnest(closure.ordinals) AS closed (ordinal) ON true
                     WHERE closure.ready_slot = $1 AND closure.run_lease = $2', p_claim_slot)
       INTO v_whole, v_closed USING batch.ready_slot, p_run_lease;
    IF v_whole THEN
        RETURN;
    END IF;

    -- The job's id is compared as well: a claim of another namespace may have the same lease and place.
    v_job_ids := batch.job_ids;
    ordinals := ARRAY(
        SELECT asked.ordinal FROM unnest(p_ordinals, p_job_ids) AS asked (ordinal, job_id)
         WHERE v_job_ids[asked.ordinal] = asked.job_id
        EXCEPT
        SELECT unnest(v_closed));
END
$function$;
COMMENT ON FUNCTION {schema}.hold_claims(integer, bigint, integer[], bigint[]) IS
    'Lock a batch and tell which of the given claims, as places in it from 1, are still open. They stay so until the end of '
    'the transaction or the closure that it appends.';

CREATE FUNCTION {schema}.close_claims(
    p_batch {schema}.lease_claim_batches, p_ordinals integer[], p_state {schema}.job_state, p_errors text[])
RETURNS void
LANGUAGE plpgsql AS $function$
DECLARE
    v_now          timestamptz := clock_timestamp();
    v_count        integer := cardinality(p_ordinals);
    v_moved        integer;
    -- Variables of their own, since an array in one is unpacked once and not at each subscript.
    v_job_ids      bigint[] := p_batch.job_ids;
    v_lane_seqs    bigint[] := p_batch.lane_seqs;
    v_enqueue_xids xid8[] := p_batch.enqueue_xids;
    v_attempts     smallint[] := p_batch.attempts;
    v_kinds        text[] := p_batch.kinds;
BEGIN
    INSERT INTO {schema}.lease_claim_closures (claim_slot, run_lease, ready_slot, closed_at, job_count, outcome, ordinals)
    VALUES (p_batch.claim_slot, p_batch.run_lease, p_batch.ready_slot, v_now, v_count, p_state,
            CASE WHEN v_count < p_batch.job_count THEN p_ordinals END);

    IF p_state = 'retryable' THEN
        -- The body may be reclaimed before the job's time comes, so the deferred row is complete. LATERAL with a LIMIT
        -- cannot become a join of whole tables: a body costs a probe of the primary key.
        EXECUTE format($defer$
            INSERT INTO {schema}.deferred_jobs
                   (job_id, run_at, created_at, attempted_at, lane_id, state, attempt, max_attempts, kind, error, args,
                    unique_key, unique_states)
            SELECT body.job_id,
                   $5 + make_interval(secs => least(3600, 2 ^ least(failed.attempt - 1, 12)) * (0.9 + 0.2 * random())),
                   body.created_at, $6, body.lane_id, 'retryable', failed.attempt, body.max_attempts, body.kind, failed.error,
                   body.args, body.unique_key, body.unique_states
              FROM unnest($1, $2, $3, $4) AS failed (enqueue_xid, lane_seq, attempt, error)
             CROSS JOIN LATERAL (
                   SELECT * FROM {schema}.ready_entries_%1$s AS ready
                    WHERE ready.ready_slot = %1$s AND ready.lane_id = $7
                      AND ready.enqueue_xid = failed.enqueue_xid AND ready.lane_seq = failed.lane_seq
                    LIMIT 1) AS body
            $defer$, p_batch.ready_slot)
          USING ARRAY(SELECT coalesce(v_enqueue_xids[o], v_enqueue_xids[1]) FROM unnest(p_ordinals) AS o),
                ARRAY(SELECT v_lane_seqs[o] FROM unnest(p_ordinals) AS o),
                ARRAY(SELECT coalesce(v_attempts[o], v_attempts[1]) FROM unnest(p_ordinals) AS o),
                p_errors, v_now, p_batch.claimed_at, p_batch.lane_id;
    ELSE
        INSERT INTO {schema}.done_entries
               (ready_slot, ready_generation, lane_id, lane_seq, enqueue_xid, job_id, run_lease, attempted_at, finalized_at,
                state, attempt, kind, error)
        SELECT p_batch.ready_slot, p_batch.ready_generation, p_batch.lane_id, v_lane_seqs[ended.o],
               coalesce(v_enqueue_xids[ended.o], v_enqueue_xids[1]), v_job_ids[ended.o], p_batch.run_lease,
               p_batch.claimed_at, v_now, p_state, coalesce(v_attempts[ended.o], v_attempts[1]),
               coalesce(v_kinds[ended.o], v_kinds[1]), ended.error
          FROM unnest(p_ordinals, p_errors) AS ended (o, error);
    END IF;
    GET DIAGNOSTICS v_moved = ROW_COUNT;
    IF v_moved <> v_count THEN
        RAISE EXCEPTION 'run_lease %: % claims to close as %, % bodies found', p_batch.run_lease, v_count, p_state, v_moved
              USING ERRCODE = 'data_corrupted';
    END IF;

    PERFORM {schema}.add_count_delta(
        p_batch.ready_slot, p_batch.ready_generation, p_batch.lane_id, v_job_ids[p_ordinals[1]], 'running', -v_count);
    IF p_state <> 'retryable' THEN
        PERFORM {schema}.add_count_delta(
            p_batch.ready_slot, p_batch.ready_generation, p_batch.lane_id, v_job_ids[p_ordinals[1]], p_state, v_count);
    END IF;
    IF p_batch.has_unique_keys THEN
        PERFORM {schema}.release_unique_keys(
            ARRAY(SELECT v_job_ids[o] FROM unnest(p_ordinals) AS o), p_batch.lane_id,
            ARRAY(SELECT v_lane_seqs[o] FROM unnest(p_ordinals) AS o), p_state);
    END IF;
END
$function$;
COMMENT ON FUNCTION {schema}.close_claims({schema}.lease_claim_batches, integer[], {schema}.job_state, text[]) IS
    'End open claims of a batch, which hold_claims has locked: as retryable, or in a terminal state.';

-- Claims come as batches in ascending order of run_lease; batch i has the next p_sizes[i] elements of the arrays of claims.
CREATE FUNCTION {schema}.complete_jobs(
    p_claim_slots integer[], p_run_leases bigint[], p_sizes integer[], p_ordinals integer[], p_job_ids bigint[])
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_held      record;
    v_first     integer := 1;
    v_completed integer := 0;
BEGIN
    PERFORM {schema}.require_read_committed();
    FOR i IN 1 .. cardinality(p_run_leases) LOOP
        SELECT * INTO v_held FROM {schema}.hold_claims(
            p_claim_slots[i], p_run_leases[i],
            p_ordinals[v_first : v_first + p_sizes[i] - 1], p_job_ids[v_first : v_first + p_sizes[i] - 1]);
        IF cardinality(v_held.ordinals) > 0 THEN
            PERFORM {schema}.close_claims(v_held.batch, v_held.ordinals, 'completed', NULL);
            v_completed := v_completed + cardinality(v_held.ordinals);
        END IF;
        v_first := v_first + p_sizes[i];
    END LOOP;
    RETURN v_completed;
END
$function$;
COMMENT ON FUNCTION {schema}.complete_jobs(integer[], bigint[], integer[], integer[], bigint[]) IS
    'Complete claims; the answer is how many were still open.';

CREATE FUNCTION {schema}.fail_jobs(
    p_claim_slots integer[], p_run_leases bigint[], p_sizes integer[], p_ordinals integer[], p_job_ids bigint[],
    p_errors text[], p_terminal boolean)
RETURNS {schema}.job_state[]
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_held         record;
    v_sorted       record;
    v_attempts     smallint[];
    v_max_attempts smallint[];
    v_first        integer := 1;
    v_last         integer;
    v_states       {schema}.job_state[] := '{}';
BEGIN
    PERFORM {schema}.require_read_committed();
    FOR i IN 1 .. cardinality(p_run_leases) LOOP
        v_last := v_first + p_sizes[i] - 1;
        SELECT * INTO v_held FROM {schema}.hold_claims(
            p_claim_slots[i], p_run_leases[i], p_ordinals[v_first:v_last], p_job_ids[v_first:v_last]);
        v_attempts := (v_held.batch).attempts;
        v_max_attempts := (v_held.batch).max_attempts;
        SELECT array_agg(claim.state ORDER BY claim.position) AS states,
               array_agg(claim.ordinal) FILTER (WHERE claim.state = 'retryable') AS retryable,
               array_agg(claim.error) FILTER (WHERE claim.state = 'retryable') AS retryable_errors,
               array_agg(claim.ordinal) FILTER (WHERE claim.state = 'failed') AS failed,
               array_agg(claim.error) FILTER (WHERE claim.state = 'failed') AS failed_errors
          INTO v_sorted
          FROM (SELECT given.ordinal, given.error, given.position,
                       CASE WHEN given.ordinal <> ALL (v_held.ordinals) THEN NULL
                            WHEN p_terminal
                              OR coalesce(v_attempts[given.ordinal], v_attempts[1])
                                 >= coalesce(v_max_attempts[given.ordinal], v_max_attempts[1]) THEN 'failed'
                            ELSE 'retryable'
                       END::{schema}.job_state AS state
                  FROM unnest(p_ordinals[v_first:v_last], p_errors[v_first:v_last]) WITH ORDINALITY
                       AS given (ordinal, error, position)) AS claim;
        IF v_sorted.retryable IS NOT NULL THEN
            PERFORM {schema}.close_claims(v_held.batch, v_sorted.retryable, 'retryable', v_sorted.retryable_errors);
        END IF;
        IF v_sorted.failed IS NOT NULL THEN
            PERFORM {schema}.close_claims(v_held.batch, v_sorted.failed, 'failed', v_sorted.failed_errors);
        END IF;
        v_states := v_states || v_sorted.states;
        v_first := v_last + 1;
    END LOOP;
    RETURN v_states;
END
$function$;
COMMENT ON FUNCTION {schema}.fail_jobs(integer[], bigint[], integer[], integer[], bigint[], text[], boolean) IS
    'Record that attempts failed. The answer has the new state of each claim, NULL for one that was not open any more.';
