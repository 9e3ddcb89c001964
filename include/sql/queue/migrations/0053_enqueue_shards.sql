-- Enqueue shards: several lanes for one priority of a queue.
--
-- Claims of a lane follow one another, from the read to the end of the commit. A queue that many workers claim from can have
-- its producers spread their jobs over several lanes of each priority. A claim then takes from the lanes that nobody has,
-- beginning anywhere, and waits for the others only if it has not got enough. Within a shard jobs are claimed by age;
-- between shards that is only nearly so. With one shard, which is where every queue begins, nothing changes.
--
-- Claims that wait must not wait for one another. A lane is taken out of order only by a try, which waits for nobody; one
-- that is waited for comes, in the order of lanes, after all that the claim has of that priority. A lane in which nothing
-- was found is let go of at once.

ALTER TABLE {schema}.queue_settings
    ADD COLUMN enqueue_shards smallint NOT NULL DEFAULT 1
        CONSTRAINT queue_settings_enqueue_shards_chk CHECK (enqueue_shards BETWEEN 1 AND 64);
COMMENT ON COLUMN {schema}.queue_settings.enqueue_shards IS
    'Over how many lanes of each priority new jobs are spread. Lanes that are left over when it gets less are claimed from '
    'as before.';

CREATE OR REPLACE FUNCTION {schema}.lane_of(p_queue text, p_priority smallint) RETURNS integer
LANGUAGE plpgsql AS $function$
DECLARE
    v_shard   smallint := 0;
    v_shards  smallint;
    v_lane_id integer;
BEGIN
    SELECT enqueue_shards INTO v_shards FROM {schema}.queue_settings WHERE queue = p_queue;
    IF v_shards > 1 THEN
        v_shard := floor(random() * v_shards);
    END IF;
    -- Producers who made the same lane at once each have a row of it. All that come later use the newest one they see,
    -- and claims empty the lanes of a priority from the oldest on: a row that few have used is done with, never starved.
    SELECT lane_id INTO v_lane_id
      FROM {schema}.queue_lanes
     WHERE queue = p_queue AND priority = p_priority AND enqueue_shard = v_shard
     ORDER BY lane_id DESC
     LIMIT 1;
    IF v_lane_id IS NULL THEN
        INSERT INTO {schema}.queue_lanes (queue, priority, enqueue_shard) VALUES (p_queue, p_priority, v_shard)
        RETURNING lane_id INTO v_lane_id;
    END IF;
    RETURN v_lane_id;
END
$function$;

