-- Claim: take a batch of waiting jobs with one append.
--
-- A claim updates no row and deletes none. Per lane and slot it remembers how far it has come: the cursor, which is the
-- key (enqueue_xid, lane_seq) of the last job taken, and a late list, the transactions that were open when the cursor
-- passed them. Whatever a transaction that is late commits is found through the list; whatever begins later lies beyond
-- the cursor. So no job is missed however long its transaction stays open, no producer waits for another, and what a
-- claim costs depends on what it takes and on how many transactions are open, not on what was claimed before.
--
-- Three rules make this true:
--   * claims of one lane follow one another: each holds the lane's advisory lock to the end of its transaction;
--   * first a snapshot is taken, then rows are read, and only of transactions that had ended in that snapshot: all that
--     these will ever have is there to be read;
--   * the transaction of the claim counts as open, too: it may enqueue more before it commits.

-- The functions below that have no SET are called only by those that have, and share their settings. These pin the
-- plans: a child that was just made or truncated has no statistics, and a guess must not decide.

CREATE TYPE {schema}.claimed_batch AS (
    priority     smallint,
    claim_slot   integer,
    run_lease    bigint,
    lease_until  timestamptz,
    job_ids      bigint[],
    attempts     smallint[],
    max_attempts smallint[],
    kinds        text[],
    args         text
);
COMMENT ON TYPE {schema}.claimed_batch IS
    'A batch as a worker gets it, in one row since a row a job costs both sides more than the claim. args is a JSON array; '
    'attempts, max_attempts and kinds have one element when all jobs have the same. A job''s place, from 1, is its ordinal.';

CREATE FUNCTION {schema}.require_read_committed() RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    -- After waiting for a lock one has to see what its former holder committed; a snapshot kept since before cannot.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'claims need READ COMMITTED, this transaction is %', upper(current_setting('transaction_isolation'))
              USING ERRCODE = 'invalid_transaction_state';
    END IF;
END
$function$;
COMMENT ON FUNCTION {schema}.require_read_committed() IS 'Refuse a transaction that keeps one snapshot.';

CREATE FUNCTION {schema}.lock_lane(p_lane_id integer) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    -- Advisory locks are the database's, so the key is of the namespace as well.
    PERFORM pg_advisory_xact_lock(hashtextextended('parkkeeper.lane {schema}', p_lane_id));
END
$function$;
COMMENT ON FUNCTION {schema}.lock_lane(integer) IS 'Wait for the lane''s other claims; held to the end of the transaction.';

CREATE FUNCTION {schema}.has_pages(p_child text, p_slot integer) RETURNS boolean
LANGUAGE plpgsql AS $function$
BEGIN
    -- Exact (a row that is not yet committed has a page too) and cheaper than looking for a row.
    RETURN pg_relation_size(format('{schema}.%s_%s', p_child, p_slot)::regclass) > 0;
END
$function$;
COMMENT ON FUNCTION {schema}.has_pages(text, integer) IS 'Whether anything was written to the child since its last TRUNCATE.';

CREATE TYPE {schema}.lane_cursor AS (
    xid         xid8,
    seq         bigint,
    highest_seq bigint,
    late_xids   xid8[],
    late_seqs   bigint[]
);
COMMENT ON TYPE {schema}.lane_cursor IS
    'How far a lane has been claimed in a slot; the columns of lease_claim_batches say what the parts mean.';

CREATE FUNCTION {schema}.read_cursor(p_slot integer, p_lane_id integer) RETURNS {schema}.lane_cursor
LANGUAGE plpgsql AS $function$
DECLARE
    v_claim_slot integer;
    v_found      {schema}.lane_cursor;
