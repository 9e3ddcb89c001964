-- Complete, fail, snooze and cancel, each in one round trip.

-- name: complete
SELECT {schema}.complete_jobs(%(claim_slots)s::integer[], %(run_leases)s::bigint[], %(sizes)s::integer[],
                              %(ordinals)s::integer[], %(job_ids)s::bigint[])

-- name: fail
-- The states as text: a driver does not know the namespace's own type.
SELECT {schema}.fail_jobs(%(claim_slots)s::integer[], %(run_leases)s::bigint[], %(sizes)s::integer[],
                          %(ordinals)s::integer[], %(job_ids)s::bigint[], %(errors)s::text[],
                          %(terminal)s::boolean)::text[]

-- name: snooze
SELECT {schema}.snooze_jobs(%(claim_slots)s::integer[], %(run_leases)s::bigint[], %(sizes)s::integer[],
                            %(ordinals)s::integer[], %(job_ids)s::bigint[], %(until)s::timestamptz)

-- name: cancel
SELECT {schema}.cancel_job(%(job_id)s::bigint)
