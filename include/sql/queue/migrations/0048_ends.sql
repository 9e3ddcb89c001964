-- One way through the claims that a worker hands in, and one way out of the ring for a body.
--
-- complete, fail, snooze and extend walk through batches in the same manner, and whatever keeps a job beyond its slot (a
-- wait for the next attempt, a snooze) takes its body along. Both are written once here: settle_claims is the walk, and a
-- wide_job is a body that stands alone, read from the ring by claimed_bodies and nothing else.

CREATE TYPE {schema}.wide_job AS (
    job_id        bigint,
    lane_seq      bigint,
    run_lease     bigint,
    attempted_at  timestamptz,
    run_at        timestamptz,
    created_at    timestamptz,
    lane_id       integer,
    attempt       smallint,
    max_attempts  smallint,
    kind          text,
    error         text,
    args          jsonb,
    unique_key    bytea,
    unique_states {schema}.job_state[]
);
COMMENT ON TYPE {schema}.wide_job IS
    'A job with all that is known of it, on its way out of the slot that its body stands in.';

CREATE FUNCTION {schema}.claimed_bodies(p_batch {schema}.lease_claim_batches, p_ordinals integer[], p_errors text[])
RETURNS {schema}.wide_job[]
LANGUAGE plpgsql AS $function$
DECLARE
    v_count        integer := cardinality(p_ordinals);
    v_lane_seqs    bigint[] := p_batch.lane_seqs;
    v_enqueue_xids xid8[] := p_batch.enqueue_xids;
    v_attempts     smallint[] := p_batch.attempts;
    v_jobs         {schema}.wide_job[];
BEGIN
    -- LATERAL with a LIMIT cannot become a join of whole tables: a body costs a probe of the primary key.
    EXECUTE format($bodies$
        SELECT array_agg((body.job_id, body.lane_seq, $5, $6, body.run_at, body.created_at, body.lane_id, claimed.attempt,
                          body.max_attempts, body.kind, claimed.error, body.args, body.unique_key,
                          body.unique_states)::{schema}.wide_job)
          FROM unnest($1, $2, $3, $4) AS claimed (enqueue_xid, lane_seq, attempt, error)
         CROSS JOIN LATERAL (
               SELECT * FROM {schema}.ready_entries_%1$s AS ready
                WHERE ready.ready_slot = %1$s AND ready.lane_id = $7
                  AND ready.enqueue_xid = claimed.enqueue_xid AND ready.lane_seq = claimed.lane_seq
                LIMIT 1) AS body
        $bodies$, p_batch.ready_slot)
       INTO v_jobs
      USING ARRAY(SELECT coalesce(v_enqueue_xids[o], v_enqueue_xids[1]) FROM unnest(p_ordinals) AS o),
            ARRAY(SELECT v_lane_seqs[o] FROM unnest(p_ordinals) AS o),
            ARRAY(SELECT coalesce(v_attempts[o], v_attempts[1]) FROM unnest(p_ordinals) AS o),
            p_errors, p_batch.run_lease, p_batch.claimed_at, p_batch.lane_id;
    IF cardinality(v_jobs) IS DISTINCT FROM v_count THEN
        RAISE EXCEPTION 'run_lease %: % claims to close, % bodies found', p_batch.run_lease, v_count,
                        coalesce(cardinality(v_jobs), 0)
              USING ERRCODE = 'data_corrupted';
    END IF;
    RETURN v_jobs;
END
$function$;
COMMENT ON FUNCTION {schema}.claimed_bodies({schema}.lease_claim_batches, integer[], text[]) IS
    'The jobs of claims of a batch, each with its error when errors are given; all of them, or an exception.';

CREATE FUNCTION {schema}.defer_jobs(p_jobs {schema}.wide_job[], p_state {schema}.job_state, p_at timestamptz) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    -- An attempt that failed is spent, and the next one waits longer; a snooze gives it back.
    INSERT INTO {schema}.deferred_jobs
           (job_id, run_at, created_at, attempted_at, lane_id, state, attempt, max_attempts, kind, error, args, unique_key,
            unique_states)
    SELECT job_id,
           CASE WHEN p_state = 'scheduled' THEN p_at
                ELSE p_at + make_interval(secs => least(3600, 2 ^ least(attempt - 1, 12)) * (0.9 + 0.2 * random()))
           END,
           created_at, attempted_at, lane_id, p_state,
           CASE WHEN p_state = 'scheduled' THEN attempt - 1 ELSE attempt END,
           max_attempts, kind, error, args, unique_key, unique_states
      FROM unnest(p_jobs);
