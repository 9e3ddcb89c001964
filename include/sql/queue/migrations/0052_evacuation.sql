-- Evacuation: the last jobs that wait in a sealed slot move out, so that they do not keep it from being pruned.
--
-- A job that nobody claims, in a queue that is paused or has no worker, would pin its slot for as long as that lasts. With a
-- few such jobs in each slot the ring could not turn any more. So maintenance moves them to deferred_jobs, where they stay
-- `available`: they are counted and cancelled as before, hold their unique keys, and have spent no attempt. They come back
-- when a claim wants them and no sooner, so a job moves once out and once back however often the ring turns.
--
-- A move is done as a claim is: under the lane's lock, it reads what may be claimed and moves the cursor past that. It asks
-- for the lock and does not wait, since whoever has it claims these very jobs. A tombstone on each body says where the job
-- went. What a transaction commits later, which is still open when the cursor passes it, is on the late list as always: a
-- claim or the next evacuation finds it.

ALTER TABLE {schema}.deferred_jobs
    ADD COLUMN evacuated_generation bigint,
    ADD COLUMN evacuated_seq bigint;
COMMENT ON COLUMN {schema}.deferred_jobs.evacuated_generation IS
    'Of an evacuated job (state available): which opening of the ring its slot belonged to. Claims take what was evacuated '
    'from a slot before what waits in it, and after what waits in slots that were opened earlier.';
COMMENT ON COLUMN {schema}.deferred_jobs.evacuated_seq IS 'Of an evacuated job: its lane_seq in the ring, which is its age.';
COMMENT ON TABLE {schema}.deferred_jobs IS
    'Jobs outside of the ring: scheduled, retryable after a failure, or evacuated (available). They enter the ring when a '
    'claim takes them, the first two not before they are due.';

-- Evacuated jobs are long due. They would stand in front of all others in the index that claims look for due ones in, so
-- there are two. The lock that this takes keeps claims waiting for as long as it takes to read the deferred jobs.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX deferred_jobs_waiting_idx ON {schema}.deferred_jobs (lane_id, run_at, job_id) WHERE state <> 'available';
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX deferred_jobs_evacuated_idx ON {schema}.deferred_jobs (lane_id, evacuated_generation, evacuated_seq)
 WHERE state = 'available';
-- Nothing reads it but two functions that this migration replaces.
-- squawk-ignore require-concurrent-index-deletion
DROP INDEX IF EXISTS {schema}.deferred_jobs_due_idx;

CREATE FUNCTION {schema}.try_lock_lane(p_lane_id integer) RETURNS boolean
LANGUAGE plpgsql AS $function$
BEGIN
    -- The key of lock_lane.
    RETURN pg_try_advisory_xact_lock(hashtextextended('parkkeeper.lane {schema}', p_lane_id));
END
$function$;
COMMENT ON FUNCTION {schema}.try_lock_lane(integer) IS
    'Take the lane''s lock to the end of the transaction, unless another session has it.';

CREATE FUNCTION {schema}.take_ready(
    p_lane_id integer, p_slot integer, p_limit integer, p_cursor {schema}.lane_cursor,
    OUT taken {schema}.ready_rows, OUT moved {schema}.lane_cursor)
LANGUAGE plpgsql AS $function$
DECLARE
    v_snapshot pg_snapshot := pg_current_snapshot();
    v_own_xid  xid8 := pg_current_xact_id_if_assigned();
BEGIN
    EXECUTE format('SELECT * FROM {schema}.read_ready_%s($1, $2, $3, $4)', p_slot)
       INTO taken
      USING p_lane_id, {schema}.claimable_stretches(p_cursor, v_snapshot, v_own_xid), p_limit,
            {schema}.has_pages('ready_tombstones', p_slot);
    IF taken.row_count > 0 THEN
        moved := {schema}.moved_cursor(p_cursor, v_snapshot, v_own_xid, p_limit, taken.late_xids, taken.late_seqs,
                                       taken.last_xid, taken.last_seq, taken.highest_seq);
    END IF;
