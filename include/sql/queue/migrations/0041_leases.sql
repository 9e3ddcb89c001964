-- Leases: prolonged by their worker, and taken back when they have run out.
--
-- A claim writes its lease on its batch and nowhere else, so that a job which ends in time, as nearly all do, costs
-- nothing more. Rescue passes each batch once: it goes on from where it stopped in each lane, and only a batch that is
-- still open then gets a row in leases, which has an index on the time. So a million batches that have ended are never
-- looked at again, and one that runs for a day is one row.
--
-- That a batch is passed once is safe because batches of one lane become visible in the order of run_lease: a claim draws
-- the number under the lane's lock and keeps that to its commit. No claim can commit behind the point that was passed.
--
-- Two things hold for a batch that was passed and has open claims: a row of leases says when its own lease ends until that
-- time has come, and another one so for each extension. Rows are deleted only by whoever has locked the batch.

CREATE TABLE {schema}.lease_ring_state (
    singleton    boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    current_slot integer NOT NULL,
    generation   bigint  NOT NULL,
    slot_count   integer NOT NULL CHECK (slot_count >= 4)
);
CREATE TABLE {schema}.lease_ring_slots (
    slot         integer PRIMARY KEY CHECK (slot >= 0),
    generation   bigint,
    opened_at    timestamptz,
    sealed_at    timestamptz,
    reclaimed_at timestamptz
);
COMMENT ON TABLE {schema}.lease_ring_slots IS 'Slots of the lease ring; generation is NULL until one is first opened.';

CREATE TABLE {schema}.leases (
    lease_until timestamptz NOT NULL,
    run_lease   bigint      NOT NULL,
    lease_slot  integer     NOT NULL,
    claim_slot  integer     NOT NULL,
    ordinals    integer[]
) PARTITION BY LIST (lease_slot);
CREATE INDEX leases_until_idx ON {schema}.leases (lease_until, run_lease);
CREATE INDEX leases_batch_idx ON {schema}.leases (run_lease);
COMMENT ON TABLE {schema}.leases IS
    'What rescue has to look at when its time has come: extensions of leases, and the leases of batches that were open '
    'when rescue first passed them.';
COMMENT ON COLUMN {schema}.leases.ordinals IS
    'Which jobs of the batch it is for, counted from 1; NULL means all of them.';

CREATE FUNCTION {schema}.make_lease_slot(p_slot integer) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    EXECUTE format('CREATE TABLE {schema}.leases_%1$s PARTITION OF {schema}.leases FOR VALUES IN (%1$s)', p_slot);
END
$function$;
COMMENT ON FUNCTION {schema}.make_lease_slot(integer) IS 'Make the child of one slot of the lease ring.';

INSERT INTO {schema}.lease_ring_state (current_slot, generation, slot_count) VALUES (0, 0, 8);
INSERT INTO {schema}.lease_ring_slots (slot, generation, opened_at)
SELECT slot, CASE WHEN slot = 0 THEN 0 END, CASE WHEN slot = 0 THEN clock_timestamp() END
  FROM generate_series(0, 7) AS slot;
SELECT {schema}.make_lease_slot(slot) FROM {schema}.lease_ring_slots ORDER BY slot;

CREATE TABLE {schema}.lease_watermarks (
    lane_id   integer PRIMARY KEY,
    run_lease bigint  NOT NULL
);
COMMENT ON TABLE {schema}.lease_watermarks IS
    'How far rescue has passed the batches of a lane: each one up to this run_lease has ended or had a row in leases.';

-- Claims are given as to complete_jobs.
CREATE FUNCTION {schema}.extend_jobs(
    p_claim_slots integer[], p_run_leases bigint[], p_sizes integer[], p_ordinals integer[], p_job_ids bigint[],
    p_lease_seconds double precision)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_held     record;
    v_first    integer := 1;
    v_extended integer := 0;
