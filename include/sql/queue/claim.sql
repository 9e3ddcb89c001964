-- Claim, in one round trip.

-- name: claim
SELECT priority, claim_slot, run_lease, lease_until, job_ids, attempts, max_attempts, kinds, args
  FROM {schema}.claim_jobs(%(queue)s::text, %(limit)s::integer, %(lease_seconds)s::double precision)
