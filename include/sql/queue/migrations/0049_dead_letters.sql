-- Dead letters: a queue may keep its failed jobs apart, for as long as it likes.
--
-- A failed job stands in the ring and is carried for as long as its retention says, 35 days at most. A queue that wants to
-- keep them longer, or until a person has looked at each, has them moved out of the ring when they fail: to dlq_entries,
-- where nothing drops a job but a purge, and each one that is purged is counted for ever.
--
-- The table is small next to the history, so rows are deleted here one by one, and autovacuum stays on.

ALTER TYPE {schema}.job_state ADD VALUE 'dead_lettered';

ALTER TABLE {schema}.queue_settings
    ADD COLUMN dead_letter boolean NOT NULL DEFAULT false,
    ADD COLUMN dead_letter_retention_seconds bigint
        CONSTRAINT queue_settings_dead_letter_retention_chk CHECK (dead_letter_retention_seconds >= 0);
COMMENT ON COLUMN {schema}.queue_settings.dead_letter IS
    'Whether a job of this queue that fails for good becomes a dead letter instead of a failed job in the ring.';
COMMENT ON COLUMN {schema}.queue_settings.dead_letter_retention_seconds IS
    'How long a dead letter of this queue is kept; NULL means until somebody purges it.';

ALTER TABLE {schema}.queue_terminal_rollups
    ADD COLUMN purged_dead_letters bigint NOT NULL DEFAULT 0
        CONSTRAINT queue_terminal_rollups_purged_dead_letters_chk CHECK (purged_dead_letters >= 0);
COMMENT ON COLUMN {schema}.queue_terminal_rollups.purged_dead_letters IS
    'Dead letters of this queue that were purged. Never decreases.';

CREATE TABLE {schema}.dlq_entries (
    job_id        bigint      PRIMARY KEY,
    dead_at       timestamptz NOT NULL,
    run_at        timestamptz NOT NULL,
    created_at    timestamptz NOT NULL,
    attempted_at  timestamptz NOT NULL,
    lane_id       integer     NOT NULL,
    attempt       smallint    NOT NULL,
    max_attempts  smallint    NOT NULL,
    kind          text        NOT NULL,
    error         text,
    args          jsonb       NOT NULL,
    unique_key    bytea,
    unique_states {schema}.job_state[]
);
CREATE INDEX dlq_entries_dead_idx ON {schema}.dlq_entries (lane_id, dead_at, job_id);
-- What a customer may have written is not sampled into statistics, where it would outlive the row.
ALTER TABLE {schema}.dlq_entries
    ALTER COLUMN error SET STATISTICS 0,
    ALTER COLUMN args SET STATISTICS 0,
    ALTER COLUMN unique_key SET STATISTICS 0;
COMMENT ON TABLE {schema}.dlq_entries IS
    'Dead letters: jobs that have failed for good, of queues that keep them apart. Each row is complete in itself.';

-- A job outside of the ring has no slot. Its differences go to the ledger of the slot that is current at that moment, and
-- only the sum over all slots says how many there are. The table keeps this account itself, so that no path can forget it.
CREATE FUNCTION {schema}.count_outside() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog AS $function$
BEGIN
    INSERT INTO {schema}.queue_terminal_count_deltas (ready_slot, ready_generation, lane_id, state, bucket, delta)
    SELECT ring.current_slot, ring.generation, moved.lane_id, TG_ARGV[0]::{schema}.job_state, min(moved.job_id) % 64,
           CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE -count(*) END
      FROM {schema}.queue_ring_state AS ring, moved
     GROUP BY ring.current_slot, ring.generation, moved.lane_id;
    RETURN NULL;
END
$function$;
COMMENT ON FUNCTION {schema}.count_outside() IS
    'Append to the ledger of counts what a statement added to a table whose jobs are all in one state, or took out of it.';

CREATE TRIGGER dlq_entries_entered AFTER INSERT ON {schema}.dlq_entries
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_outside('dead_lettered');
CREATE TRIGGER dlq_entries_left AFTER DELETE ON {schema}.dlq_entries
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_outside('dead_lettered');

CREATE FUNCTION {schema}.keeps_dead_letters(p_lane_id integer) RETURNS boolean
LANGUAGE plpgsql STABLE AS $function$
BEGIN
    RETURN EXISTS (
        SELECT FROM {schema}.queue_lanes AS lane
          JOIN {schema}.queue_settings AS setting USING (queue)
         WHERE lane.lane_id = p_lane_id AND setting.dead_letter);
END
$function$;
COMMENT ON FUNCTION {schema}.keeps_dead_letters(integer) IS 'Whether what fails for good in this lane becomes a dead letter.';

