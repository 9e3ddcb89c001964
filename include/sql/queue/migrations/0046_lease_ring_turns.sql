-- The lease ring turns: rows of leases whose batch has ended leave by TRUNCATE.
--
-- A row is needed for as long as its batch has an open claim, whether its time has come or not: only a rescue that ends the
-- claim may forget it. The few that are needed in a sealed slot are moved to the current one, so that a job which runs for a
-- day keeps one row for a day, and no slot. That a batch has ended is final, so what was seen to be of no use stays so.

CREATE FUNCTION {schema}.batch_is_open(p_claim_slot integer, p_run_lease bigint) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $function$
BEGIN
    -- A batch that is not there has left with its slot of the claim ring: all its claims had ended.
    RETURN EXISTS (
        SELECT FROM {schema}.lease_claim_batches AS batch
         WHERE batch.claim_slot = p_claim_slot AND batch.run_lease = p_run_lease
           AND batch.job_count > (
               SELECT coalesce(sum(closure.job_count), 0)
                 FROM {schema}.lease_claim_closures AS closure
                WHERE closure.claim_slot = p_claim_slot AND closure.ready_slot = batch.ready_slot
                  AND closure.run_lease = p_run_lease));
END
$function$;
COMMENT ON FUNCTION {schema}.batch_is_open(integer, bigint) IS 'Whether a claim of the batch has not ended.';

CREATE FUNCTION {schema}.lease_slot_has_rows(p_slot integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $function$
DECLARE
    v_found boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM {schema}.leases_%s)', p_slot) INTO v_found;
    RETURN v_found;
END
$function$;
COMMENT ON FUNCTION {schema}.lease_slot_has_rows(integer) IS 'Whether a row stands in the slot of the lease ring.';

CREATE FUNCTION {schema}.lease_slot_has_ended_ones(p_slot integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $function$
DECLARE
    v_found boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM {schema}.leases_%s WHERE NOT {schema}.batch_is_open(claim_slot, run_lease))',
                   p_slot)
       INTO v_found;
    RETURN v_found;
END
$function$;
COMMENT ON FUNCTION {schema}.lease_slot_has_ended_ones(integer) IS
    'Whether a row of the slot is of no use any more. Without one there is nothing to seal the slot for.';

-- As for the slots of the queue ring: a vacuum would hold off the TRUNCATE that leaves it nothing to do.
DO $do$
DECLARE
    v_slot integer;
BEGIN
    FOR v_slot IN SELECT slot FROM {schema}.lease_ring_slots ORDER BY slot LOOP
        EXECUTE format('ALTER TABLE {schema}.leases_%s SET (autovacuum_enabled = off)', v_slot);
    END LOOP;
END
$do$;
