-- Waking idle workers.
--
-- An idle worker looks at its queue every now and then, so nothing depends on being told. Being told makes it quick. But
-- NOTIFY takes a lock of the whole cluster when its transaction commits, and producers that commit at the same time would
-- wait for one another, for workers that are busy anyhow. So a producer asks first whether anybody waits.
--
-- A worker that waits holds a shared advisory lock of its queue, for its session. Whoever has jobs for it tries the
-- exclusive one, which waits for nobody and keeps nothing: not had means that a worker waits, and only then it notifies.
--
-- A producer that asked before the worker began to wait, and commits after the worker's last look, is not heard. Its job is
-- found at the next look. Therefore a worker takes the lock first, and looks once more before it waits.

CREATE FUNCTION {schema}.wake_key(p_queue text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_catalog.hashtextextended('parkkeeper.wake {schema} ' OPERATOR(pg_catalog.||) p_queue, 0);
COMMENT ON FUNCTION {schema}.wake_key(text) IS
    'The key of the advisory lock that the queue''s idle workers share. Two queues with one key would wake each other''s '
    'workers, who then find nothing.';

CREATE FUNCTION {schema}.wake_channel(p_queue text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'parkkeeper_' OPERATOR(pg_catalog.||) pg_catalog.to_hex({schema}.wake_key(p_queue));
COMMENT ON FUNCTION {schema}.wake_channel(text) IS
    'The channel on which the queue''s idle workers listen. It is made of a hash: a queue''s name may be longer than a '
    'channel''s, and is nobody''s business who listens elsewhere.';

CREATE FUNCTION {schema}.wake_workers(p_queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $function$
DECLARE
    v_key bigint := {schema}.wake_key(p_queue);
BEGIN
    -- A transaction that has notified cannot be prepared. Where transactions can be, workers are left to look.
    IF current_setting('max_prepared_transactions') = '0'
       -- One expression, in the middle of which no timeout or cancel can leave the lock behind.
       AND (CASE WHEN pg_try_advisory_lock(v_key) THEN NOT pg_advisory_unlock(v_key) ELSE true END) THEN
        PERFORM pg_notify({schema}.wake_channel(p_queue), '');
    END IF;
END
$function$;
COMMENT ON FUNCTION {schema}.wake_workers(text) IS
    'Tell the idle workers of a queue, when this transaction commits, that there is something for them; nothing is sent '
    'when none is idle. To be called after the jobs were written.';

CREATE FUNCTION {schema}.await_jobs(p_queue text, p_backend_pid integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog AS $function$
BEGIN
    -- A pooler makes up the process id that its client knows. It may give this session to another client in a moment, so
    -- there is neither a lock to be left in it nor a channel.
    IF pg_backend_pid() <> p_backend_pid THEN
        RETURN false;
    END IF;
    EXECUTE format('LISTEN %I', {schema}.wake_channel(p_queue));
    PERFORM pg_advisory_lock_shared({schema}.wake_key(p_queue));
    RETURN true;
END
$function$;
COMMENT ON FUNCTION {schema}.await_jobs(text, integer) IS
    'Listen for jobs of a queue, and let producers know that somebody does, until stop_awaiting_jobs or the end of the '
    'session. The process id is the one that the client was told; false, and nothing done, when a pooler told it.';

CREATE FUNCTION {schema}.stop_awaiting_jobs(p_queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $function$
BEGIN
    PERFORM pg_advisory_unlock_shared({schema}.wake_key(p_queue));
    EXECUTE format('UNLISTEN %I', {schema}.wake_channel(p_queue));
END
$function$;
COMMENT ON FUNCTION {schema}.stop_awaiting_jobs(text) IS 'Undo await_jobs.';

CREATE FUNCTION {schema}.next_due(p_queue text) RETURNS double precision
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
                    WHERE job.lane_id = lane.lane_id AND job.run_at > v_now
                    ORDER BY job.lane_id, job.run_at
                    LIMIT 1) AS due
             WHERE lane.queue = p_queue);
END
$function$;
COMMENT ON FUNCTION {schema}.next_due(text) IS
    'In how many seconds the next job of a queue that is scheduled or to be tried again will be due; NULL: there is none.';