END
$function$;
COMMENT ON FUNCTION {schema}.take_ready(integer, integer, integer, {schema}.lane_cursor) IS
    'Read what a claim may have of a lane in a slot, beyond the given cursor, with the cursor behind it. The lane is locked '
    'by the caller.';

CREATE OR REPLACE FUNCTION {schema}.claim_from(
    p_lane_id integer, p_priority smallint, p_slot integer, p_generation bigint, p_claim_slot integer, p_limit integer,
    p_lease interval)
RETURNS {schema}.claimed_batch
LANGUAGE plpgsql AS $function$
DECLARE
    v_cursor      {schema}.lane_cursor := {schema}.read_cursor(p_slot, p_lane_id);
    v_read        record;
    v_rows        {schema}.ready_rows;
    v_batch       {schema}.claimed_batch;
    v_job_count   integer;
    v_run_lease   bigint;
    v_claimed_at  timestamptz;
BEGIN
    IF v_cursor.xid >= pg_snapshot_xmax(pg_current_snapshot()) THEN
        -- Only transactions that ended were taken from, so here this cannot be: the cursor is another cluster's, and the
        -- restore was not noticed.
        UPDATE {schema}.queue_ring_state SET table_oid = NULL;
        PERFORM {schema}.rebase_claims();
        v_cursor := {schema}.read_cursor(p_slot, p_lane_id);
    END IF;

    -- Once, as a rule. Again when all that was read had a tombstone: the cursor then moves past them with an empty batch.
    LOOP
        SELECT * INTO v_read FROM {schema}.take_ready(p_lane_id, p_slot, p_limit, v_cursor);
        v_rows := v_read.taken;
        IF v_rows.row_count = 0 THEN
            RETURN NULL;
        END IF;
        v_cursor := v_read.moved;

        -- The lease's number is drawn after the rows were read, under the lane's lock: the newest batch of a lane and
        -- slot has the highest, and a slot that is proven settled has no batch above the number that was last drawn.
        v_run_lease := nextval('{schema}.run_lease_seq');
        v_claimed_at := clock_timestamp();
        v_job_count := coalesce(cardinality(v_rows.job_ids), 0);
        v_batch := (p_priority, p_claim_slot, v_run_lease, v_claimed_at + p_lease, coalesce(v_rows.job_ids, '{}'),
                    coalesce({schema}.one_if_same(v_rows.attempts), '{}'),
                    coalesce({schema}.one_if_same(v_rows.max_attempts), '{}'),
                    coalesce({schema}.one_if_same(v_rows.kinds), '{}'), v_rows.args)::{schema}.claimed_batch;
        INSERT INTO {schema}.lease_claim_batches
               (claim_slot, run_lease, ready_slot, ready_generation, lane_id, claimed_at, lease_until, job_count,
                cursor_xid, cursor_seq, highest_seq, late_xids, late_seqs, has_unique_keys,
                job_ids, lane_seqs, enqueue_xids, attempts, max_attempts, kinds)
        VALUES (p_claim_slot, v_run_lease, p_slot, p_generation, p_lane_id, v_claimed_at, v_batch.lease_until, v_job_count,
                v_cursor.xid, v_cursor.seq, v_cursor.highest_seq, v_cursor.late_xids, v_cursor.late_seqs,
                v_rows.has_unique_keys, v_batch.job_ids, coalesce(v_rows.lane_seqs, '{}'),
                coalesce({schema}.one_if_same(v_rows.enqueue_xids), '{}'), v_batch.attempts, v_batch.max_attempts,
                v_batch.kinds);
        EXIT WHEN v_job_count > 0;
    END LOOP;

    PERFORM {schema}.add_count_delta(p_slot, p_generation, p_lane_id, v_rows.job_ids[1], 'available', -v_job_count);
    PERFORM {schema}.add_count_delta(p_slot, p_generation, p_lane_id, v_rows.job_ids[1], 'running', v_job_count);
    IF v_rows.has_unique_keys THEN
        PERFORM {schema}.release_unique_keys(v_rows.job_ids, p_lane_id, v_rows.lane_seqs, 'running');
    END IF;
    RETURN v_batch;
END
$function$;

