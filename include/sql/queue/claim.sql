-- Claim, in one round trip.

-- name: claim
SELECT job_id, kind, args, priority, attempt, max_attempts, run_lease, lease_until, claim_slot, ordinal
  FROM {schema}.claim_jobs(%(queue)s, %(limit)s::integer, %(lease_seconds)s::double precision)
