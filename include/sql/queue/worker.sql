-- What a worker asks besides claiming and ending jobs.

-- name: await_jobs
SELECT {schema}.await_jobs(%(queue)s, %(backend_pid)s::integer)

-- name: stop_awaiting_jobs
SELECT {schema}.stop_awaiting_jobs(%(queue)s)::text

-- name: next_due
SELECT {schema}.next_due(%(queue)s)

-- name: wake_workers
SELECT {schema}.wake_workers(%(queue)s)::text

-- name: became
-- What stands recorded of each claim, in the order given; NULL: it is open, or its job has gone on since. A claim that was
-- moved out of the ring ended elsewhere, and one whose batch has left with its slot is told by what it has left behind.
SELECT CASE WHEN closed.outcome <> 'running' THEN closed.outcome::text
            WHEN closed.outcome = 'running' OR batch.run_lease IS NULL THEN coalesce(
                (SELECT done.state::text
                   FROM {schema}.done_entries AS done
                  WHERE done.job_id = given.job_id AND done.enqueue_xid IS NULL AND done.run_lease = given.run_lease
                  LIMIT 1),
                (SELECT left_ring.state
                   FROM (SELECT job_id, attempt, 'dead_lettered' AS state FROM {schema}.dlq_entries
                         UNION ALL
                         SELECT job_id, attempt, 'retryable' FROM {schema}.deferred_jobs WHERE state = 'retryable'
                         UNION ALL
                         SELECT job_id, attempt + 1, 'scheduled' FROM {schema}.deferred_jobs WHERE state = 'scheduled')
                        AS left_ring
                  WHERE left_ring.job_id = given.job_id AND left_ring.attempt = given.attempt
                  LIMIT 1),
                (SELECT done.state::text
                   FROM {schema}.find_body(given.job_id) AS body
                   JOIN {schema}.done_entries AS done
                     ON done.ready_slot = body.ready_slot AND done.lane_id = body.lane_id AND done.lane_seq = body.lane_seq
                  WHERE done.run_lease = given.run_lease
                  LIMIT 1))
       END AS outcome
  FROM unnest(%(claim_slots)s::integer[], %(run_leases)s::bigint[], %(ordinals)s::integer[], %(job_ids)s::bigint[],
              %(attempts)s::integer[])
       WITH ORDINALITY AS given (claim_slot, run_lease, ordinal, job_id, attempt, place)
  LEFT JOIN {schema}.lease_claim_batches AS batch
    ON batch.claim_slot = given.claim_slot AND batch.run_lease = given.run_lease AND batch.job_count > 0
  LEFT JOIN LATERAL (
       SELECT closure.outcome
         FROM {schema}.lease_claim_closures AS closure
        WHERE closure.claim_slot = given.claim_slot AND closure.ready_slot = batch.ready_slot
          AND closure.run_lease = given.run_lease
          AND (closure.ordinals IS NULL OR given.ordinal = ANY (closure.ordinals))
        LIMIT 1) AS closed ON true
 ORDER BY given.place
