-- Looking, for people: one snapshot, nothing written, never what a job carries nor why it failed, which is the
-- application's own.

-- name: one_snapshot
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: hold_prunes
-- Before the snapshot: a TRUNCATE between the two would look as if jobs were gone.
LOCK TABLE {schema}.queue_terminal_count_deltas, {schema}.lease_claim_batches, {schema}.lease_claim_closures
        IN ACCESS SHARE MODE

-- name: configure
-- Statistics of a child that was just filled say nothing; rows are probed by their keys.
SELECT set_config('enable_seqscan', 'off', true) AS seqscan, set_config('enable_hashjoin', 'off', true) AS hashjoin,
       set_config('enable_mergejoin', 'off', true) AS mergejoin, set_config('jit', 'off', true) AS jit

-- name: ring
SELECT ring.current_slot, ring.generation, ring.slot_count, {schema}.counters_are_trusted() AS trusted
  FROM {schema}.queue_ring_state AS ring

-- name: slots
WITH ended AS MATERIALIZED (
    SELECT ready_slot, sum(jobs)::bigint AS terminal,
           coalesce(sum(jobs) FILTER (WHERE state = 'failed'), 0)::bigint AS failed
      FROM {schema}.queue_believed_counts
     WHERE state IN ('completed', 'failed', 'cancelled')
     GROUP BY ready_slot
)
SELECT slot.slot, slot.generation,
       CASE WHEN slot.slot = ring.current_slot THEN 'current'
            WHEN {schema}.queue_slot_has_rows(slot.slot) THEN 'sealed'
            ELSE 'empty' END AS state,
       slot.opened_at, slot.sealed_at,
       coalesce(ended.terminal, 0) AS terminal, coalesce(ended.failed, 0) AS failed
  FROM {schema}.queue_ring_slots AS slot
 CROSS JOIN {schema}.queue_ring_state AS ring
  LEFT JOIN ended ON ended.ready_slot = slot.slot
 ORDER BY slot.slot

-- name: segments
SELECT contents.segment,
       (SELECT coalesce(sum(counted.jobs), 0)::bigint
          FROM {schema}.queue_believed_counts AS counted
         WHERE counted.ready_slot = contents.segment AND counted.state = 'failed') AS failed,
       max(contents.expected_until) AS passes_at
  FROM {schema}.floor_segment_contents AS contents
 GROUP BY contents.segment
 ORDER BY passes_at

-- name: in_use
SELECT (SELECT coalesce(sum(waiting), 0)::bigint FROM {schema}.queue_waiting_rows({slot})) AS waiting,
       {schema}.queue_open_claims({slot}) AS running,
       (SELECT sum(pg_total_relation_size(child))::bigint
          FROM unnest(ARRAY['{schema}.ready_entries_{slot}', '{schema}.ready_tombstones_{slot}',
                            '{schema}.done_entries_{slot}', '{schema}.queue_terminal_count_deltas_{slot}']::regclass[])
               AS child) AS bytes

-- name: waiting
-- The oldest first, `per_lane` of each lane at most. What waits is what the proofs of a prune count as waiting.
SELECT ready.job_id, lane.queue, ready.kind, 'available' AS state, lane.priority, ready.attempt, ready.max_attempts,
       ready.created_at, ready.run_at, NULL::timestamptz AS attempted_at, NULL::timestamptz AS finalized_at
  FROM {schema}.queue_lanes AS lane
  LEFT JOIN LATERAL (
       SELECT batch.cursor_xid, batch.cursor_seq, batch.late_xids, batch.late_seqs
         FROM {schema}.lease_claim_batches AS batch
        WHERE batch.ready_slot = {slot} AND batch.lane_id = lane.lane_id
        ORDER BY batch.run_lease DESC
        LIMIT 1) AS newest
    ON NOT {schema}.queue_was_restored() AND newest.cursor_xid < pg_snapshot_xmax(pg_current_snapshot())
 CROSS JOIN LATERAL (
       (SELECT entry.*
          FROM {schema}.ready_entries_{slot} AS entry
          LEFT JOIN LATERAL (
               SELECT true AS found
                 FROM {schema}.ready_tombstones_{slot} AS stone
                WHERE stone.ready_slot = {slot} AND stone.lane_id = entry.lane_id
                  AND stone.enqueue_xid = entry.enqueue_xid AND stone.lane_seq = entry.lane_seq
                LIMIT 1) AS tombstone ON true
         WHERE entry.ready_slot = {slot} AND entry.lane_id = lane.lane_id
           AND (entry.enqueue_xid, entry.lane_seq) > (coalesce(newest.cursor_xid, '0'), coalesce(newest.cursor_seq, 0))
           AND tombstone.found IS NULL
         ORDER BY entry.enqueue_xid, entry.lane_seq
         LIMIT %(per_lane)s)
       UNION ALL
       (SELECT entry.*
          FROM unnest(newest.late_xids, newest.late_seqs) AS late (xid, seq)
          JOIN {schema}.ready_entries_{slot} AS entry
            ON entry.ready_slot = {slot} AND entry.lane_id = lane.lane_id
           AND entry.enqueue_xid = late.xid AND entry.lane_seq > late.seq
          LEFT JOIN LATERAL (
               SELECT true AS found
                 FROM {schema}.ready_tombstones_{slot} AS stone
                WHERE stone.ready_slot = {slot} AND stone.lane_id = entry.lane_id
                  AND stone.enqueue_xid = entry.enqueue_xid AND stone.lane_seq = entry.lane_seq
                LIMIT 1) AS tombstone ON true
         WHERE late.xid < newest.cursor_xid
           AND tombstone.found IS NULL
         LIMIT %(per_lane)s)) AS ready
 WHERE %(queue)s::text IS NULL OR lane.queue = %(queue)s
 ORDER BY ready.created_at, ready.job_id
 LIMIT %(limit)s