END
$function$;
COMMENT ON FUNCTION {schema}.defer_jobs({schema}.wide_job[], {schema}.job_state, timestamptz) IS
    'Let jobs wait outside of the ring: scheduled until a time, or retryable, from a time on for as long as each one''s '
    'attempts say.';

CREATE FUNCTION {schema}.close_claims(
    p_batch {schema}.lease_claim_batches, p_ordinals integer[], p_state {schema}.job_state, p_errors text[],
    p_until timestamptz)
RETURNS void
LANGUAGE plpgsql AS $function$
DECLARE
    v_now          timestamptz := clock_timestamp();
    v_count        integer := cardinality(p_ordinals);
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
    PERFORM {schema}.add_count_delta(
        p_batch.ready_slot, p_batch.ready_generation, p_batch.lane_id, v_job_ids[p_ordinals[1]], 'running', -v_count);

    IF p_state IN ('retryable', 'scheduled') THEN
        -- The body may be reclaimed before the job's time comes, so it goes along.
        PERFORM {schema}.defer_jobs(
            {schema}.claimed_bodies(p_batch, p_ordinals, p_errors), p_state, coalesce(p_until, v_now));
    ELSE
        INSERT INTO {schema}.done_entries
               (ready_slot, ready_generation, lane_id, lane_seq, enqueue_xid, job_id, run_lease, attempted_at, finalized_at,
                state, attempt, kind, error)
        SELECT p_batch.ready_slot, p_batch.ready_generation, p_batch.lane_id, v_lane_seqs[ended.o],
               coalesce(v_enqueue_xids[ended.o], v_enqueue_xids[1]), v_job_ids[ended.o], p_batch.run_lease,
               p_batch.claimed_at, v_now, p_state, coalesce(v_attempts[ended.o], v_attempts[1]),
               coalesce(v_kinds[ended.o], v_kinds[1]), ended.error
          FROM unnest(p_ordinals, p_errors) AS ended (o, error);
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
COMMENT ON FUNCTION {schema}.close_claims({schema}.lease_claim_batches, integer[], {schema}.job_state, text[], timestamptz) IS
    'End open claims of a batch, which hold_claims has locked: in a terminal state, as retryable, or scheduled until a time.';

CREATE FUNCTION {schema}.fail_claims(
    p_batch {schema}.lease_claim_batches, p_ordinals integer[], p_errors text[], p_terminal boolean)
RETURNS {schema}.job_state[]
LANGUAGE plpgsql AS $function$
DECLARE
    v_attempts     smallint[] := p_batch.attempts;
    v_max_attempts smallint[] := p_batch.max_attempts;
    v_states       {schema}.job_state[];
    v_ended        record;
BEGIN
    v_states := ARRAY(
        SELECT CASE WHEN p_terminal
                      OR coalesce(v_attempts[o], v_attempts[1]) >= coalesce(v_max_attempts[o], v_max_attempts[1])
                    THEN 'failed' ELSE 'retryable'
               END::{schema}.job_state
          FROM unnest(p_ordinals) AS o);
    FOR v_ended IN
        SELECT failed.state, array_agg(failed.ordinal) AS ordinals, array_agg(failed.error) AS errors
          FROM unnest(p_ordinals, p_errors, v_states) AS failed (ordinal, error, state)
         GROUP BY failed.state
    LOOP
        PERFORM {schema}.close_claims(p_batch, v_ended.ordinals, v_ended.state, v_ended.errors, NULL);
    END LOOP;
    RETURN v_states;
END
$function$;
COMMENT ON FUNCTION {schema}.fail_claims({schema}.lease_claim_batches, integer[], text[], boolean) IS
    'End open claims of a batch, which hold_claims has locked, as failures; the answer has the new state of each.';

