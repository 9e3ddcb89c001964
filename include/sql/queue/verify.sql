-- The invariants of the queue, as questions for what breaks them: a row is a violation, and none is as it should be.

-- name: hold_prunes
-- Before the snapshot: a TRUNCATE between the two would look as if jobs were gone.
LOCK TABLE {schema}.ready_entries, {schema}.ready_tombstones, {schema}.done_entries, {schema}.queue_terminal_count_deltas,
           {schema}.lease_claim_batches, {schema}.lease_claim_closures, {schema}.leases
        IN ACCESS SHARE MODE

-- name: jobs
-- Each job is in one place. A claim that has not ended is of a job that is there, and rescue will come to it. A key is held
-- by a job. What has ended as completed or cancelled left a row, until its slot is reclaimed.
WITH claim AS MATERIALIZED (
    SELECT batch.claim_slot, batch.run_lease, batch.ready_slot, batch.lane_id, job.job_id, job.ordinal::integer AS ordinal,
           batch.lane_seqs[job.ordinal] AS lane_seq,
           coalesce(batch.enqueue_xids[job.ordinal], batch.enqueue_xids[1]) AS enqueue_xid, closure.outcome
      FROM {schema}.queue_ring_slots AS slot
      JOIN {schema}.lease_claim_batches AS batch ON batch.ready_slot = slot.slot AND batch.run_lease > slot.settled_batch_id
     CROSS JOIN LATERAL unnest(batch.job_ids) WITH ORDINALITY AS job (job_id, ordinal)
      LEFT JOIN LATERAL (
           SELECT ended.outcome
             FROM {schema}.lease_claim_closures AS ended
            WHERE ended.claim_slot = batch.claim_slot AND ended.ready_slot = batch.ready_slot
              AND ended.run_lease = batch.run_lease
              AND (ended.ordinals IS NULL OR job.ordinal = ANY (ended.ordinals))
            LIMIT 1) AS closure ON true
), cursor AS MATERIALIZED (
    SELECT DISTINCT ON (ready_slot, lane_id)
           ready_slot, lane_id, cursor_xid, cursor_seq, highest_seq, late_xids, late_seqs
      FROM {schema}.lease_claim_batches
     ORDER BY ready_slot, lane_id, run_lease DESC
), place AS MATERIALIZED (
    SELECT ready.job_id, format('waiting in slot %%s', ready.ready_slot) AS place, true AS unended
      FROM {schema}.ready_entries AS ready
      LEFT JOIN cursor USING (ready_slot, lane_id)
      LEFT JOIN {schema}.ready_tombstones AS stone USING (ready_slot, lane_id, enqueue_xid, lane_seq)
     WHERE stone.job_id IS NULL
       AND (cursor.cursor_xid IS NULL
            OR ready.lane_seq > cursor.highest_seq
            OR (ready.enqueue_xid, ready.lane_seq) > (cursor.cursor_xid, cursor.cursor_seq)
            OR EXISTS (SELECT FROM unnest(cursor.late_xids, cursor.late_seqs) AS late (xid, seq)
                        WHERE late.xid = ready.enqueue_xid AND late.seq < ready.lane_seq))
    UNION ALL
    SELECT job_id, format('running by claim %%s', run_lease), true FROM claim WHERE outcome IS NULL
    UNION ALL
    SELECT job_id, format('running outside of the ring by claim %%s', run_lease), true FROM {schema}.running_evacuated
    UNION ALL
    SELECT job_id, format('%%s outside of the ring', state), true FROM {schema}.deferred_jobs
    UNION ALL
    SELECT job_id, 'dead letter', true FROM {schema}.dlq_entries
    UNION ALL
    SELECT job_id, format('%%s in slot %%s', state, ready_slot), false FROM {schema}.done_entries
)
SELECT 'job_in_one_place' AS invariant, format('job %%s: %%s', job_id, string_agg(place, ', ' ORDER BY place)) AS example
  FROM place
 GROUP BY job_id