CREATE FUNCTION {schema}.bring_in(p_job_ids bigint[], p_lane_id integer, p_slot integer, p_generation bigint) RETURNS void
LANGUAGE plpgsql AS $function$
DECLARE
    -- With the key of this transaction the jobs would wait for it to end, since a claim takes nothing of an open one.
    -- They stand just behind the cursor instead: nobody else can move it while the lane is locked, and their sequence is
    -- above any that was taken.
    v_xid xid8 := ({schema}.read_cursor(p_slot, p_lane_id)).xid;
BEGIN
    WITH moved AS (
        DELETE FROM {schema}.deferred_jobs WHERE job_id = ANY (p_job_ids) RETURNING *)
    INSERT INTO {schema}.ready_entries
           (enqueue_xid, job_id, ready_generation, run_at, created_at, ready_slot, lane_id, attempt, max_attempts, kind, args,
            unique_key, unique_states)
    SELECT v_xid, job_id, p_generation, run_at, created_at, p_slot, lane_id, attempt, max_attempts, kind, args,
           unique_key, unique_states
      FROM moved
     ORDER BY evacuated_generation, evacuated_seq, run_at, job_id;
    PERFORM {schema}.add_count_delta(p_slot, p_generation, p_lane_id, p_job_ids[1], 'available', cardinality(p_job_ids));
END
$function$;
COMMENT ON FUNCTION {schema}.bring_in(bigint[], integer, integer, bigint) IS
    'Bring jobs of a lane, which the caller has locked as well as the lane, from outside of the ring into the current slot.';

CREATE OR REPLACE FUNCTION {schema}.promote_due_jobs(p_lane_id integer, p_slot integer, p_generation bigint, p_limit integer)
RETURNS void
LANGUAGE plpgsql AS $function$
DECLARE
    v_now timestamptz := clock_timestamp();  -- a variable, since the index is no use to a volatile function
    v_due bigint[];
BEGIN
    SELECT array_agg(due.job_id) INTO v_due
      FROM (SELECT job_id FROM {schema}.deferred_jobs
             WHERE lane_id = p_lane_id AND run_at <= v_now AND state <> 'available'
             ORDER BY lane_id, run_at, job_id
             LIMIT p_limit
               FOR UPDATE SKIP LOCKED) AS due;
    IF v_due IS NOT NULL THEN
        PERFORM {schema}.bring_in(v_due, p_lane_id, p_slot, p_generation);
    END IF;
END
$function$;

CREATE OR REPLACE FUNCTION {schema}.next_due(p_queue text) RETURNS double precision
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_now timestamptz := clock_timestamp();  -- a variable, since the index is no use to a volatile function
BEGIN
    -- What is due already and was not claimed is held back by something else, such as a pause.
    RETURN (SELECT extract(epoch FROM min(due.run_at) - v_now)
              FROM {schema}.queue_lanes AS lane
             CROSS JOIN LATERAL (
                   SELECT run_at FROM {schema}.deferred_jobs AS job
                    WHERE job.lane_id = lane.lane_id AND job.run_at > v_now AND job.state <> 'available'
                    ORDER BY job.lane_id, job.run_at
                    LIMIT 1) AS due
             WHERE lane.queue = p_queue);
END
$function$;

CREATE FUNCTION {schema}.bring_in_evacuated(
    p_lane_id integer, p_up_to bigint, p_slot integer, p_generation bigint, p_limit integer) RETURNS integer
LANGUAGE plpgsql AS $function$
DECLARE
    v_oldest bigint[];
BEGIN
    SELECT array_agg(evacuated.job_id) INTO v_oldest
      FROM (SELECT job_id FROM {schema}.deferred_jobs
             WHERE lane_id = p_lane_id AND evacuated_generation <= p_up_to AND state = 'available'
             ORDER BY lane_id, evacuated_generation, evacuated_seq
             LIMIT p_limit
               FOR UPDATE SKIP LOCKED) AS evacuated;
    IF v_oldest IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM {schema}.bring_in(v_oldest, p_lane_id, p_slot, p_generation);
    RETURN cardinality(v_oldest);
END
$function$;
COMMENT ON FUNCTION {schema}.bring_in_evacuated(integer, bigint, integer, bigint, integer) IS
    'Bring jobs of a lane back that were evacuated from openings of the ring up to the given one, at most so many, the '
    'oldest first; the answer is how many. The lane is locked by the caller.';