CREATE FUNCTION {schema}.extend_claims(p_batch {schema}.lease_claim_batches, p_ordinals integer[], p_until timestamptz)
RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    INSERT INTO {schema}.leases (lease_slot, claim_slot, run_lease, lease_until, ordinals)
    SELECT current_slot, p_batch.claim_slot, p_batch.run_lease, p_until,
           CASE WHEN cardinality(p_ordinals) < p_batch.job_count THEN p_ordinals END
      FROM {schema}.lease_ring_state;
END
$function$;
COMMENT ON FUNCTION {schema}.extend_claims({schema}.lease_claim_batches, integer[], timestamptz) IS
    'Let open claims of a batch, which hold_claims has locked, last until a time, if that is longer than they do.';

-- Claims come as batches in ascending order of run_lease; batch i has the next p_sizes[i] elements of the arrays of claims.
CREATE FUNCTION {schema}.settle_claims(
    p_claim_slots integer[], p_run_leases bigint[], p_sizes integer[], p_ordinals integer[], p_job_ids bigint[],
    p_state {schema}.job_state, p_errors text[], p_at timestamptz,
    OUT settled integer, OUT states {schema}.job_state[])
LANGUAGE plpgsql AS $function$
DECLARE
    v_held   record;
    v_first  integer := 1;
    v_last   integer;
    v_open   integer[];
    v_errors text[];
    v_places integer[];
    v_ended  {schema}.job_state[];
BEGIN
    PERFORM {schema}.require_read_committed();
    settled := 0;
    IF p_errors IS NOT NULL THEN
        states := array_fill(NULL::{schema}.job_state, ARRAY[cardinality(p_ordinals)]);
    END IF;
    FOR i IN 1 .. cardinality(p_run_leases) LOOP
        v_last := v_first + p_sizes[i] - 1;
        SELECT * INTO v_held FROM {schema}.hold_claims(
            p_claim_slots[i], p_run_leases[i], p_ordinals[v_first:v_last], p_job_ids[v_first:v_last]);
        settled := settled + cardinality(v_held.ordinals);
        IF v_held.ordinals = '{}' THEN
            NULL;
        ELSIF p_state = 'running' THEN
            PERFORM {schema}.extend_claims(v_held.batch, v_held.ordinals, p_at);
        ELSIF p_errors IS NULL THEN
            PERFORM {schema}.close_claims(v_held.batch, v_held.ordinals, p_state, NULL, p_at);
        ELSE
            SELECT array_agg(given.ordinal), array_agg(given.error), array_agg(v_first + given.position - 1)
              INTO v_open, v_errors, v_places
              FROM unnest(p_ordinals[v_first:v_last], p_errors[v_first:v_last]) WITH ORDINALITY
                   AS given (ordinal, error, position)
             WHERE given.ordinal = ANY (v_held.ordinals);
            v_ended := {schema}.fail_claims(v_held.batch, v_open, v_errors, p_state = 'failed');
            FOR n IN 1 .. cardinality(v_ended) LOOP
                states[v_places[n]] := v_ended[n];
            END LOOP;
        END IF;
        v_first := v_last + 1;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION {schema}.settle_claims(
    integer[], bigint[], integer[], integer[], bigint[], {schema}.job_state, text[], timestamptz) IS
    'Bring claims into a state, in one walk over their batches: running extends them until a time, scheduled snoozes them '
    'until one; with errors they fail, for good if the state is failed. settled counts those that were open; states has, '
    'of claims that fail, the state of each, NULL for one that was not open any more.';

CREATE OR REPLACE FUNCTION {schema}.complete_jobs(
    p_claim_slots integer[], p_run_leases bigint[], p_sizes integer[], p_ordinals integer[], p_job_ids bigint[])
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
BEGIN
    RETURN (SELECT settled FROM {schema}.settle_claims(
        p_claim_slots, p_run_leases, p_sizes, p_ordinals, p_job_ids, 'completed', NULL, NULL));
END
$function$;

CREATE OR REPLACE FUNCTION {schema}.fail_jobs(
    p_claim_slots integer[], p_run_leases bigint[], p_sizes integer[], p_ordinals integer[], p_job_ids bigint[],
    p_errors text[], p_terminal boolean)
