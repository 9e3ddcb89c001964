-- Jobs that run for longer than a lap of the ring.
--
-- A claim that is open keeps its body's slot, and its own slot of the claim ring, from being pruned. A job that runs for hours
-- would hold up the ring for hours. So maintenance can move it out: its body, the identity of its claim and its lease become
-- a row of running_evacuated, and the claim is closed as running (elsewhere). Then sums of claims and closures are equal
-- again, nothing needs the slot, and the job goes on as if nothing had happened: complete, fail, snooze, extend, cancel and
-- rescue look into that table when a claim is not open where it was made.
--
-- It goes out by the arbiter, like any end of a claim, so that who ends a claim finds it in one place or the other. Each job is
-- written once when it goes out and once at its end, however many laps it runs.

CREATE TABLE {schema}.running_evacuated (
    job_id        bigint      PRIMARY KEY,
    run_lease     bigint      NOT NULL,
    lane_seq      bigint      NOT NULL,
    lease_until   timestamptz NOT NULL,
    attempted_at  timestamptz NOT NULL,
    run_at        timestamptz NOT NULL,
    created_at    timestamptz NOT NULL,
    lane_id       integer     NOT NULL,
    attempt       smallint    NOT NULL,
    max_attempts  smallint    NOT NULL,
    kind          text        NOT NULL,
    args          jsonb       NOT NULL,
    unique_key    bytea,
    unique_states {schema}.job_state[]
);
CREATE INDEX running_evacuated_lease_idx ON {schema}.running_evacuated (lease_until);
-- What a customer may have written is not sampled into statistics, where it would outlive the row.
ALTER TABLE {schema}.running_evacuated
    ALTER COLUMN args SET STATISTICS 0,
    ALTER COLUMN unique_key SET STATISTICS 0;
COMMENT ON TABLE {schema}.running_evacuated IS
    'Jobs that run, whose claim (job_id, run_lease) is good, and whose slot was needed. Whoever has locked the row decides '
    'what becomes of the job.';

CREATE TRIGGER running_evacuated_entered AFTER INSERT ON {schema}.running_evacuated
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_outside('running');
CREATE TRIGGER running_evacuated_left AFTER DELETE ON {schema}.running_evacuated
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_outside('running');

CREATE FUNCTION {schema}.keep_running(p_batch {schema}.lease_claim_batches, p_ordinals integer[]) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    -- Bodies come in the order of the ordinals, so each stands beside its lease.
    INSERT INTO {schema}.running_evacuated
           (job_id, run_lease, lane_seq, lease_until, attempted_at, run_at, created_at, lane_id, attempt, max_attempts, kind,
            args, unique_key, unique_states)
    SELECT job_id, run_lease, lane_seq, lease_until, attempted_at, run_at, created_at, lane_id, attempt, max_attempts, kind,
           args, unique_key, unique_states
      FROM unnest({schema}.claimed_bodies(p_batch, p_ordinals, NULL),
                  ARRAY(SELECT greatest(p_batch.lease_until, (
                                   SELECT max(lease.lease_until)
                                     FROM {schema}.leases AS lease
                                    WHERE lease.run_lease = p_batch.run_lease AND lease.claim_slot = p_batch.claim_slot
                                      AND (lease.ordinals IS NULL OR claim.ordinal = ANY (lease.ordinals))))
                          FROM unnest(p_ordinals) AS claim (ordinal)))
           AS job (job_id, lane_seq, run_lease, attempted_at, run_at, created_at, lane_id, attempt, max_attempts, kind, error,
                   args, unique_key, unique_states, lease_until);
END
$function$;
COMMENT ON FUNCTION {schema}.keep_running({schema}.lease_claim_batches, integer[]) IS
    'Keep the jobs of claims of a batch outside of the ring, each with the last of its leases.';

CREATE FUNCTION {schema}.finish_jobs(p_jobs {schema}.wide_job[], p_state {schema}.job_state, p_at timestamptz) RETURNS void
LANGUAGE plpgsql AS $function$
DECLARE
    v_ring {schema}.queue_ring_state;