CREATE FUNCTION {schema}.bury_jobs(p_jobs {schema}.wide_job[], p_at timestamptz) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    INSERT INTO {schema}.dlq_entries
           (job_id, dead_at, run_at, created_at, attempted_at, lane_id, attempt, max_attempts, kind, error, args, unique_key,
            unique_states)
    SELECT job_id, p_at, run_at, created_at, attempted_at, lane_id, attempt, max_attempts, kind, error, args, unique_key,
           unique_states
      FROM unnest(p_jobs);
END
$function$;
COMMENT ON FUNCTION {schema}.bury_jobs({schema}.wide_job[], timestamptz) IS 'Keep jobs that failed at a time as dead letters.';

-- As before, and a dead letter lets go of its key, or keeps it, as a failed job does. One that keeps it counts as one that
-- has not ended: its row is no terminal row, and nothing but a purge or a retry ends it.
CREATE OR REPLACE FUNCTION {schema}.release_unique_keys(
    p_job_ids bigint[], p_lane_id integer, p_lane_seqs bigint[], p_state {schema}.job_state) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    DELETE FROM {schema}.job_unique_claims
     WHERE job_id = ANY (p_job_ids)
       AND CASE p_state WHEN 'dead_lettered' THEN 'failed' ELSE p_state END
           <> ALL (coalesce(unique_states, '{scheduled,available,running,retryable}'));
    IF p_state IN ('completed', 'failed', 'cancelled') THEN
        -- Who keeps the key beyond the end says where the end is recorded.
        UPDATE {schema}.job_unique_claims AS held
           SET done_lane_id = p_lane_id, done_lane_seq = ended.lane_seq
          FROM unnest(p_job_ids, p_lane_seqs) AS ended (job_id, lane_seq)
         WHERE held.job_id = ended.job_id;
    END IF;
END
$function$;

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
    'End open claims of a batch, which hold_claims has locked: in a terminal state, as dead letters, as retryable, or '
    'scheduled until a time.';

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
    v_states := ARRAY(
        SELECT CASE WHEN p_terminal
                      OR coalesce(v_attempts[o], v_attempts[1]) >= coalesce(v_max_attempts[o], v_max_attempts[1])
                    THEN 'failed' ELSE 'retryable'
               END::{schema}.job_state
          FROM unnest(p_ordinals) AS o);
    IF 'failed' = ANY (v_states) AND {schema}.keeps_dead_letters(p_batch.lane_id) THEN
        v_states := array_replace(v_states, 'failed', 'dead_lettered');
    END IF;
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

-- Rescue tells dead letters from failed jobs: both functions answer more than before, which needs them made anew. Whoever
-- calls rescue_jobs asks for its columns by name.
-- squawk-ignore ban-drop-function
DROP FUNCTION {schema}.rescue_jobs(timestamptz, timestamptz, bigint, integer);
-- squawk-ignore ban-drop-function
DROP FUNCTION {schema}.rescue_batch(integer, bigint, timestamptz);

CREATE FUNCTION {schema}.rescue_batch(p_claim_slot integer, p_run_lease bigint, p_now timestamptz)
RETURNS {schema}.job_state[]
LANGUAGE plpgsql AS $function$
DECLARE
    c_error CONSTANT text := 'lease ran out: the worker neither ended the job nor extended its claim';
    v_batch   {schema}.lease_claim_batches;
    v_held    record;
    v_expired integer[];
    v_states  {schema}.job_state[] := '{}';
