-- Enqueue: one call, one round trip, no lock that another producer could wait for.
--
-- It may run inside a transaction of the application that stays open for hours. So it takes no row lock, reads the ring
-- without one, and inserts nothing under a unique index but a unique key that the caller asked for.

CREATE FUNCTION {schema}.add_count_delta(
    p_slot integer, p_generation bigint, p_lane_id integer, p_job_id bigint, p_state {schema}.job_state, p_delta bigint)
RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    -- One row for a whole batch: the bucket spreads batches, and only sums are ever read.
    INSERT INTO {schema}.queue_terminal_count_deltas (ready_slot, ready_generation, lane_id, state, bucket, delta)
    VALUES (p_slot, p_generation, p_lane_id, p_state, p_job_id % 64, p_delta);
END
$function$;
COMMENT ON FUNCTION {schema}.add_count_delta(integer, bigint, integer, bigint, {schema}.job_state, bigint) IS
    'Append to the ledger of counts that a batch, whose first job is given, entered or left a state.';

CREATE FUNCTION {schema}.lane_of(p_queue text, p_priority smallint) RETURNS integer
LANGUAGE plpgsql AS $function$
DECLARE
    v_lane_id integer;
BEGIN
    -- Producers who made the same lane at once each have a row of it. All that come later use the newest one they see,
    -- and claims empty the lanes of a priority from the oldest on: a row that few have used is done with, never starved.
    SELECT lane_id INTO v_lane_id
      FROM {schema}.queue_lanes
     WHERE queue = p_queue AND priority = p_priority AND enqueue_shard = 0
     ORDER BY lane_id DESC
     LIMIT 1;
    IF v_lane_id IS NULL THEN
        INSERT INTO {schema}.queue_lanes (queue, priority) VALUES (p_queue, p_priority) RETURNING lane_id INTO v_lane_id;
    END IF;
    RETURN v_lane_id;
END
$function$;
COMMENT ON FUNCTION {schema}.lane_of(text, smallint) IS 'The lane for new jobs of a queue and priority, made if missing.';

CREATE FUNCTION {schema}.take_unique_key(p_key bytea, p_job_id bigint, p_states {schema}.job_state[]) RETURNS bigint
LANGUAGE plpgsql AS $function$
DECLARE
    v_held {schema}.job_unique_claims;
BEGIN
    LOOP
        -- This waits while the transaction that took the key, or lets go of it, is open: only its end decides.
        INSERT INTO {schema}.job_unique_claims (unique_key, job_id, unique_states) VALUES (p_key, p_job_id, p_states)
        ON CONFLICT (unique_key) DO NOTHING;
        IF FOUND THEN
            RETURN p_job_id;
        END IF;

        SELECT * INTO v_held FROM {schema}.job_unique_claims WHERE unique_key = p_key;
        CONTINUE WHEN NOT FOUND;  -- released since

        -- A job that has not ended holds its key. One that ended and keeps it, does so for as long as its terminal row
        -- is there; prune drops rows a million at a time and leaves their keys to whoever asks next.
        IF v_held.job_id <> p_job_id AND (v_held.done_lane_seq IS NULL OR EXISTS (
               SELECT FROM {schema}.queue_ring_slots AS slot
                CROSS JOIN LATERAL (
                      SELECT FROM {schema}.done_entries AS done
                       WHERE done.ready_slot = slot.slot
                         AND done.lane_id = v_held.done_lane_id AND done.lane_seq = v_held.done_lane_seq
                       LIMIT 1) AS found)) THEN
            RETURN v_held.job_id;
        END IF;
        UPDATE {schema}.job_unique_claims
           SET job_id = p_job_id, unique_states = p_states, done_lane_id = NULL, done_lane_seq = NULL
         WHERE unique_key = p_key AND job_id = v_held.job_id;
        IF FOUND THEN
            RETURN p_job_id;
        END IF;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION {schema}.take_unique_key(bytea, bigint, {schema}.job_state[]) IS
    'Take a unique key for a job. The answer is the job that holds it now: the one given, or another.';