BEGIN
    PERFORM {schema}.require_read_committed();
    FOR i IN 1 .. cardinality(p_run_leases) LOOP
        SELECT * INTO v_held FROM {schema}.hold_claims(
            p_claim_slots[i], p_run_leases[i],
            p_ordinals[v_first : v_first + p_sizes[i] - 1], p_job_ids[v_first : v_first + p_sizes[i] - 1]);
        IF cardinality(v_held.ordinals) > 0 THEN
            INSERT INTO {schema}.leases (lease_slot, claim_slot, run_lease, lease_until, ordinals)
            SELECT current_slot, p_claim_slots[i], p_run_leases[i],
                   clock_timestamp() + make_interval(secs => p_lease_seconds),
                   CASE WHEN cardinality(v_held.ordinals) < (v_held.batch).job_count THEN v_held.ordinals END
              FROM {schema}.lease_ring_state;
            v_extended := v_extended + cardinality(v_held.ordinals);
        END IF;
        v_first := v_first + p_sizes[i];
    END LOOP;
    RETURN v_extended;
END
$function$;
COMMENT ON FUNCTION {schema}.extend_jobs(integer[], bigint[], integer[], integer[], bigint[], double precision) IS
    'Let claims last so long from now on, if that is longer than they do; the answer is how many were still open.';

CREATE FUNCTION {schema}.watch_leases(p_limit integer) RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_lane   record;
    v_passed integer;
    v_newest bigint;
    v_left   integer := p_limit;
BEGIN
    -- One at a time goes on from a watermark; what it passes is there for all.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('parkkeeper.watch_leases {schema}', 0)) THEN
        RETURN 0;
    END IF;
    FOR v_lane IN
        SELECT lane.lane_id, coalesce(mark.run_lease, 0) AS run_lease
          FROM {schema}.queue_lanes AS lane
          LEFT JOIN LATERAL (
                SELECT run_lease FROM {schema}.lease_watermarks AS stored WHERE stored.lane_id = lane.lane_id LIMIT 1) AS mark ON true
         ORDER BY lane.lane_id
    LOOP
        WITH passed AS (
            SELECT batch.*
              FROM {schema}.queue_ring_slots AS slot
             CROSS JOIN LATERAL (
                   SELECT claim_slot, run_lease, ready_slot, lease_until, job_count
                     FROM {schema}.lease_claim_batches AS claimed
                    WHERE claimed.ready_slot = slot.slot AND claimed.lane_id = v_lane.lane_id
                      AND claimed.run_lease > v_lane.run_lease
                    ORDER BY claimed.run_lease
                    LIMIT v_left) AS batch
             WHERE slot.generation IS NOT NULL
             ORDER BY batch.run_lease
             LIMIT v_left
        ), watched AS (
            INSERT INTO {schema}.leases (lease_slot, claim_slot, run_lease, lease_until)
            SELECT ring.current_slot, passed.claim_slot, passed.run_lease, passed.lease_until
              FROM passed, {schema}.lease_ring_state AS ring
             WHERE passed.job_count > (
                   SELECT coalesce(sum(closure.job_count), 0)
                     FROM {schema}.lease_claim_closures AS closure
                    WHERE closure.claim_slot = passed.claim_slot AND closure.ready_slot = passed.ready_slot
                      AND closure.run_lease = passed.run_lease)
        )
        SELECT count(*), max(run_lease) INTO v_passed, v_newest FROM passed;
        CONTINUE WHEN v_passed = 0;
        INSERT INTO {schema}.lease_watermarks (lane_id, run_lease) VALUES (v_lane.lane_id, v_newest)
        ON CONFLICT (lane_id) DO UPDATE SET run_lease = excluded.run_lease;
        v_left := v_left - v_passed;
        EXIT WHEN v_left = 0;
    END LOOP;
    RETURN p_limit - v_left;
END
$function$;
COMMENT ON FUNCTION {schema}.watch_leases(integer) IS
    'Pass at most so many batches that were claimed since, and keep an eye on those that are open; the answer is how many.';