CREATE OR REPLACE FUNCTION {schema}.enqueue_jobs(
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
    PERFORM {schema}.wake_workers(p_queue);
END
$function$;

CREATE FUNCTION {schema}.try_claim_lane(
    p_lane_id integer, p_priority smallint, p_slots integer[], p_generations bigint[], p_claim_slot integer, p_limit integer,
    p_lease interval)
RETURNS {schema}.claimed_batch[]
LANGUAGE plpgsql AS $function$
DECLARE
    v_batches {schema}.claimed_batch[];
BEGIN
    IF NOT {schema}.try_lock_lane(p_lane_id) THEN
        RETURN NULL;
    END IF;
    v_batches := {schema}.claim_lane(
        p_lane_id, p_priority, p_slots, p_generations, p_claim_slot, p_limit, p_lease);
    IF v_batches = '{}' AND pg_current_xact_id_if_assigned() IS NULL THEN
        -- Nothing was found and nothing written: going back to before the lock gives it back, and nothing else.
        RAISE EXCEPTION USING ERRCODE = 'PK001';
    END IF;
    RETURN v_batches;
EXCEPTION
    WHEN SQLSTATE 'PK001' THEN
        RETURN '{}';
END
$function$;
COMMENT ON FUNCTION {schema}.try_claim_lane(
    integer, smallint, integer[], bigint[], integer, integer, interval) IS
    'As claim_lane, for a lane that is not locked; NULL when another session has it. The lane stays locked if anything was '
    'written, by this claim or earlier in its transaction.';

CREATE OR REPLACE FUNCTION {schema}.claim_jobs(p_queue text, p_limit integer, p_lease_seconds double precision)
RETURNS SETOF {schema}.claimed_batch
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_ring        {schema}.queue_ring_state;
    v_claim_slot  integer;
    v_slots       integer[];
    v_generations bigint[];
    v_level       record;
    v_lanes       integer[];
    v_start       integer;
    v_busy        integer[];
    v_last_held   integer;
    v_lane_id     integer;
    v_batches     {schema}.claimed_batch[];
    v_batch       {schema}.claimed_batch;
    v_left        integer := p_limit;
    v_lease       interval := make_interval(secs => p_lease_seconds);
BEGIN
    PERFORM {schema}.require_read_committed();
    IF EXISTS (SELECT FROM {schema}.queue_settings WHERE queue = p_queue AND paused_at IS NOT NULL) THEN
        RETURN;
    END IF;
    IF {schema}.queue_was_restored() THEN
        PERFORM {schema}.rebase_claims();
    END IF;
    SELECT * INTO STRICT v_ring FROM {schema}.queue_ring_state;
    SELECT current_slot INTO STRICT v_claim_slot FROM {schema}.claim_ring_state;
    -- What was enqueued first stands in the slot that was opened first. The current one may be filled by this claim.
    SELECT array_agg(slot ORDER BY generation), array_agg(generation ORDER BY generation) INTO v_slots, v_generations
      FROM {schema}.queue_ring_slots
     WHERE generation IS NOT NULL AND (slot = v_ring.current_slot OR {schema}.has_pages('ready_entries', slot));

    FOR v_level IN
        SELECT priority, array_agg(lane_id ORDER BY lane_id) AS lanes, min(enqueue_shard) < max(enqueue_shard) AS sharded
          FROM {schema}.queue_lanes
         WHERE queue = p_queue
         GROUP BY priority
         ORDER BY priority
    LOOP
        v_lanes := v_level.lanes;
        v_last_held := 0;
        IF v_level.sharded THEN
            -- Anywhere, so that no shard is always the last one.
            v_start := 1 + floor(random() * cardinality(v_lanes));
            v_busy := '{}';
            FOREACH v_lane_id IN ARRAY v_lanes[v_start:] || v_lanes[: v_start - 1] LOOP
                v_batches := {schema}.try_claim_lane(
                    v_lane_id, v_level.priority, v_slots, v_generations, v_claim_slot, v_left, v_lease);
                IF v_batches IS NULL THEN
                    v_busy := v_busy || v_lane_id;
                    CONTINUE;
                END IF;
                IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
                    v_last_held := greatest(v_last_held, v_lane_id);
                END IF;
                FOREACH v_batch IN ARRAY v_batches LOOP
                    RETURN NEXT v_batch;
                    v_left := v_left - cardinality(v_batch.job_ids);
                END LOOP;
                IF v_left = 0 THEN
                    RETURN;
                END IF;
            END LOOP;
            v_lanes := ARRAY(SELECT busy.lane_id FROM unnest(v_busy) AS busy (lane_id)
                              WHERE busy.lane_id > v_last_held ORDER BY busy.lane_id);
        END IF;

        FOREACH v_lane_id IN ARRAY v_lanes LOOP
            PERFORM {schema}.lock_lane(v_lane_id);
            FOREACH v_batch IN ARRAY {schema}.claim_lane(
                v_lane_id, v_level.priority, v_slots, v_generations, v_claim_slot, v_left, v_lease)
            LOOP
                RETURN NEXT v_batch;
                v_left := v_left - cardinality(v_batch.job_ids);
            END LOOP;
            IF v_left = 0 THEN
                RETURN;
            END IF;
        END LOOP;
    END LOOP;
END
$function$;