-- name: running
-- Those first that were claimed first. LATERAL with a LIMIT cannot become a join of whole tables.
SELECT job.job_id, lane.queue, coalesce(batch.kinds[job.ordinal], batch.kinds[1]) AS kind, 'running' AS state, lane.priority,
       coalesce(batch.attempts[job.ordinal], batch.attempts[1]) AS attempt,
       coalesce(batch.max_attempts[job.ordinal], batch.max_attempts[1]) AS max_attempts,
       body.created_at, body.run_at, batch.claimed_at AS attempted_at, NULL::timestamptz AS finalized_at
  FROM {schema}.queue_lanes AS lane
 CROSS JOIN {schema}.queue_ring_slots AS slot
 CROSS JOIN LATERAL (
       SELECT claimed.*
         FROM {schema}.lease_claim_batches AS claimed
        WHERE claimed.ready_slot = {slot} AND claimed.lane_id = lane.lane_id AND claimed.run_lease > slot.settled_batch_id
          AND claimed.job_count > (
              SELECT coalesce(sum(closure.job_count), 0)
                FROM {schema}.lease_claim_closures AS closure
               WHERE closure.claim_slot = claimed.claim_slot AND closure.ready_slot = {slot}
                 AND closure.run_lease = claimed.run_lease)
        ORDER BY claimed.run_lease
        LIMIT %(limit)s) AS batch
 CROSS JOIN LATERAL (
       SELECT open.job_id, open.ordinal
         FROM unnest(batch.job_ids) WITH ORDINALITY AS open (job_id, ordinal)
        WHERE NOT EXISTS (
              SELECT FROM {schema}.lease_claim_closures AS closure
               WHERE closure.claim_slot = batch.claim_slot AND closure.ready_slot = {slot}
                 AND closure.run_lease = batch.run_lease AND open.ordinal = ANY (closure.ordinals))
        ORDER BY open.ordinal
        LIMIT %(limit)s) AS job
 CROSS JOIN LATERAL (
       SELECT ready.created_at, ready.run_at
         FROM {schema}.ready_entries_{slot} AS ready
        WHERE ready.ready_slot = {slot} AND ready.lane_id = lane.lane_id
          AND ready.enqueue_xid = coalesce(batch.enqueue_xids[job.ordinal], batch.enqueue_xids[1])
          AND ready.lane_seq = batch.lane_seqs[job.ordinal]
        LIMIT 1) AS body
 WHERE slot.slot = {slot} AND (%(queue)s::text IS NULL OR lane.queue = %(queue)s)
 ORDER BY batch.claimed_at, job.job_id
 LIMIT %(limit)s

-- name: waiting_outside
SELECT moved.job_id, lane.queue, moved.kind, 'available' AS state, lane.priority, moved.attempt, moved.max_attempts,
       moved.created_at, moved.run_at, moved.attempted_at, NULL::timestamptz AS finalized_at
  FROM {schema}.deferred_jobs AS moved JOIN {schema}.queue_lanes AS lane USING (lane_id)
 WHERE moved.state = 'available' AND (%(queue)s::text IS NULL OR lane.queue = %(queue)s)
 ORDER BY moved.created_at, moved.job_id
 LIMIT %(limit)s

-- name: waiting_longest_outside
SELECT moved.job_id, lane.queue, moved.kind, 'available' AS state, lane.priority, moved.attempt, moved.max_attempts,
       moved.created_at, moved.run_at, moved.attempted_at, NULL::timestamptz AS finalized_at
  FROM {schema}.deferred_jobs AS moved JOIN {schema}.queue_lanes AS lane USING (lane_id)
 WHERE moved.state = 'available'
 ORDER BY moved.run_at
 LIMIT 1

-- name: running_outside
SELECT moved.job_id, lane.queue, moved.kind, 'running' AS state, lane.priority, moved.attempt, moved.max_attempts,
       moved.created_at, moved.run_at, moved.attempted_at, NULL::timestamptz AS finalized_at
  FROM {schema}.running_evacuated AS moved JOIN {schema}.queue_lanes AS lane USING (lane_id)
 WHERE %(queue)s::text IS NULL OR lane.queue = %(queue)s
 ORDER BY moved.attempted_at, moved.job_id
 LIMIT %(limit)s

