-- Claim, in one round trip.

-- name: claim
-- LATERAL: without a row from the left side, which there is not while the queue is paused, the function is not called.
SELECT priority, claim_slot, run_lease, lease_until, job_ids, attempts, max_attempts, kinds, args
  FROM (SELECT %(queue)s::text AS queue
         WHERE NOT EXISTS (SELECT FROM {schema}.queue_settings
                            WHERE queue = %(queue)s AND paused_at IS NOT NULL)
        OFFSET 0) AS open
 CROSS JOIN LATERAL {schema}.claim_jobs(open.queue, %(limit)s::integer, %(lease_seconds)s::double precision)
