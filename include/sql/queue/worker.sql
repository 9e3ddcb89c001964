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
-- What stands recorded of each claim, in the order given; NULL: it is open.
SELECT (SELECT closure.outcome::text
          FROM {schema}.lease_claim_closures AS closure
         WHERE closure.claim_slot = given.claim_slot AND closure.ready_slot = batch.ready_slot
           AND closure.run_lease = given.run_lease
           AND (closure.ordinals IS NULL OR given.ordinal = ANY (closure.ordinals))
         LIMIT 1) AS outcome
  FROM unnest(%(claim_slots)s::integer[], %(run_leases)s::bigint[], %(ordinals)s::integer[])
       WITH ORDINALITY AS given (claim_slot, run_lease, ordinal, place)
  LEFT JOIN {schema}.lease_claim_batches AS batch USING (claim_slot, run_lease)
 ORDER BY given.place