CREATE FUNCTION {schema}.oldest_evacuated(p_lane_id integer) RETURNS bigint
LANGUAGE plpgsql AS $function$
BEGIN
    RETURN (SELECT evacuated_generation FROM {schema}.deferred_jobs
             WHERE lane_id = p_lane_id AND state = 'available'
             ORDER BY lane_id, evacuated_generation
             LIMIT 1);
END
$function$;
COMMENT ON FUNCTION {schema}.oldest_evacuated(integer) IS
    'The oldest opening of the ring that jobs of the lane were evacuated from; NULL without any.';

CREATE FUNCTION {schema}.claim_lane(
    p_lane_id integer, p_priority smallint, p_slots integer[], p_generations bigint[], p_claim_slot integer, p_limit integer,
    p_lease interval)
RETURNS {schema}.claimed_batch[]
LANGUAGE plpgsql AS $function$
DECLARE
    c_current   CONSTANT integer := cardinality(p_slots);
    v_evacuated bigint := {schema}.oldest_evacuated(p_lane_id);
    v_brought   integer;
    v_left      integer := p_limit;
    v_batch     {schema}.claimed_batch;
    v_batches   {schema}.claimed_batch[] := '{}';
BEGIN
    FOR i IN 1 .. c_current LOOP
        v_brought := 0;
        IF v_evacuated <= p_generations[i] THEN
            -- What left this slot or an earlier one is older than what still waits here. It comes back through the current
            -- slot, before all that waits there.
            v_brought := {schema}.bring_in_evacuated(
                p_lane_id, p_generations[i], p_slots[c_current], p_generations[c_current], v_left);
            v_evacuated := {schema}.oldest_evacuated(p_lane_id);
            IF v_brought > 0 AND i < c_current THEN
                v_batch := {schema}.claim_from(p_lane_id, p_priority, p_slots[c_current], p_generations[c_current],
                                               p_claim_slot, v_brought, p_lease);
                v_batches := v_batches || v_batch;
                v_left := v_left - cardinality(v_batch.job_ids);
                EXIT WHEN v_left = 0;
            END IF;
        END IF;

        IF i = c_current AND v_left > v_brought THEN
            PERFORM {schema}.promote_due_jobs(p_lane_id, p_slots[i], p_generations[i], v_left - v_brought);
        END IF;
        v_batch := {schema}.claim_from(p_lane_id, p_priority, p_slots[i], p_generations[i], p_claim_slot, v_left, p_lease);
        CONTINUE WHEN v_batch.run_lease IS NULL;
        v_batches := v_batches || v_batch;
        v_left := v_left - cardinality(v_batch.job_ids);
        EXIT WHEN v_left = 0;
    END LOOP;
    RETURN v_batches;
END
$function$;
COMMENT ON FUNCTION {schema}.claim_lane(integer, smallint, integer[], bigint[], integer, integer, interval) IS
    'Claim jobs of one lane from the given slots, of which the last is the current one, in the order of their age. The lane is '
    'locked by the caller.';

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
    v_lane        record;
    v_batch       {schema}.claimed_batch;
    v_left        integer := p_limit;
BEGIN
    PERFORM {schema}.require_read_committed();
    IF {schema}.queue_was_restored() THEN
        PERFORM {schema}.rebase_claims();
    END IF;
    SELECT * INTO STRICT v_ring FROM {schema}.queue_ring_state;
    SELECT current_slot INTO STRICT v_claim_slot FROM {schema}.claim_ring_state;
    -- What was enqueued first stands in the slot that was opened first. The current one may be filled by this claim.
    SELECT array_agg(slot ORDER BY generation), array_agg(generation ORDER BY generation) INTO v_slots, v_generations
      FROM {schema}.queue_ring_slots
     WHERE generation IS NOT NULL AND (slot = v_ring.current_slot OR {schema}.has_pages('ready_entries', slot));

    FOR v_lane IN
        SELECT lane_id, priority FROM {schema}.queue_lanes WHERE queue = p_queue ORDER BY priority, lane_id
    LOOP
        PERFORM {schema}.lock_lane(v_lane.lane_id);
        FOREACH v_batch IN ARRAY {schema}.claim_lane(
            v_lane.lane_id, v_lane.priority, v_slots, v_generations, v_claim_slot, v_left,
            make_interval(secs => p_lease_seconds))
        LOOP
            RETURN NEXT v_batch;
            v_left := v_left - cardinality(v_batch.job_ids);
        END LOOP;
        EXIT WHEN v_left = 0;
    END LOOP;