RETURNS {schema}.job_state[]
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
BEGIN
    RETURN (SELECT states FROM {schema}.settle_claims(
        p_claim_slots, p_run_leases, p_sizes, p_ordinals, p_job_ids,
        CASE WHEN p_terminal THEN 'failed' ELSE 'retryable' END::{schema}.job_state, p_errors, NULL));
END
$function$;

CREATE OR REPLACE FUNCTION {schema}.snooze_jobs(
    p_claim_slots integer[], p_run_leases bigint[], p_sizes integer[], p_ordinals integer[], p_job_ids bigint[],
    p_until timestamptz)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
BEGIN
    RETURN (SELECT settled FROM {schema}.settle_claims(
        p_claim_slots, p_run_leases, p_sizes, p_ordinals, p_job_ids, 'scheduled', NULL, p_until));
END
$function$;

CREATE OR REPLACE FUNCTION {schema}.extend_jobs(
    p_claim_slots integer[], p_run_leases bigint[], p_sizes integer[], p_ordinals integer[], p_job_ids bigint[],
    p_lease_seconds double precision)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
BEGIN
    RETURN (SELECT settled FROM {schema}.settle_claims(
        p_claim_slots, p_run_leases, p_sizes, p_ordinals, p_job_ids, 'running', NULL,
        clock_timestamp() + make_interval(secs => p_lease_seconds)));
END
$function$;

CREATE OR REPLACE FUNCTION {schema}.cancel_running(p_body {schema}.ready_entries) RETURNS boolean
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
    PERFORM {schema}.close_claims(v_held.batch, v_held.ordinals, 'cancelled', NULL, NULL);
    RETURN true;
END
$function$;

CREATE OR REPLACE FUNCTION {schema}.rescue_batch(
    p_claim_slot integer, p_run_lease bigint, p_now timestamptz, OUT rescued integer, OUT failed integer)
LANGUAGE plpgsql AS $function$
DECLARE
    c_error CONSTANT text := 'lease ran out: the worker neither ended the job nor extended its claim';
    v_batch   {schema}.lease_claim_batches;
    v_held    record;
    v_expired integer[];
    v_states  {schema}.job_state[];
BEGIN
    rescued := 0;
    failed := 0;
    -- Whoever has the batch ends or extends claims of it right now, and the next rescue sees what came of that.
    EXECUTE format('SELECT * FROM {schema}.lease_claim_batches_%1$s WHERE claim_slot = %1$s AND run_lease = $1
                       FOR UPDATE SKIP LOCKED', p_claim_slot)
       INTO v_batch USING p_run_lease;
    IF v_batch.run_lease IS NULL THEN
        RETURN;
    END IF;
    SELECT * INTO v_held FROM {schema}.hold_claims(
        p_claim_slot, p_run_lease, ARRAY(SELECT generate_series(1, v_batch.job_count)), v_batch.job_ids);
    v_expired := ARRAY(
        SELECT held.ordinal
          FROM unnest(v_held.ordinals) AS held (ordinal)
         WHERE v_batch.lease_until <= p_now
           AND NOT EXISTS (
               SELECT FROM {schema}.leases AS lease
                WHERE lease.run_lease = p_run_lease AND lease.claim_slot = p_claim_slot AND lease.lease_until > p_now
                  AND (lease.ordinals IS NULL OR held.ordinal = ANY (lease.ordinals))));
    IF v_expired <> '{}' THEN
        v_states := {schema}.fail_claims(v_batch, v_expired, array_fill(c_error, ARRAY[cardinality(v_expired)]), false);
        rescued := cardinality(array_positions(v_states, 'retryable'));
        failed := cardinality(v_states) - rescued;
    END IF;
    DELETE FROM {schema}.leases
     WHERE run_lease = p_run_lease AND claim_slot = p_claim_slot AND lease_until <= p_now;
END
$function$;

-- What these did is done by those above, and only those called them.
-- squawk-ignore ban-drop-function
DROP FUNCTION {schema}.snooze_claims({schema}.lease_claim_batches, integer[], timestamptz);
-- squawk-ignore ban-drop-function
DROP FUNCTION {schema}.close_claims({schema}.lease_claim_batches, integer[], {schema}.job_state, text[]);