BEGIN
    SELECT * INTO STRICT v_ring FROM {schema}.queue_ring_state;
    INSERT INTO {schema}.done_entries
           (ready_slot, ready_generation, lane_id, lane_seq, job_id, run_lease, attempted_at, finalized_at, state, attempt,
            max_attempts, kind, error, args, run_at, created_at, unique_key, unique_states)
    SELECT v_ring.current_slot, v_ring.generation, lane_id, lane_seq, job_id, run_lease, attempted_at, p_at, p_state, attempt,
           max_attempts, kind, error, args, run_at, created_at, unique_key, unique_states
      FROM unnest(p_jobs);
    PERFORM {schema}.add_count_delta(
        v_ring.current_slot, v_ring.generation, p_jobs[1].lane_id, p_jobs[1].job_id, p_state, cardinality(p_jobs));
END
$function$;
COMMENT ON FUNCTION {schema}.finish_jobs({schema}.wide_job[], {schema}.job_state, timestamptz) IS
    'Give jobs of one lane that stand outside of the ring their terminal rows, wide ones in the current slot.';

-- As before, and claims can be closed as running.
CREATE OR REPLACE FUNCTION {schema}.close_claims(
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

    -- What leaves the ring takes its body along: the slot may be reclaimed at once.
    IF p_state IN ('retryable', 'scheduled') THEN
        PERFORM {schema}.defer_jobs(
            {schema}.claimed_bodies(p_batch, p_ordinals, p_errors), p_state, coalesce(p_until, v_now));
    ELSIF p_state = 'dead_lettered' THEN
        PERFORM {schema}.bury_jobs({schema}.claimed_bodies(p_batch, p_ordinals, p_errors), v_now);
    ELSIF p_state = 'running' THEN
        PERFORM {schema}.keep_running(p_batch, p_ordinals);
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
    'End open claims of a batch, which hold_claims has locked: in a terminal state, as dead letters, as retryable, scheduled '
    'until a time, or as running outside of the ring.';

CREATE FUNCTION {schema}.hold_evacuated(p_run_lease bigint, p_job_ids bigint[]) RETURNS {schema}.running_evacuated[]
LANGUAGE plpgsql AS $function$
BEGIN
    RETURN ARRAY(
        SELECT away FROM {schema}.running_evacuated AS away
         WHERE away.job_id = ANY (p_job_ids) AND away.run_lease = p_run_lease
         ORDER BY away.job_id
           FOR UPDATE);
END
$function$;
COMMENT ON FUNCTION {schema}.hold_evacuated(bigint, bigint[]) IS
    'Lock those claims of a batch that are open outside of the ring. To be asked after hold_claims: a job that was just moved '
    'is found here.';

CREATE FUNCTION {schema}.end_evacuated(
    p_jobs {schema}.running_evacuated[], p_state {schema}.job_state, p_errors text[], p_until timestamptz)
RETURNS void
LANGUAGE plpgsql AS $function$
DECLARE
    v_now     timestamptz := clock_timestamp();
    v_job_ids bigint[] := ARRAY(SELECT job_id FROM unnest(p_jobs));
    v_jobs    {schema}.wide_job[];
BEGIN
    SELECT array_agg((away.job_id, away.lane_seq, away.run_lease, away.attempted_at, away.run_at, away.created_at, away.lane_id,
                      away.attempt, away.max_attempts, away.kind, p_errors[away.place], away.args, away.unique_key,
                      away.unique_states)::{schema}.wide_job)
      INTO v_jobs
      FROM unnest(p_jobs) WITH ORDINALITY
           AS away (job_id, run_lease, lane_seq, lease_until, attempted_at, run_at, created_at, lane_id, attempt, max_attempts,
                    kind, args, unique_key, unique_states, place);
    DELETE FROM {schema}.running_evacuated WHERE job_id = ANY (v_job_ids);
    IF p_state IN ('retryable', 'scheduled') THEN
        PERFORM {schema}.defer_jobs(v_jobs, p_state, coalesce(p_until, v_now));
    ELSIF p_state = 'dead_lettered' THEN
        PERFORM {schema}.bury_jobs(v_jobs, v_now);
    ELSE
        PERFORM {schema}.finish_jobs(v_jobs, p_state, v_now);
    END IF;
    IF EXISTS (SELECT FROM unnest(v_jobs) AS job WHERE job.unique_key IS NOT NULL) THEN
        PERFORM {schema}.release_unique_keys(
            v_job_ids, v_jobs[1].lane_id, ARRAY(SELECT lane_seq FROM unnest(v_jobs)), p_state);
    END IF;
END
$function$;
COMMENT ON FUNCTION {schema}.end_evacuated({schema}.running_evacuated[], {schema}.job_state, text[], timestamptz) IS
    'Do for claims of one lane that are open outside of the ring, and locked, what close_claims does for those of a batch.';

CREATE FUNCTION {schema}.failed_states(p_lane_id integer, p_were_last boolean[]) RETURNS {schema}.job_state[]
LANGUAGE plpgsql AS $function$
DECLARE
    v_last {schema}.job_state := 'failed';
BEGIN
    IF true = ANY (p_were_last) AND {schema}.keeps_dead_letters(p_lane_id) THEN
        v_last := 'dead_lettered';
    END IF;
    RETURN ARRAY(SELECT CASE WHEN was_last THEN v_last ELSE 'retryable' END FROM unnest(p_were_last) AS was_last);
END
$function$;
COMMENT ON FUNCTION {schema}.failed_states(integer, boolean[]) IS
    'The states of jobs of a lane whose attempts have failed, each of which was the last one or not.';

CREATE OR REPLACE FUNCTION {schema}.fail_claims(
    p_batch {schema}.lease_claim_batches, p_ordinals integer[], p_errors text[], p_terminal boolean)
RETURNS {schema}.job_state[]
LANGUAGE plpgsql AS $function$
DECLARE
    v_attempts     smallint[] := p_batch.attempts;
    v_max_attempts smallint[] := p_batch.max_attempts;
    v_states       {schema}.job_state[];
    v_ended        record;
BEGIN
    v_states := {schema}.failed_states(p_batch.lane_id, ARRAY(
        SELECT p_terminal OR coalesce(v_attempts[o], v_attempts[1]) >= coalesce(v_max_attempts[o], v_max_attempts[1])
          FROM unnest(p_ordinals) AS o));
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

CREATE FUNCTION {schema}.fail_evacuated(p_jobs {schema}.running_evacuated[], p_errors text[], p_terminal boolean)
RETURNS {schema}.job_state[]
LANGUAGE plpgsql AS $function$
DECLARE
    v_states {schema}.job_state[];
BEGIN
    v_states := {schema}.failed_states(
        p_jobs[1].lane_id, ARRAY(SELECT p_terminal OR attempt >= max_attempts FROM unnest(p_jobs)));
    FOR i IN 1 .. cardinality(p_jobs) LOOP
        PERFORM {schema}.end_evacuated(p_jobs[i:i], v_states[i], p_errors[i:i], NULL);
    END LOOP;
    RETURN v_states;
END
$function$;
COMMENT ON FUNCTION {schema}.fail_evacuated({schema}.running_evacuated[], text[], boolean) IS
    'End claims of one lane that are open outside of the ring, and locked, as failures; the answer has the new state of each.';

CREATE OR REPLACE FUNCTION {schema}.settle_claims(
    p_claim_slots integer[], p_run_leases bigint[], p_sizes integer[], p_ordinals integer[], p_job_ids bigint[],
    p_state {schema}.job_state, p_errors text[], p_at timestamptz,
    OUT settled integer, OUT states {schema}.job_state[])
LANGUAGE plpgsql AS $function$
DECLARE
    v_held   record;
    v_away   {schema}.running_evacuated[];
    v_first  integer := 1;
    v_last   integer;
    v_asked  bigint[];
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

        -- A claim that is not open in its batch may be so outside of the ring.
        IF cardinality(v_held.ordinals) < p_sizes[i] THEN
            v_asked := p_job_ids[v_first:v_last];
            v_away := {schema}.hold_evacuated(p_run_leases[i], v_asked);
            settled := settled + cardinality(v_away);
            IF cardinality(v_away) = 0 THEN
                NULL;
            ELSIF p_state = 'running' THEN
                UPDATE {schema}.running_evacuated AS away
                   SET lease_until = p_at
                 WHERE away.job_id = ANY (ARRAY(SELECT job_id FROM unnest(v_away))) AND away.lease_until < p_at;
            ELSIF p_errors IS NULL THEN
                PERFORM {schema}.end_evacuated(v_away, p_state, NULL, p_at);
            ELSE
                v_places := ARRAY(SELECT v_first - 1 + array_position(v_asked, job_id) FROM unnest(v_away));
                v_ended := {schema}.fail_evacuated(
                    v_away, ARRAY(SELECT p_errors[place] FROM unnest(v_places) AS place), p_state = 'failed');
                FOR n IN 1 .. cardinality(v_ended) LOOP
                    states[v_places[n]] := v_ended[n];
                END LOOP;
            END IF;
        END IF;
        v_first := v_last + 1;
    END LOOP;
END
$function$;

CREATE FUNCTION {schema}.rescue_evacuated(
    p_now timestamptz, p_limit integer, OUT rescued integer, OUT failed integer, OUT dead_lettered integer)
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    c_error CONSTANT text := 'lease ran out: the worker neither ended the job nor extended its claim';
    v_expired {schema}.running_evacuated[];
    v_states  {schema}.job_state[] := '{}';
BEGIN
    PERFORM {schema}.require_read_committed();
    -- Whoever has a row ends or extends the claim right now, and the next rescue sees what came of that.
    v_expired := ARRAY(
        SELECT away FROM {schema}.running_evacuated AS away
         WHERE away.lease_until <= p_now
         ORDER BY away.lease_until
         LIMIT p_limit
           FOR UPDATE SKIP LOCKED);
    FOR i IN 1 .. cardinality(v_expired) LOOP
        v_states := v_states || {schema}.fail_evacuated(v_expired[i:i], ARRAY[c_error], false);
    END LOOP;
    rescued := cardinality(array_positions(v_states, 'retryable'));
    failed := cardinality(array_positions(v_states, 'failed'));
    dead_lettered := cardinality(array_positions(v_states, 'dead_lettered'));
END
$function$;
COMMENT ON FUNCTION {schema}.rescue_evacuated(timestamptz, integer) IS
    'Rescue at most so many jobs that run outside of the ring and whose lease has run out.';

CREATE FUNCTION {schema}.cancel_evacuated(p_job_id bigint) RETURNS boolean
LANGUAGE plpgsql AS $function$
DECLARE
    v_away {schema}.running_evacuated[] := ARRAY(
        SELECT away FROM {schema}.running_evacuated AS away WHERE away.job_id = p_job_id FOR UPDATE);
BEGIN
    IF cardinality(v_away) = 0 THEN
        RETURN false;
    END IF;
    PERFORM {schema}.end_evacuated(v_away, 'cancelled', NULL, NULL);
    RETURN true;
END
$function$;
COMMENT ON FUNCTION {schema}.cancel_evacuated(bigint) IS
    'Cancel a job that runs outside of the ring; false when there is none.';

-- A job moves one way: deferred to waiting, waiting to running, running to outside of the ring, and from each of the last two
-- to deferred again or to its end. So it is looked for in that order, the other way round where it can go from a place that
-- has been looked at to one that was looked at before; and again until it has been found in the same state twice.
CREATE OR REPLACE FUNCTION {schema}.cancel_job(p_job_id bigint) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_body     {schema}.ready_entries;
    v_seen_seq bigint := -1;
BEGIN
    PERFORM {schema}.require_read_committed();
    IF {schema}.queue_was_restored() THEN
        PERFORM {schema}.rebase_claims();
    END IF;
    LOOP
        IF {schema}.cancel_evacuated(p_job_id) OR {schema}.cancel_deferred(p_job_id) THEN
            RETURN true;
        END IF;

        v_body := {schema}.find_body(p_job_id);
        -- The same body again, or none again: the job has not moved on, so it has ended, or there never was one.
        IF coalesce(v_body.lane_seq, 0) = v_seen_seq THEN
            RETURN false;
        END IF;
        v_seen_seq := coalesce(v_body.lane_seq, 0);
        -- None for the first time: it may have gone out of the ring, and its slot with it, after the look outside.
        CONTINUE WHEN v_body.lane_seq IS NULL;
        IF {schema}.has_ended(v_body) THEN
            RETURN false;
        END IF;

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

CREATE FUNCTION {schema}.evacuate_running(p_slot integer, p_limit integer) RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_settled  bigint;
    v_claim    record;
    v_batch    {schema}.lease_claim_batches;
    v_held     record;
    v_ordinals integer[];
    v_left     integer := p_limit;
BEGIN
    PERFORM {schema}.require_read_committed();
    -- Jobs of the current slot have not run for long.
    SELECT slot.settled_batch_id INTO v_settled
      FROM {schema}.queue_ring_slots AS slot, {schema}.queue_ring_state AS ring
     WHERE slot.slot = p_slot AND slot.slot <> ring.current_slot;
    IF v_settled IS NULL THEN
        RETURN 0;
    END IF;
    FOR v_claim IN
        SELECT batch.claim_slot, batch.run_lease
          FROM {schema}.queue_lanes AS lane
         CROSS JOIN LATERAL (
               SELECT claimed.claim_slot, claimed.run_lease, claimed.job_count
                 FROM {schema}.lease_claim_batches AS claimed
                WHERE claimed.ready_slot = p_slot AND claimed.lane_id = lane.lane_id AND claimed.run_lease > v_settled
                ORDER BY claimed.run_lease) AS batch
         WHERE batch.job_count > (
               SELECT coalesce(sum(closure.job_count), 0)
                 FROM {schema}.lease_claim_closures AS closure
                WHERE closure.claim_slot = batch.claim_slot AND closure.ready_slot = p_slot
                  AND closure.run_lease = batch.run_lease)
    LOOP
        EXIT WHEN v_left <= 0;
        -- Whoever has the batch ends or extends claims of it right now; what is open after that is left to the next call.
        EXECUTE format('SELECT * FROM {schema}.lease_claim_batches_%1$s WHERE claim_slot = %1$s AND run_lease = $1
                           FOR UPDATE SKIP LOCKED', v_claim.claim_slot)
           INTO v_batch USING v_claim.run_lease;
        CONTINUE WHEN v_batch.run_lease IS NULL;
        SELECT * INTO v_held FROM {schema}.hold_claims(
            v_batch.claim_slot, v_batch.run_lease, ARRAY(SELECT generate_series(1, v_batch.job_count)), v_batch.job_ids);
        v_ordinals := v_held.ordinals[1:v_left];
        CONTINUE WHEN v_ordinals = '{}';
        PERFORM {schema}.close_claims(v_batch, v_ordinals, 'running', NULL, NULL);
        IF v_ordinals = v_held.ordinals THEN
            -- Nothing of the batch is open, so its leases are nothing to look at.
            DELETE FROM {schema}.leases WHERE run_lease = v_batch.run_lease AND claim_slot = v_batch.claim_slot;
        END IF;
        v_left := v_left - cardinality(v_ordinals);
    END LOOP;
    RETURN p_limit - v_left;
END
$function$;
COMMENT ON FUNCTION {schema}.evacuate_running(integer, integer) IS
    'Move at most so many jobs that run out of a sealed slot, so that it can be pruned; the answer is how many. Batches that '
    'another session has are left.';