CREATE FUNCTION {schema}.rescue_batch(p_claim_slot integer, p_run_lease bigint, p_now timestamptz, OUT rescued integer, OUT failed integer)
LANGUAGE plpgsql AS $function$
DECLARE
    c_error CONSTANT text := 'lease ran out: the worker neither ended the job nor extended its claim';
    v_batch        {schema}.lease_claim_batches;
    v_held         record;
    v_attempts     smallint[];
    v_max_attempts smallint[];
    v_expired      record;
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
    v_attempts := v_batch.attempts;
    v_max_attempts := v_batch.max_attempts;

    SELECT array_agg(claim.ordinal) FILTER (WHERE NOT claim.at_cap) AS retryable,
           array_agg(claim.ordinal) FILTER (WHERE claim.at_cap) AS failed
      INTO v_expired
      FROM (SELECT held.ordinal,
                   coalesce(v_attempts[held.ordinal], v_attempts[1])
                   >= coalesce(v_max_attempts[held.ordinal], v_max_attempts[1]) AS at_cap
              FROM unnest(v_held.ordinals) AS held (ordinal)
             WHERE v_batch.lease_until <= p_now
               AND NOT EXISTS (
                   SELECT FROM {schema}.leases AS lease
                    WHERE lease.run_lease = p_run_lease AND lease.claim_slot = p_claim_slot AND lease.lease_until > p_now
                      AND (lease.ordinals IS NULL OR held.ordinal = ANY (lease.ordinals)))) AS claim;
    IF v_expired.retryable IS NOT NULL THEN
        rescued := cardinality(v_expired.retryable);
        PERFORM {schema}.close_claims(v_batch, v_expired.retryable, 'retryable', array_fill(c_error, ARRAY[rescued]));
    END IF;
    IF v_expired.failed IS NOT NULL THEN
        failed := cardinality(v_expired.failed);
        PERFORM {schema}.close_claims(v_batch, v_expired.failed, 'failed', array_fill(c_error, ARRAY[failed]));
    END IF;
    DELETE FROM {schema}.leases
     WHERE run_lease = p_run_lease AND claim_slot = p_claim_slot AND lease_until <= p_now;
END
$function$;
COMMENT ON FUNCTION {schema}.rescue_batch(integer, bigint, timestamptz) IS
    'End the open claims of a batch whose lease and extensions have run out, as failures; nothing while another session '
    'has the batch.';

CREATE FUNCTION {schema}.rescue_jobs(
    p_now timestamptz, p_after_until timestamptz, p_after_lease bigint, p_limit integer,
    OUT rescued integer, OUT failed integer, OUT last_until timestamptz, OUT last_lease bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_expired {schema}.leases[];
    v_batch   record;
    v_ended   record;
BEGIN
    PERFORM {schema}.require_read_committed();
    rescued := 0;
    failed := 0;
    SELECT array_agg(due ORDER BY due.lease_until, due.run_lease) INTO v_expired
      FROM (SELECT * FROM {schema}.leases
             WHERE lease_until <= p_now AND (lease_until, run_lease) > (p_after_until, p_after_lease)
             ORDER BY lease_until, run_lease
             LIMIT p_limit) AS due;
    last_until := v_expired[cardinality(v_expired)].lease_until;
    last_lease := v_expired[cardinality(v_expired)].run_lease;
    FOR v_batch IN
        SELECT DISTINCT run_lease, claim_slot FROM unnest(v_expired) ORDER BY run_lease
    LOOP
        SELECT * INTO v_ended FROM {schema}.rescue_batch(v_batch.claim_slot, v_batch.run_lease, p_now);
        rescued := rescued + v_ended.rescued;
        failed := failed + v_ended.failed;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION {schema}.rescue_jobs(timestamptz, timestamptz, bigint, integer) IS
    'Rescue what at most so many leases, in the order of their time and from a place on, have left open. The answer has '
    'the place to go on from, NULL when there is no more.';