HAVING count(*) > 1
UNION ALL
SELECT 'claim_of_a_job', format('claim %%s of job %%s: slot %%s has no body of it', claim.run_lease, claim.job_id, claim.ready_slot)
  FROM claim
  LEFT JOIN {schema}.ready_entries AS ready USING (ready_slot, lane_id, enqueue_xid, lane_seq)
 WHERE claim.outcome IS NULL AND ready.job_id IS NULL
UNION ALL
SELECT 'claim_can_be_rescued', format('claim %%s of job %%s: rescue has passed it, and it has no lease', claim.run_lease, claim.job_id)
  FROM claim
  JOIN {schema}.lease_watermarks AS passed ON passed.lane_id = claim.lane_id AND passed.run_lease >= claim.run_lease
 WHERE claim.outcome IS NULL
   AND NOT EXISTS (
       SELECT FROM {schema}.leases AS lease
        WHERE lease.run_lease = claim.run_lease AND lease.claim_slot = claim.claim_slot
          AND (lease.ordinals IS NULL OR claim.ordinal = ANY (lease.ordinals)))
UNION ALL
SELECT 'ended_job_has_a_row', format('job %%s: claim %%s has ended as %%s, and slot %%s has no row of it',
                                     claim.job_id, claim.run_lease, claim.outcome, claim.ready_slot)
  FROM claim
  LEFT JOIN {schema}.done_entries AS done USING (ready_slot, lane_id, lane_seq)
 WHERE claim.outcome IN ('completed', 'cancelled') AND done.job_id IS NULL
UNION ALL
SELECT 'key_held_by_a_job', format('a key is held by job %%s, which has ended or is nowhere', held.job_id)
  FROM {schema}.job_unique_claims AS held
 WHERE held.done_lane_seq IS NULL AND held.job_id NOT IN (SELECT job_id FROM place WHERE unended)

-- name: claim_ends_once
SELECT 'claim_ends_once' AS invariant,
       format('claim %%s: %%s jobs, %%s ended', run_lease, coalesce(claimed.jobs, 0), coalesce(ended.jobs, 0)) AS example
  FROM (SELECT claim_slot, run_lease, job_count AS jobs FROM {schema}.lease_claim_batches) AS claimed
 RIGHT JOIN (SELECT claim_slot, run_lease, sum(job_count) AS jobs
               FROM {schema}.lease_claim_closures
              GROUP BY claim_slot, run_lease) AS ended USING (claim_slot, run_lease)
 WHERE coalesce(claimed.jobs, 0) < ended.jobs

-- name: counts_equal_rows
-- Jobs that have not ended are compared by lane: those outside of the ring are counted in whatever slot was current. A
-- ledger that is not believed is not asked.
SELECT 'counts_equal_rows' AS invariant,
       format('lane %%s, %%s%%s: %%s jobs, %%s counted', lane_id, state, ' in slot ' || slot, sum(rows), sum(ledger)) AS example
  FROM (SELECT lane_id, state, CASE WHEN state IN ('completed', 'failed', 'cancelled') THEN ready_slot END AS slot, rows, ledger
          FROM (SELECT ready_slot, lane_id, state, jobs AS rows, 0 AS ledger FROM {schema}.queue_counted_rows
                UNION ALL
                SELECT ready_slot, lane_id, state, 0, jobs FROM {schema}.queue_ledger) AS term) AS counted
 WHERE {schema}.counters_are_trusted()
 GROUP BY lane_id, state, slot
HAVING sum(rows) <> sum(ledger)

-- name: row_of_a_lane
-- A row whose lane is gone is counted in no queue, and no claim comes to it.
SELECT 'row_of_a_lane' AS invariant, format('%%s: %%s rows of lane %%s', place, count(*), lane_id) AS example
  FROM (SELECT 'ready_entries' AS place, lane_id FROM {schema}.ready_entries
        UNION ALL
        SELECT 'done_entries', lane_id FROM {schema}.done_entries
        UNION ALL
        SELECT 'deferred_jobs', lane_id FROM {schema}.deferred_jobs
        UNION ALL
        SELECT 'dlq_entries', lane_id FROM {schema}.dlq_entries
        UNION ALL
        SELECT 'running_evacuated', lane_id FROM {schema}.running_evacuated
        UNION ALL
        SELECT 'lease_claim_batches', lane_id FROM {schema}.lease_claim_batches) AS row
 WHERE lane_id NOT IN (SELECT lane_id FROM {schema}.queue_lanes)
 GROUP BY place, lane_id