CREATE FUNCTION {schema}.release_unique_keys(
    p_job_ids bigint[], p_lane_id integer, p_lane_seqs bigint[], p_state {schema}.job_state) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    DELETE FROM {schema}.job_unique_claims
     WHERE job_id = ANY (p_job_ids)
       AND p_state <> ALL (coalesce(unique_states, '{scheduled,available,running,retryable}'));
    IF p_state IN ('completed', 'failed', 'cancelled') THEN
        -- Who keeps the key beyond the end says where the end is recorded.
        UPDATE {schema}.job_unique_claims AS held
           SET done_lane_id = p_lane_id, done_lane_seq = ended.lane_seq
          FROM unnest(p_job_ids, p_lane_seqs) AS ended (job_id, lane_seq)
         WHERE held.job_id = ended.job_id;
    END IF;
END
$function$;
COMMENT ON FUNCTION {schema}.release_unique_keys(bigint[], integer, bigint[], {schema}.job_state) IS
    'Let go of the keys of jobs that enter a state in which they do not hold them.';

CREATE FUNCTION {schema}.enqueue_jobs(
    p_queue text, p_priority smallint, p_kind text, p_args jsonb, p_run_at timestamptz, p_max_attempts smallint,
    p_unique_key bytea, p_unique_states {schema}.job_state[],
    OUT job_ids bigint[], OUT holder_job_id bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_lane_id integer := {schema}.lane_of(p_queue, p_priority);
    v_job_id  bigint;
    v_ring    {schema}.queue_ring_state;
BEGIN
    IF p_unique_key IS NOT NULL THEN
        v_job_id := nextval('{schema}.job_id_seq');
        holder_job_id := {schema}.take_unique_key(p_unique_key, v_job_id, p_unique_states);
        IF holder_job_id <> v_job_id THEN
            RETURN;
        END IF;
    END IF;

    IF p_run_at > clock_timestamp() THEN
        WITH added AS (
            INSERT INTO {schema}.deferred_jobs
                   (job_id, run_at, created_at, lane_id, state, attempt, max_attempts, kind, args, unique_key, unique_states)
            SELECT coalesce(v_job_id, nextval('{schema}.job_id_seq')), p_run_at, now(), v_lane_id, 'scheduled', 0,
                   p_max_attempts, p_kind, element, p_unique_key, p_unique_states
              FROM jsonb_array_elements(p_args) AS element
            RETURNING job_id)
        SELECT array_agg(job_id) INTO job_ids FROM added;
        RETURN;
    END IF;

    -- Without a lock: when the ring turns between this line and the next, the jobs stand in a slot that is sealed, where
    -- claims find them as well, and no prune can pass them over.
    SELECT * INTO STRICT v_ring FROM {schema}.queue_ring_state;
    WITH added AS (
        INSERT INTO {schema}.ready_entries
               (job_id, ready_generation, run_at, ready_slot, lane_id, max_attempts, kind, args, unique_key, unique_states)
        SELECT coalesce(v_job_id, nextval('{schema}.job_id_seq')), v_ring.generation, coalesce(p_run_at, now()),
               v_ring.current_slot, v_lane_id, p_max_attempts, p_kind, element, p_unique_key, p_unique_states
          FROM jsonb_array_elements(p_args) AS element
        RETURNING job_id)
    SELECT array_agg(job_id) INTO job_ids FROM added;
    PERFORM {schema}.add_count_delta(v_ring.current_slot, v_ring.generation, v_lane_id, job_ids[1], 'available',
                                     cardinality(job_ids));
END
$function$;
COMMENT ON FUNCTION {schema}.enqueue_jobs(text, smallint, text, jsonb, timestamptz, smallint, bytea, {schema}.job_state[]) IS
    'Add a job for each element of the array of arguments. job_ids in the same order; NULL when the unique key is held, '
    'by holder_job_id.';