END
$function$;

CREATE FUNCTION {schema}.evacuate_lane(p_lane_id integer, p_slot integer, p_generation bigint, p_limit integer) RETURNS integer
LANGUAGE plpgsql AS $function$
DECLARE
    v_cursor {schema}.lane_cursor := {schema}.read_cursor(p_slot, p_lane_id);
    v_read   record;
    v_rows   {schema}.ready_rows;
    v_count  integer := 0;
    v_moved  integer;
BEGIN
    IF v_cursor.xid >= pg_snapshot_xmax(pg_current_snapshot()) THEN
        RETURN 0;  -- another cluster's cursor: the next claim will notice
    END IF;
    -- Again when all that was read had a tombstone.
    WHILE v_count = 0 LOOP
        SELECT * INTO v_read FROM {schema}.take_ready(p_lane_id, p_slot, p_limit, v_cursor);
        v_rows := v_read.taken;
        IF v_rows.row_count = 0 THEN
            EXIT;
        END IF;
        v_cursor := v_read.moved;
        v_count := coalesce(cardinality(v_rows.job_ids), 0);
    END LOOP;
    IF v_count = 0 THEN
        RETURN 0;
    END IF;

    -- The cursor rides on a batch, and this one has no jobs.
    INSERT INTO {schema}.lease_claim_batches
           (claim_slot, run_lease, ready_slot, ready_generation, lane_id, claimed_at, lease_until, job_count,
            cursor_xid, cursor_seq, highest_seq, late_xids, late_seqs, has_unique_keys,
            job_ids, lane_seqs, enqueue_xids, attempts, max_attempts, kinds)
    SELECT current_slot, nextval('{schema}.run_lease_seq'), p_slot, p_generation, p_lane_id, clock_timestamp(),
           clock_timestamp(), 0, v_cursor.xid, v_cursor.seq, v_cursor.highest_seq, v_cursor.late_xids, v_cursor.late_seqs,
           false, '{}', '{}', '{}', '{}', '{}', '{}'
      FROM {schema}.claim_ring_state;
    EXECUTE format($move$
        WITH body AS MATERIALIZED (
            SELECT found.*
              FROM unnest($1, $2) AS taken (enqueue_xid, lane_seq)
             CROSS JOIN LATERAL (
                   SELECT * FROM {schema}.ready_entries_%1$s AS ready
                    WHERE ready.ready_slot = %1$s AND ready.lane_id = $3
                      AND ready.enqueue_xid = taken.enqueue_xid AND ready.lane_seq = taken.lane_seq
                    LIMIT 1) AS found
        ), marked AS (
            INSERT INTO {schema}.ready_tombstones_%1$s (enqueue_xid, lane_seq, job_id, ready_slot, lane_id)
            SELECT enqueue_xid, lane_seq, job_id, ready_slot, lane_id FROM body
        )
        INSERT INTO {schema}.deferred_jobs
               (job_id, run_at, created_at, lane_id, state, attempt, max_attempts, kind, args, unique_key, unique_states,
                evacuated_generation, evacuated_seq)
        SELECT job_id, run_at, created_at, lane_id, 'available', attempt, max_attempts, kind, args, unique_key, unique_states,
               $4, lane_seq
          FROM body
        $move$, p_slot)
      USING v_rows.enqueue_xids, v_rows.lane_seqs, p_lane_id, p_generation;
    GET DIAGNOSTICS v_moved = ROW_COUNT;
    IF v_moved <> v_count THEN
        RAISE EXCEPTION 'slot %: % jobs to evacuate, % bodies found', p_slot, v_count, v_moved
              USING ERRCODE = 'data_corrupted';
    END IF;
    PERFORM {schema}.add_count_delta(p_slot, p_generation, p_lane_id, v_rows.job_ids[1], 'available', -v_count);
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION {schema}.evacuate_lane(integer, integer, bigint, integer) IS
    'Move waiting jobs of a lane out of a slot, at most so many, the oldest first; the answer is how many. The lane is locked '
    'by the caller.';

