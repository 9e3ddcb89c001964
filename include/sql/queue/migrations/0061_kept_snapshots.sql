-- A transaction that keeps one snapshot is told so when a slot was pruned behind its back.
--
-- TRUNCATE is not MVCC-safe: whoever keeps a snapshot from before a prune, and reads the slot for the first time after it,
-- finds the slot empty, and what the prune put elsewhere is too young to be seen. Counts would miss a slot's worth of jobs,
-- and a unique key whose job was carried would look as if nobody held it. A session in which REPEATABLE READ is the default
-- is in that place with each statement that comes while a prune commits: its snapshot is older than its locks.
--
-- The catalog tells. In the kept snapshot a child has the file that it had then; what the server uses has another one once
-- the child was truncated. With the children locked, so that no prune can come any more, the comparison is exact. The
-- answer is a serialization failure: a transaction of its own is tried again with a new snapshot, and who has a longer one
-- open hears of it instead of getting a number that is wrong.

CREATE FUNCTION {schema}.require_untruncated(p_parents text[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog AS $function$
DECLARE
    v_parent text;
BEGIN
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        RETURN;  -- locks first, then takes the snapshot, with each statement
    END IF;
    FOREACH v_parent IN ARRAY p_parents LOOP
        EXECUTE format('LOCK TABLE {schema}.%I IN ACCESS SHARE MODE', v_parent);
        IF EXISTS (SELECT FROM pg_inherits AS child
                     JOIN pg_class AS seen ON seen.oid = child.inhrelid
                    WHERE child.inhparent = format('{schema}.%I', v_parent)::regclass
                      AND seen.relfilenode <> pg_relation_filenode(seen.oid)) THEN
            RAISE EXCEPTION 'a slot was pruned after this transaction took its snapshot'
                  USING ERRCODE = 'serialization_failure';
        END IF;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION {schema}.require_untruncated(text[]) IS
    'Refuse a transaction that keeps a snapshot in which a child of these tables has rows that were truncated since; lock '
    'them all against that. Nothing under READ COMMITTED.';

-- As before, and the terminal row is looked for in floor segments as well; nor is a key taken over on the word of a snapshot
-- that cannot know.
CREATE OR REPLACE FUNCTION {schema}.take_unique_key(p_key bytea, p_job_id bigint, p_states {schema}.job_state[]) RETURNS bigint
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
               SELECT FROM {schema}.terminal_slots() AS slot
                CROSS JOIN LATERAL (
                      SELECT FROM {schema}.done_entries AS done
                       WHERE done.ready_slot = slot
                         AND done.lane_id = v_held.done_lane_id AND done.lane_seq = v_held.done_lane_seq
                       LIMIT 1) AS found)) THEN
            RETURN v_held.job_id;
        END IF;
        PERFORM {schema}.require_untruncated(ARRAY['done_entries']);
        UPDATE {schema}.job_unique_claims
           SET job_id = p_job_id, unique_states = p_states, done_lane_id = NULL, done_lane_seq = NULL
         WHERE unique_key = p_key AND job_id = v_held.job_id;
        IF FOUND THEN
            RETURN p_job_id;
        END IF;
    END LOOP;
END
$function$;

-- As before, and no sum is made of a snapshot in which a part of it is gone.
CREATE OR REPLACE FUNCTION {schema}.count_queue(
    p_queue text,
    OUT available bigint, OUT running bigint, OUT terminal bigint, OUT pruned_failed bigint, OUT deferred bigint,
    OUT failed bigint, OUT dead_lettered bigint, OUT purged_dead_letters bigint, OUT known boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $function$
DECLARE
    v_trusted boolean := {schema}.counters_are_trusted();
BEGIN
    PERFORM {schema}.require_untruncated(
        CASE WHEN v_trusted THEN ARRAY['queue_terminal_count_deltas']
             ELSE ARRAY['ready_entries', 'ready_tombstones', 'done_entries', 'lease_claim_batches', 'lease_claim_closures']
        END);
    -- Made from text, so that as long as the ledger is believed nothing else is touched, nor waited for. One statement, one
    -- snapshot: a job that moves meanwhile is counted once.
    EXECUTE format($query$
        WITH lane AS MATERIALIZED (
            SELECT lane_id FROM {schema}.queue_lanes WHERE queue = $1
        ), live AS (
            SELECT coalesce(sum(jobs) FILTER (WHERE state = 'available'), 0) AS available,
                   coalesce(sum(jobs) FILTER (WHERE state = 'running'), 0) AS running,
                   coalesce(sum(jobs) FILTER (WHERE state IN ('scheduled', 'retryable')), 0) AS deferred,
                   coalesce(sum(jobs) FILTER (WHERE state IN ('completed', 'failed', 'cancelled')), 0) AS terminal,
                   coalesce(sum(jobs) FILTER (WHERE state = 'failed'), 0) AS failed,
                   coalesce(sum(jobs) FILTER (WHERE state = 'dead_lettered'), 0) AS dead_lettered
              FROM {schema}.%I
             WHERE lane_id = ANY (ARRAY (SELECT lane_id FROM lane))
        ), pruned AS (
            SELECT coalesce(sum(pruned_completed_count), 0) AS completed, coalesce(sum(pruned_failed_count), 0) AS failed,
                   coalesce(sum(purged_dead_letters), 0) AS dead_letters
              FROM {schema}.queue_terminal_rollups
             WHERE queue = $1
        )
        SELECT live.available, live.running, live.terminal + pruned.completed + pruned.failed, pruned.failed, live.deferred,
               live.failed, live.dead_lettered, pruned.dead_letters,
               EXISTS (SELECT FROM lane)
                   OR EXISTS (SELECT FROM {schema}.queue_settings WHERE queue = $1)
                   OR EXISTS (SELECT FROM {schema}.queue_terminal_rollups WHERE queue = $1)
          FROM live, pruned
        $query$, CASE WHEN v_trusted THEN 'queue_ledger' ELSE 'queue_counted_rows' END)
       INTO available, running, terminal, pruned_failed, deferred, failed, dead_lettered, purged_dead_letters, known
      USING p_queue;
END
$function$;
