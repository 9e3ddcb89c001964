-- The claim of a job that runs is found by the key of its body, which one batch has.
--
-- The job's id may stand in several batches, one for each attempt, and which of them is the newest cannot be told from the
-- order of the claim slots: a claim that waited for its lane while the claim ring turned stands in an older slot than the
-- attempt before it. Cancel would then take the job for one that has ended.

CREATE OR REPLACE FUNCTION {schema}.cancel_running(p_body {schema}.ready_entries) RETURNS boolean
LANGUAGE plpgsql AS $function$
DECLARE
    v_slot  integer;
    v_claim record;
    v_held  record;
BEGIN
    FOR v_slot IN
        SELECT slot FROM {schema}.claim_ring_slots WHERE generation IS NOT NULL ORDER BY generation DESC
    LOOP
        -- Newest first: a job that runs is in one of the last batches of its lane.
        EXECUTE format('SELECT claim_slot, run_lease, array_position(lane_seqs, $3) AS ordinal
                          FROM {schema}.lease_claim_batches_%s
                         WHERE ready_slot = $1 AND lane_id = $2 AND $3 = ANY (lane_seqs)
                         ORDER BY run_lease DESC
                         LIMIT 1', v_slot)
           INTO v_claim USING p_body.ready_slot, p_body.lane_id, p_body.lane_seq;
        EXIT WHEN v_claim.run_lease IS NOT NULL;
    END LOOP;
    IF v_claim.run_lease IS NULL THEN
        RETURN false;
    END IF;
    SELECT * INTO v_held FROM {schema}.hold_claims(
        v_claim.claim_slot, v_claim.run_lease, ARRAY[v_claim.ordinal], ARRAY[p_body.job_id]);
    IF cardinality(v_held.ordinals) = 0 THEN
        RETURN false;
    END IF;
    PERFORM {schema}.close_claims(v_held.batch, v_held.ordinals, 'cancelled', NULL, NULL);
    RETURN true;
END
$function$;