-- name: outside
-- A job that is not in the ring: one whose time has not come, a dead letter, or one whose slot was needed while it ran.
SELECT deferred.job_id, lane.queue, deferred.kind, deferred.state::text AS state, lane.priority, deferred.attempt,
       deferred.max_attempts, deferred.created_at, deferred.run_at, deferred.attempted_at, NULL::timestamptz AS finalized_at,
       NULL::integer AS slot, NULL::bigint AS run_lease, NULL::timestamptz AS lease_until
  FROM {schema}.deferred_jobs AS deferred JOIN {schema}.queue_lanes AS lane USING (lane_id)
 WHERE deferred.job_id = %(job_id)s
UNION ALL
SELECT letter.job_id, lane.queue, letter.kind, 'dead_lettered', lane.priority, letter.attempt,
       letter.max_attempts, letter.created_at, letter.run_at, letter.attempted_at, letter.dead_at, NULL, NULL, NULL
  FROM {schema}.dlq_entries AS letter JOIN {schema}.queue_lanes AS lane USING (lane_id)
 WHERE letter.job_id = %(job_id)s
UNION ALL
SELECT moved.job_id, lane.queue, moved.kind, 'running', lane.priority, moved.attempt,
       moved.max_attempts, moved.created_at, moved.run_at, moved.attempted_at, NULL, NULL, moved.run_lease,
       moved.lease_until
  FROM {schema}.running_evacuated AS moved JOIN {schema}.queue_lanes AS lane USING (lane_id)
 WHERE moved.job_id = %(job_id)s

-- name: body
SELECT body.ready_slot, body.lane_id, body.enqueue_xid, body.lane_seq, {schema}.is_waiting(body) AS waits
  FROM {schema}.find_body(%(job_id)s) AS body
 WHERE body.lane_seq IS NOT NULL

-- name: with_body
-- No row for a body that its job has left behind: one that was tried again, or put off.
SELECT body.job_id, lane.queue, body.kind,
       CASE WHEN done.job_id IS NOT NULL THEN done.state::text
            WHEN %(waits)s THEN 'available' ELSE 'running' END AS state,
       lane.priority, coalesce(done.attempt, claim.attempt, body.attempt) AS attempt, body.max_attempts, body.created_at,
       body.run_at, coalesce(done.attempted_at, claim.claimed_at) AS attempted_at, done.finalized_at, body.ready_slot AS slot,
       coalesce(done.run_lease, claim.run_lease) AS run_lease, claim.lease_until
  FROM {schema}.ready_entries_{slot} AS body
  JOIN {schema}.queue_lanes AS lane USING (lane_id)
  LEFT JOIN LATERAL (
       SELECT *
         FROM {schema}.done_entries_{slot} AS ended
        WHERE ended.ready_slot = {slot} AND ended.lane_id = body.lane_id AND ended.lane_seq = body.lane_seq
        LIMIT 1) AS done ON true
  LEFT JOIN LATERAL (
       SELECT batch.run_lease, batch.claimed_at,
              coalesce(batch.attempts[place.ordinal], batch.attempts[1]) AS attempt,
              greatest(batch.lease_until, (
                  SELECT max(lease.lease_until)
                    FROM {schema}.leases AS lease
                   WHERE lease.run_lease = batch.run_lease AND lease.claim_slot = batch.claim_slot
                     AND (lease.ordinals IS NULL OR place.ordinal = ANY (lease.ordinals)))) AS lease_until
         FROM {schema}.lease_claim_batches AS batch
        CROSS JOIN LATERAL array_position(batch.lane_seqs, body.lane_seq) AS place (ordinal)
        WHERE batch.ready_slot = {slot} AND batch.lane_id = body.lane_id AND place.ordinal IS NOT NULL
          AND NOT EXISTS (
              SELECT FROM {schema}.lease_claim_closures AS closure
               WHERE closure.claim_slot = batch.claim_slot AND closure.ready_slot = {slot}
                 AND closure.run_lease = batch.run_lease
                 AND (closure.ordinals IS NULL OR place.ordinal = ANY (closure.ordinals)))
        ORDER BY batch.run_lease DESC
        LIMIT 1) AS claim ON done.job_id IS NULL AND NOT %(waits)s
 WHERE body.ready_slot = {slot} AND body.lane_id = %(lane_id)s AND body.enqueue_xid = %(enqueue_xid)s::xid8
   AND body.lane_seq = %(lane_seq)s
   AND (done.job_id IS NOT NULL OR %(waits)s OR claim.run_lease IS NOT NULL)

-- name: alone
-- A terminal row that stands alone.
SELECT done.job_id, lane.queue, done.kind, done.state::text AS state, lane.priority, done.attempt, done.max_attempts,
       done.created_at, done.run_at, done.attempted_at, done.finalized_at, done.ready_slot AS slot, done.run_lease,
       NULL::timestamptz AS lease_until
  FROM {schema}.done_entries AS done JOIN {schema}.queue_lanes AS lane USING (lane_id)
 WHERE done.job_id = %(job_id)s AND done.enqueue_xid IS NULL
 ORDER BY done.lane_seq DESC
 LIMIT 1
