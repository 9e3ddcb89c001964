-- Taking the family away from a namespace. All of it is one transaction.

-- name: lock
-- In the order of everybody else's locks; nobody reads or writes what is counted until it is gone.
LOCK TABLE {schema}.watermark, {schema}.watermark_formed, {schema}.formation_circuit, {schema}.observation,
           {schema}.turn_message, {schema}.turn_idempotency, {schema}.projection_dependency, {schema}.memory,
           {schema}.erasure_request, {schema}.rebuild
        IN ACCESS EXCLUSIVE MODE

-- name: in_hand
-- What workers have taken and not answered: turns, and rebuilds.
SELECT (SELECT count(*) FROM {schema}.observation WHERE claim_token IS NOT NULL AND claimed_until > clock_timestamp())
           AS turns,
       (SELECT count(*) FROM {schema}.rebuild WHERE leased_until > clock_timestamp()) AS rebuilds

-- name: contents
SELECT 'scope' AS kind, count(*) AS number FROM {schema}.watermark
UNION ALL SELECT 'observation', count(*) FROM {schema}.observation
UNION ALL SELECT 'parked', count(*) FROM {schema}.observation WHERE parked_at IS NOT NULL
UNION ALL SELECT 'turn_message', count(*) FROM {schema}.turn_message
UNION ALL SELECT 'memory', count(*) FROM {schema}.memory
UNION ALL SELECT 'idempotency_digest', count(*) FROM {schema}.turn_idempotency
UNION ALL SELECT 'erasure_request', count(*) FROM {schema}.erasure_request

-- name: forget_settings
DELETE FROM {schema}.settings WHERE name IN ('digest_key', 'memory_backlog_cap')