BEGIN
    -- Whoever has the batch ends or extends claims of it right now, and the next rescue sees what came of that.
    EXECUTE format('SELECT * FROM {schema}.lease_claim_batches_%1$s WHERE claim_slot = %1$s AND run_lease = $1
                       FOR UPDATE SKIP LOCKED', p_claim_slot)
       INTO v_batch USING p_run_lease;
    IF v_batch.run_lease IS NULL THEN
        RETURN v_states;
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
    END IF;
    DELETE FROM {schema}.leases
     WHERE run_lease = p_run_lease AND claim_slot = p_claim_slot AND lease_until <= p_now;
    RETURN v_states;
END
$function$;
COMMENT ON FUNCTION {schema}.rescue_batch(integer, bigint, timestamptz) IS
    'End the open claims of a batch whose lease and extensions have run out, as failures; nothing while another session '
    'has the batch. The answer has the new state of each.';

CREATE FUNCTION {schema}.rescue_jobs(
    p_now timestamptz, p_after_until timestamptz, p_after_lease bigint, p_limit integer,
    OUT rescued integer, OUT failed integer, OUT dead_lettered integer, OUT last_until timestamptz, OUT last_lease bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_expired {schema}.leases[];
    v_batch   record;
    v_states  {schema}.job_state[] := '{}';
BEGIN
    PERFORM {schema}.require_read_committed();
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
        v_states := v_states || {schema}.rescue_batch(v_batch.claim_slot, v_batch.run_lease, p_now);
    END LOOP;
    rescued := cardinality(array_positions(v_states, 'retryable'));
    failed := cardinality(array_positions(v_states, 'failed'));
    dead_lettered := cardinality(array_positions(v_states, 'dead_lettered'));
END
$function$;
COMMENT ON FUNCTION {schema}.rescue_jobs(timestamptz, timestamptz, bigint, integer) IS
    'Rescue what at most so many leases, in the order of their time and from a place on, have left open. The answer has '
    'the place to go on from, NULL when there is no more.';

CREATE FUNCTION {schema}.retry_dead_letters(
    p_job_ids bigint[], p_dead_ats timestamptz[], OUT retried bigint[], OUT conflicts bigint[])
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_letter {schema}.dlq_entries;
    v_ring   {schema}.queue_ring_state;
BEGIN
    retried := '{}';
    conflicts := '{}';
    -- Each is locked before its key is asked for, so that a key is taken only for a job that is ours to put back. One that
    -- was put back meanwhile and has died again is another letter: its time tells.
    FOR v_letter IN
        SELECT dead.*
          FROM unnest(p_job_ids, p_dead_ats) AS asked (job_id, dead_at)
         CROSS JOIN LATERAL (
               SELECT * FROM {schema}.dlq_entries AS letter
                WHERE letter.job_id = asked.job_id AND letter.dead_at = asked.dead_at
                LIMIT 1
                  FOR UPDATE) AS dead
    LOOP
        IF v_letter.unique_key IS NOT NULL
           AND 'available' = ANY (coalesce(v_letter.unique_states, '{scheduled,available,running,retryable}'))
           AND {schema}.take_unique_key(v_letter.unique_key, v_letter.job_id, v_letter.unique_states) <> v_letter.job_id THEN
            conflicts := conflicts || v_letter.job_id;
        ELSE
            retried := retried || v_letter.job_id;
        END IF;
    END LOOP;

    SELECT * INTO STRICT v_ring FROM {schema}.queue_ring_state;
    -- Attempts and clocks begin anew; the job keeps its id and its age.
    WITH removed AS (
        DELETE FROM {schema}.dlq_entries WHERE job_id = ANY (retried) RETURNING *
    ), returned AS (
        INSERT INTO {schema}.ready_entries
               (ready_slot, ready_generation, lane_id, job_id, created_at, max_attempts, kind, args, unique_key, unique_states)
        SELECT v_ring.current_slot, v_ring.generation, lane_id, job_id, created_at, max_attempts, kind, args, unique_key,
               unique_states
          FROM removed
         ORDER BY dead_at, job_id
        RETURNING lane_id, job_id
    )
    INSERT INTO {schema}.queue_terminal_count_deltas (ready_slot, ready_generation, lane_id, state, bucket, delta)
    SELECT v_ring.current_slot, v_ring.generation, lane_id, 'available', min(job_id) % 64, count(*)
      FROM returned
     GROUP BY lane_id;
END
$function$;
COMMENT ON FUNCTION {schema}.retry_dead_letters(bigint[], timestamptz[]) IS
    'Put dead letters, given by job and time of death, back as new jobs. Those whose key another job holds stay; those that '
    'are gone are in neither answer.';

CREATE FUNCTION {schema}.purge_dead_letters(p_queue text, p_older_seconds bigint, p_limit integer) RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_before timestamptz := clock_timestamp() - make_interval(secs => p_older_seconds);
    v_purged bigint[];
BEGIN
    -- What a retry has in hand is left to it.
    SELECT array_agg(due.job_id) INTO v_purged
      FROM (SELECT dead.job_id
              FROM {schema}.queue_lanes AS lane
             CROSS JOIN LATERAL (
                   SELECT job_id FROM {schema}.dlq_entries AS letter
                    WHERE letter.lane_id = lane.lane_id AND letter.dead_at <= v_before
                    ORDER BY letter.dead_at
                    LIMIT p_limit
                      FOR UPDATE SKIP LOCKED) AS dead
             WHERE lane.queue = p_queue
             LIMIT p_limit) AS due;
    IF v_purged IS NULL THEN
        RETURN 0;
    END IF;
    DELETE FROM {schema}.dlq_entries WHERE job_id = ANY (v_purged);
    DELETE FROM {schema}.job_unique_claims WHERE job_id = ANY (v_purged);
    INSERT INTO {schema}.queue_terminal_rollups AS rollup (queue, purged_dead_letters)
    VALUES (p_queue, cardinality(v_purged))
    ON CONFLICT (queue) DO UPDATE SET purged_dead_letters = rollup.purged_dead_letters + excluded.purged_dead_letters;
    RETURN cardinality(v_purged);
END
$function$;
COMMENT ON FUNCTION {schema}.purge_dead_letters(text, bigint, integer) IS
    'Delete at most so many dead letters of one queue that died so many seconds ago or more, and count them for ever. One '
    'queue, so that it locks one row of the rollups: a prune that locks several cannot be in its way, nor it in that one''s.';