-- name: ended_job_has_a_body
-- A failed job without one could not be put back.
SELECT 'ended_job_has_a_body' AS invariant, format('job %%s, %%s in slot %%s', done.job_id, done.state, done.ready_slot) AS example
  FROM {schema}.done_entries AS done
  LEFT JOIN {schema}.ready_entries AS ready
    ON ready.ready_slot = done.ready_slot AND ready.lane_id = done.lane_id
   AND ready.enqueue_xid = done.enqueue_xid AND ready.lane_seq = done.lane_seq
 WHERE CASE WHEN done.enqueue_xid IS NULL THEN done.args IS NULL ELSE ready.job_id IS NULL END

-- name: floor_is_told
-- A segment is truncated by what is told of it: a row that is younger than that would go while it is inside the floor.
SELECT 'floor_is_told' AS invariant,
       format('segment %%s, queue %%s: %%s failed jobs, told of %%s%%s', held.segment, held.queue, held.rows,
              coalesce(told.carried_rows, 0),
              CASE WHEN told.newest_finalized_at < held.newest THEN ', one younger than told' END) AS example
  FROM (SELECT done.ready_slot AS segment, lane.queue, count(*) AS rows, max(done.finalized_at) AS newest
          FROM {schema}.done_entries AS done JOIN {schema}.queue_lanes AS lane USING (lane_id)
         WHERE done.ready_slot < 0
         GROUP BY done.ready_slot, lane.queue) AS held
  LEFT JOIN {schema}.floor_segment_contents AS told USING (segment, queue)
 WHERE told.segment IS NULL OR told.carried_rows < held.rows OR told.newest_finalized_at < held.newest

-- name: ring_is_whole
SELECT 'ring_is_whole' AS invariant,
       format('%%s ring: %%s slots of %%s, current slot %%s is of generation %%s and the ring of %%s%%s', ring.name, found.slots,
              ring.slot_count, ring.current_slot, found.generation, ring.generation,
              CASE WHEN found.sealed THEN ', and sealed' END) AS example
  FROM (SELECT 'queue' AS name, current_slot, generation, slot_count FROM {schema}.queue_ring_state
        UNION ALL
        SELECT 'claim', current_slot, generation, slot_count FROM {schema}.claim_ring_state
        UNION ALL
        SELECT 'lease', current_slot, generation, slot_count FROM {schema}.lease_ring_state) AS ring
 CROSS JOIN LATERAL (
       SELECT count(*) AS slots, max(slot.generation) FILTER (WHERE slot.slot = ring.current_slot) AS generation,
              coalesce(bool_or(slot.sealed_at IS NOT NULL) FILTER (WHERE slot.slot = ring.current_slot), true) AS sealed
         FROM (SELECT 'queue' AS name, slot, generation, sealed_at FROM {schema}.queue_ring_slots
               UNION ALL
               SELECT 'claim', slot, generation, sealed_at FROM {schema}.claim_ring_slots
               UNION ALL
               SELECT 'lease', slot, generation, sealed_at FROM {schema}.lease_ring_slots) AS slot
        WHERE slot.name = ring.name) AS found
 WHERE found.slots <> ring.slot_count OR found.generation IS DISTINCT FROM ring.generation OR found.sealed
UNION ALL
SELECT 'ring_is_whole', format('queue ring: slot %%s has rows and was never opened', slot)
  FROM {schema}.queue_ring_slots
 WHERE generation IS NULL AND {schema}.queue_slot_has_rows(slot)

-- name: setting_is_legal
SELECT 'setting_is_legal' AS invariant, format('%%s is %%L', name, value) AS example
  FROM {schema}.settings
 WHERE CASE name WHEN 'carry_to' THEN value NOT IN ('floor', 'live')
                 WHEN 'failed_retention' THEN value !~ '^[0-9]{1,7}$' OR value::bigint > 3024000
                 ELSE false END
