-- Leases: extend them, and rescue what they have left.

-- name: extend
SELECT {schema}.extend_jobs(%(claim_slots)s::integer[], %(run_leases)s::bigint[], %(sizes)s::integer[],
                            %(ordinals)s::integer[], %(job_ids)s::bigint[], %(lease_seconds)s::double precision)

-- name: watch
SELECT {schema}.watch_leases(%(limit)s::integer)

-- name: clock
SELECT clock_timestamp()

-- name: rescue_evacuated
SELECT rescued, failed, dead_lettered FROM {schema}.rescue_evacuated(%(now)s::timestamptz, %(limit)s::integer)

-- name: rescue
SELECT rescued, failed, dead_lettered, last_until, last_lease
  FROM {schema}.rescue_jobs(%(now)s::timestamptz, coalesce(%(after_until)s::timestamptz, '-infinity'),
                            %(after_lease)s::bigint, %(limit)s::integer)