-- A tombstone is looked for by its key, body by body. Asked for by NOT EXISTS, it may be searched for among all tombstones of
-- the lane, and an evacuated slot has thousands.
CREATE OR REPLACE FUNCTION {schema}.queue_waiting_rows(p_slot integer, p_limit bigint DEFAULT NULL)
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
                         LEFT JOIN LATERAL (
                              SELECT true AS found
                                FROM {schema}.ready_tombstones_%1$s AS stone
                               WHERE stone.ready_slot = %1$s AND stone.lane_id = ready.lane_id
                                 AND stone.enqueue_xid = ready.enqueue_xid AND stone.lane_seq = ready.lane_seq
                               LIMIT 1) AS tombstone ON true
                        WHERE ready.ready_slot = %1$s AND ready.lane_id = lane.lane_id
                          AND (ready.enqueue_xid, ready.lane_seq)
                              > (coalesce(newest.cursor_xid, '0'), coalesce(newest.cursor_seq, 0))
                          AND tombstone.found IS NULL
                       UNION ALL
                       SELECT FROM unnest(newest.late_xids, newest.late_seqs) AS late (xid, seq)
                         JOIN {schema}.ready_entries_%1$s AS ready
                           ON ready.ready_slot = %1$s AND ready.lane_id = lane.lane_id
                          AND ready.enqueue_xid = late.xid AND ready.lane_seq > late.seq
                         LEFT JOIN LATERAL (
                              SELECT true AS found
                                FROM {schema}.ready_tombstones_%1$s AS stone
                               WHERE stone.ready_slot = %1$s AND stone.lane_id = ready.lane_id
                                 AND stone.enqueue_xid = ready.enqueue_xid AND stone.lane_seq = ready.lane_seq
                               LIMIT 1) AS tombstone ON true
                        WHERE late.xid < newest.cursor_xid
                          AND tombstone.found IS NULL
                       LIMIT $1) AS row) AS found
         WHERE found.waiting > 0
    $query$, p_slot) USING p_limit, {schema}.queue_was_restored();
END
$function$;

CREATE FUNCTION {schema}.evacuate_waiting(p_slot integer, p_limit integer) RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
DECLARE
    v_generation bigint;
    v_lane_id    integer;
    v_left       integer := p_limit;
BEGIN
    PERFORM {schema}.require_read_committed();
    -- After a restore no cursor means anything until a claim has set it anew.
    IF {schema}.queue_was_restored() THEN
        RETURN 0;
    END IF;
    -- First of all: a prune of the slot is waited for while nothing is held that it may want.
    EXECUTE format('LOCK TABLE {schema}.ready_entries_%1$s, {schema}.ready_tombstones_%1$s,
                               {schema}.queue_terminal_count_deltas_%1$s IN ROW EXCLUSIVE MODE', p_slot);
    SELECT slot.generation INTO v_generation
      FROM {schema}.queue_ring_slots AS slot, {schema}.queue_ring_state AS ring
     WHERE slot.slot = p_slot AND slot.slot <> ring.current_slot;
    FOR v_lane_id IN
        SELECT waiting.lane_id FROM {schema}.queue_waiting_rows(p_slot, 1) AS waiting WHERE v_generation IS NOT NULL
    LOOP
        CONTINUE WHEN NOT {schema}.try_lock_lane(v_lane_id);
        v_left := v_left - {schema}.evacuate_lane(v_lane_id, p_slot, v_generation, v_left);
        EXIT WHEN v_left = 0;
    END LOOP;
    RETURN p_limit - v_left;
END
$function$;
COMMENT ON FUNCTION {schema}.evacuate_waiting(integer, integer) IS
    'Move jobs that wait in a sealed slot to deferred_jobs, at most so many, but for lanes that are being claimed right now; '
    'the answer is how many.';
