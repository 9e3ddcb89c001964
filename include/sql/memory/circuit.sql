-- Circuits: one row for each extractor that ever failed. Lock order: a row here, then observations by offset; never a row
-- here together with one of watermark_formed.

-- name: look
-- Without a lock: what was true a moment ago.
SELECT c.*, clock_timestamp() AS now
  FROM {schema}.formation_circuit AS c
 WHERE c.extractor = %(extractor)s AND c.extractor_version = %(version)s AND c.identity = %(identity)s

-- name: lock
SELECT c.*, clock_timestamp() AS now
  FROM {schema}.formation_circuit AS c
 WHERE c.extractor = %(extractor)s AND c.extractor_version = %(version)s AND c.identity = %(identity)s
   FOR NO KEY UPDATE

-- name: make
INSERT INTO {schema}.formation_circuit (extractor, extractor_version, identity)
VALUES (%(extractor)s, %(version)s, %(identity)s)
    ON CONFLICT (extractor, extractor_version, identity) DO NOTHING

-- name: store
UPDATE {schema}.formation_circuit
   SET streak = %(streak)s,
       answered = %(answered)s,
       asked = %(asked)s,
       failing = %(failing)s,
       failed_at = %(failed_at)s,
       opened_at = %(opened_at)s,
       next_probe_at = %(next_probe_at)s,
       closed_at = %(closed_at)s,
       misses = %(misses)s,
       error_class = %(error_class)s::{schema}.formation_error_class,
       prober = %(prober)s,
       probing_until = %(probing_until)s,
       canaries = %(canaries)s
 WHERE circuit_id = %(circuit_id)s

-- name: probe_now
UPDATE {schema}.formation_circuit
   SET next_probe_at = clock_timestamp()
 WHERE opened_at IS NOT NULL AND next_probe_at > clock_timestamp()

-- name: give_back
-- Under the circuit's lock: the attempts of failures that nothing has answered. The provider failed, not the turns, so
-- nothing of the failure stays on them, and they come due when the circuit lets turns through. A claim that is running
-- keeps its own attempt: it was not recorded as a failure.
WITH given AS (
    SELECT o.observation_id
      FROM {schema}.observation AS o
     WHERE o.streak_circuit = %(circuit_id)s
       AND o.streak > %(answered)s
       AND o.formed_at IS NULL
       AND o.parked_at IS NULL
     ORDER BY o.scope, o.log_offset
       FOR NO KEY UPDATE
)
UPDATE {schema}.observation AS o
   SET formation_attempts = greatest(o.formation_attempts - o.streak_attempts, 0),
       formation_failed_at = NULL,
       formation_error_class = NULL,
       formation_error = NULL,
       next_attempt_at = CASE WHEN o.claim_token IS NULL THEN clock_timestamp() ELSE o.next_attempt_at END,
       streak_circuit = NULL,
       streak = NULL,
       streak_attempts = 0
  FROM given
 WHERE o.observation_id = given.observation_id

-- name: circuits
SELECT c.extractor, c.extractor_version, c.identity,
       CASE WHEN c.opened_at IS NULL THEN 'closed' ELSE 'open' END AS state,
       c.opened_at,
       c.next_probe_at,
       coalesce(c.probing_until > now(), false) AS probing,
       CASE WHEN c.opened_at IS NULL THEN NULL ELSE c.error_class::text END AS error_class,
       CASE WHEN c.opened_at IS NULL THEN 0 ELSE c.misses END AS failures,
       c.failing,
       c.closed_at,
       c.canaries
  FROM {schema}.formation_circuit AS c
 ORDER BY c.extractor, c.extractor_version, c.identity