BEGIN
    -- The cursor in force rides on the newest batch. Claim slots are asked from the current one back, each by name, so
    -- that no lock on another child is waited for.
    FOR v_claim_slot IN
        SELECT slot FROM {schema}.claim_ring_slots WHERE generation IS NOT NULL ORDER BY generation DESC
    LOOP
        EXECUTE format(
            'SELECT cursor_xid, cursor_seq, highest_seq, late_xids, late_seqs
               FROM {schema}.lease_claim_batches_%1$s
              WHERE ready_slot = $1 AND lane_id = $2
              ORDER BY run_lease DESC
              LIMIT 1', v_claim_slot)
           INTO v_found USING p_slot, p_lane_id;
        IF v_found.xid IS NOT NULL THEN
            RETURN v_found;
        END IF;
    END LOOP;
    RETURN ('0', 0, 0, '{}', '{}')::{schema}.lane_cursor;  -- never claimed from: before the first row there can be
END
$function$;
COMMENT ON FUNCTION {schema}.read_cursor(integer, integer) IS 'The cursor of a lane in a slot.';

CREATE TYPE {schema}.lane_stretches AS (
    after_xids  xid8[],
    after_seqs  bigint[],
    before_xids xid8[],
    before_seqs bigint[],
    late_count  integer
);
COMMENT ON TYPE {schema}.lane_stretches IS
    'Parts of a lane, each between two keys that do not belong to it. The first late_count ones are late transactions.';

CREATE FUNCTION {schema}.claimable_stretches(p_cursor {schema}.lane_cursor, p_snapshot pg_snapshot, p_own_xid xid8)
RETURNS {schema}.lane_stretches
LANGUAGE plpgsql AS $function$
DECLARE
    c_after_all CONSTANT bigint := 9223372036854775807;
    v_stretches {schema}.lane_stretches;
BEGIN
    IF p_own_xid IS NULL AND p_cursor.late_xids = '{}' AND pg_snapshot_xmin(p_snapshot) = pg_snapshot_xmax(p_snapshot) THEN
        -- Nothing is open and nothing was late.
        RETURN (ARRAY[p_cursor.xid], ARRAY[p_cursor.seq], ARRAY[pg_snapshot_xmax(p_snapshot)], '{0}', 0)::{schema}.lane_stretches;
    END IF;

    WITH bound AS (
        SELECT p_cursor.xid AS xid, p_cursor.seq AS seq
        UNION ALL
        SELECT open.xid, c_after_all
          FROM (SELECT pg_snapshot_xip(p_snapshot) UNION ALL SELECT p_own_xid) AS open (xid)
         WHERE open.xid > p_cursor.xid AND open.xid < pg_snapshot_xmax(p_snapshot)
    ), stretch AS (
        -- First the late transactions that have ended, each from where it was left.
        SELECT true AS late, late.xid AS after_xid, late.seq AS after_seq, late.xid AS before_xid, c_after_all AS before_seq
          FROM unnest(p_cursor.late_xids, p_cursor.late_seqs) AS late (xid, seq)
         WHERE pg_visible_in_snapshot(late.xid, p_snapshot) AND late.xid IS DISTINCT FROM p_own_xid
        UNION ALL
        -- Then what lies beyond the cursor, in the gaps between open transactions: the million rows of a bulk load that is
        -- not yet committed are stepped over, not walked.
        SELECT false, xid, seq, lead(xid, 1, pg_snapshot_xmax(p_snapshot)) OVER (ORDER BY xid), 0
          FROM bound
    )
    SELECT array_agg(after_xid ORDER BY late DESC, after_xid), array_agg(after_seq ORDER BY late DESC, after_xid),
           array_agg(before_xid ORDER BY late DESC, after_xid), array_agg(before_seq ORDER BY late DESC, after_xid),
           count(*) FILTER (WHERE late)
      INTO v_stretches
      FROM stretch;
    RETURN v_stretches;
END
$function$;
COMMENT ON FUNCTION {schema}.claimable_stretches({schema}.lane_cursor, pg_snapshot, xid8) IS
    'Where a claim may find jobs: everything that is not claimed, of transactions that had ended in the snapshot.';

CREATE TYPE {schema}.ready_rows AS (
    row_count       integer,
    late_xids       xid8[],
    late_seqs       bigint[],
    last_xid        xid8,
    last_seq        bigint,
    highest_seq     bigint,
    job_ids         bigint[],
    enqueue_xids    xid8[],
    lane_seqs       bigint[],
    attempts        smallint[],
    max_attempts    smallint[],
    kinds           text[],
    args            text,
    has_unique_keys boolean
);
COMMENT ON TYPE {schema}.ready_rows IS
    'What was read of a lane in one slot. row_count, the late rows'' keys and the last key beyond the cursor are of all '
    'rows; the arrays of jobs leave out those with a tombstone.';

-- Each slot has a reader of its own, so that its statement names one child and its plan is kept from call to call.
CREATE FUNCTION {schema}.make_ready_reader(p_slot integer) RETURNS void
LANGUAGE plpgsql AS $maker$
BEGIN
    EXECUTE format($template$
CREATE FUNCTION {schema}.read_ready_%1$s(
    p_lane_id integer, p_stretches {schema}.lane_stretches, p_limit integer, p_has_tombstones boolean)
RETURNS {schema}.ready_rows
LANGUAGE plpgsql AS $function$
DECLARE
    v_rows {schema}.ready_rows;
BEGIN
    -- A nested loop, which is the only plan there is for this, reads the stretches in their order: what is cut off by the
    -- limit lies behind what is not.
    SELECT count(*),
           array_agg(found.enqueue_xid) FILTER (WHERE found.late),
           array_agg(found.lane_seq) FILTER (WHERE found.late),
           (array_agg(found.enqueue_xid) FILTER (WHERE NOT found.late))[count(*) FILTER (WHERE NOT found.late)],
           (array_agg(found.lane_seq) FILTER (WHERE NOT found.late))[count(*) FILTER (WHERE NOT found.late)],
           max(found.lane_seq),
           array_agg(found.job_id) FILTER (WHERE tombstone.found IS NULL),
           array_agg(found.enqueue_xid) FILTER (WHERE tombstone.found IS NULL),
           array_agg(found.lane_seq) FILTER (WHERE tombstone.found IS NULL),
           array_agg(found.attempt + 1::smallint) FILTER (WHERE tombstone.found IS NULL),
           array_agg(found.max_attempts) FILTER (WHERE tombstone.found IS NULL),
           array_agg(found.kind) FILTER (WHERE tombstone.found IS NULL),
           '[' || string_agg(found.args::text, ',') FILTER (WHERE tombstone.found IS NULL) || ']',
           coalesce(bool_or(found.unique_key IS NOT NULL) FILTER (WHERE tombstone.found IS NULL), false)
      INTO v_rows
      FROM (SELECT stretch.place <= p_stretches.late_count AS late, ready.*
              FROM unnest(p_stretches.after_xids, p_stretches.after_seqs, p_stretches.before_xids, p_stretches.before_seqs)
                   WITH ORDINALITY AS stretch (after_xid, after_seq, before_xid, before_seq, place)
             CROSS JOIN LATERAL (
                   SELECT * FROM {schema}.ready_entries_%1$s AS entry
                    WHERE entry.ready_slot = %1$s AND entry.lane_id = p_lane_id
                      AND (entry.enqueue_xid, entry.lane_seq) > (stretch.after_xid, stretch.after_seq)
                      AND (entry.enqueue_xid, entry.lane_seq) < (stretch.before_xid, stretch.before_seq)
                    ORDER BY entry.enqueue_xid, entry.lane_seq
                    LIMIT p_limit) AS ready
             LIMIT p_limit) AS found
      LEFT JOIN LATERAL (
            SELECT true AS found
              FROM {schema}.ready_tombstones_%1$s AS stone
             WHERE p_has_tombstones AND stone.ready_slot = %1$s AND stone.lane_id = p_lane_id
               AND stone.enqueue_xid = found.enqueue_xid AND stone.lane_seq = found.lane_seq
             LIMIT 1) AS tombstone ON true;
    RETURN v_rows;
END
$function$
    $template$, p_slot);
END
$maker$;
COMMENT ON FUNCTION {schema}.make_ready_reader(integer) IS
    'Make the function that reads a lane in one slot of the queue ring; for a slot that make_queue_slot has made.';

SELECT {schema}.make_ready_reader(slot) FROM {schema}.queue_ring_slots ORDER BY slot;

CREATE FUNCTION {schema}.one_if_same(p_values anyarray) RETURNS anyarray
LANGUAGE sql IMMUTABLE STRICT AS $function$
    SELECT CASE WHEN p_values = array_fill(p_values[1], ARRAY[cardinality(p_values)]) THEN p_values[1:1] ELSE p_values END
$function$;
COMMENT ON FUNCTION {schema}.one_if_same(anyarray) IS 'The array with one element when all are the same, else as it is.';

CREATE FUNCTION {schema}.moved_cursor(
    p_cursor {schema}.lane_cursor, p_snapshot pg_snapshot, p_own_xid xid8, p_limit integer,
    p_late_xids xid8[], p_late_seqs bigint[], p_last_xid xid8, p_last_seq bigint, p_highest_seq bigint)
RETURNS {schema}.lane_cursor
LANGUAGE plpgsql AS $function$
DECLARE
    v_moved {schema}.lane_cursor := (coalesce(p_last_xid, p_cursor.xid), coalesce(p_last_seq, p_cursor.seq),
                                     greatest(p_cursor.highest_seq, p_highest_seq), '{}', '{}')::{schema}.lane_cursor;
BEGIN
    IF p_own_xid IS NULL AND p_cursor.late_xids = '{}' AND pg_snapshot_xmin(p_snapshot) = pg_snapshot_xmax(p_snapshot) THEN
        RETURN v_moved;
    END IF;

    SELECT coalesce(array_agg(late.xid ORDER BY late.xid), '{}'), coalesce(array_agg(late.seq ORDER BY late.xid), '{}')
      INTO v_moved.late_xids, v_moved.late_seqs
      FROM (-- What was late stays so while its transaction is open, or when the limit may have cut off some of its rows.
            SELECT before.xid, greatest(before.seq, taken.seq) AS seq
              FROM unnest(p_cursor.late_xids, p_cursor.late_seqs) AS before (xid, seq)
             CROSS JOIN LATERAL (
                   SELECT max(read.seq) AS seq
                     FROM unnest(p_late_xids, p_late_seqs) AS read (xid, seq)
                    WHERE read.xid = before.xid) AS taken
             WHERE before.xid = p_own_xid
                OR NOT pg_visible_in_snapshot(before.xid, p_snapshot)
                OR cardinality(p_late_xids) >= p_limit
            UNION ALL
            -- What the cursor passes now while it is open. Nothing of it was taken.
            SELECT open.xid, 0
              FROM (SELECT pg_snapshot_xip(p_snapshot) UNION ALL SELECT p_own_xid) AS open (xid)
             WHERE open.xid > p_cursor.xid AND open.xid < p_last_xid) AS late;
    RETURN v_moved;
END
$function$;
COMMENT ON FUNCTION {schema}.moved_cursor(
    {schema}.lane_cursor, pg_snapshot, xid8, integer, xid8[], bigint[], xid8, bigint, bigint) IS
    'The cursor after a read: the keys of the late rows, the last key beyond the cursor and the highest sequence are given.';

CREATE FUNCTION {schema}.claim_from(
    p_lane_id integer, p_priority smallint, p_slot integer, p_generation bigint, p_claim_slot integer, p_limit integer,
    p_lease interval)
RETURNS {schema}.claimed_batch
LANGUAGE plpgsql AS $function$
DECLARE
    v_cursor      {schema}.lane_cursor := {schema}.read_cursor(p_slot, p_lane_id);
    v_snapshot    pg_snapshot;
    v_own_xid     xid8;
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
        v_snapshot := pg_current_snapshot();
        v_own_xid := pg_current_xact_id_if_assigned();
        EXECUTE format('SELECT * FROM {schema}.read_ready_%s($1, $2, $3, $4)', p_slot)
           INTO v_rows
          USING p_lane_id, {schema}.claimable_stretches(v_cursor, v_snapshot, v_own_xid), p_limit,
                {schema}.has_pages('ready_tombstones', p_slot);
        IF v_rows.row_count = 0 THEN
            RETURN NULL;
        END IF;
        v_cursor := {schema}.moved_cursor(v_cursor, v_snapshot, v_own_xid, p_limit, v_rows.late_xids, v_rows.late_seqs,
                                          v_rows.last_xid, v_rows.last_seq, v_rows.highest_seq);

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
COMMENT ON FUNCTION {schema}.claim_from(integer, smallint, integer, bigint, integer, integer, interval) IS
    'Claim jobs of one lane from one slot; NULL when there are none. The lane is locked by the caller.';

CREATE FUNCTION {schema}.promote_due_jobs(p_lane_id integer, p_slot integer, p_generation bigint, p_limit integer) RETURNS void
LANGUAGE plpgsql AS $function$
DECLARE
    v_now timestamptz := clock_timestamp();  -- a variable, since the index is no use to a volatile function
    v_due bigint[];
    v_xid xid8;
BEGIN
    SELECT array_agg(due.job_id) INTO v_due
      FROM (SELECT job_id FROM {schema}.deferred_jobs
             WHERE lane_id = p_lane_id AND run_at <= v_now
             ORDER BY lane_id, run_at, job_id
             LIMIT p_limit
               FOR UPDATE SKIP LOCKED) AS due;
    IF v_due IS NULL THEN
        RETURN;
    END IF;

    -- With the key of this transaction the jobs would wait for it to end, since a claim takes nothing of an open one.
    -- They stand just behind the cursor instead: nobody else can move it while the lane is locked, and their sequence is
    -- above any that was taken.
    v_xid := ({schema}.read_cursor(p_slot, p_lane_id)).xid;
    WITH due AS (
        DELETE FROM {schema}.deferred_jobs WHERE job_id = ANY (v_due) RETURNING *)
    INSERT INTO {schema}.ready_entries
           (enqueue_xid, job_id, ready_generation, run_at, created_at, ready_slot, lane_id, attempt, max_attempts, kind, args,
            unique_key, unique_states)
    SELECT v_xid, job_id, p_generation, run_at, created_at, p_slot, lane_id, attempt, max_attempts, kind, args,
           unique_key, unique_states
      FROM due
     ORDER BY run_at, job_id;
    PERFORM {schema}.add_count_delta(p_slot, p_generation, p_lane_id, v_due[1], 'available', cardinality(v_due));
END
$function$;
COMMENT ON FUNCTION {schema}.promote_due_jobs(integer, integer, bigint, integer) IS
    'Bring jobs of a lane whose time has come into the current slot, at most so many. The lane is locked by the caller.';

CREATE FUNCTION {schema}.claim_jobs(p_queue text, p_limit integer, p_lease_seconds double precision)
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
        PERFORM {schema}.promote_due_jobs(v_lane.lane_id, v_ring.current_slot, v_ring.generation, v_left);
        FOR i IN 1 .. cardinality(v_slots) LOOP
            v_batch := {schema}.claim_from(
                v_lane.lane_id, v_lane.priority, v_slots[i], v_generations[i], v_claim_slot, v_left,
                make_interval(secs => p_lease_seconds));
            CONTINUE WHEN v_batch.run_lease IS NULL;
            RETURN NEXT v_batch;
            v_left := v_left - cardinality(v_batch.job_ids);
            IF v_left = 0 THEN
                RETURN;
            END IF;
        END LOOP;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION {schema}.claim_jobs(text, integer, double precision) IS
    'Take up to so many jobs of a queue: by priority (the lower number first), then by age.';
