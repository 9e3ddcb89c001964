-- Taking turns for formation and giving them back.

-- name: due_scopes
-- Scopes with a turn that may be claimed now and that are not paused, in random order, so that in the long run none waits behind another. One
-- index probe a scope, however many turns it holds. Of several shards only those of one: a scope is in the same for ever.
WITH RECURSIVE head AS (
    (SELECT o.scope, o.next_attempt_at
       FROM {schema}.observation AS o
      WHERE o.formed_at IS NULL AND o.parked_at IS NULL
      ORDER BY o.scope, o.next_attempt_at, o.log_offset
      LIMIT 1)
    UNION ALL
    SELECT following.scope, following.next_attempt_at
      FROM head
     CROSS JOIN LATERAL (
            SELECT o.scope, o.next_attempt_at
              FROM {schema}.observation AS o
             WHERE o.formed_at IS NULL AND o.parked_at IS NULL AND o.scope > head.scope
             ORDER BY o.scope, o.next_attempt_at, o.log_offset
             LIMIT 1
           ) AS following
)
SELECT scope
  FROM head
 WHERE next_attempt_at <= now()
   AND (hashtextextended(scope, 0) & 9223372036854775807) %% %(shards)s::bigint = %(shard)s
   AND NOT EXISTS (
        SELECT FROM {schema}.scope_setting AS s WHERE s.scope = head.scope AND s.paused_at IS NOT NULL
       )
 ORDER BY random()
 LIMIT %(limit)s

-- name: claim
-- The oldest due turn of a scope, with its messages. The attempt is counted here, so that one which kills its worker
-- counts too; the end of a claim is when the turn comes due, so that a claim that was never answered is taken over here
-- as well. A turn that has had its attempts is returned without its content and left as it is: it is to be parked, under
-- locks that come before this one. A batch goes on behind its last turn of the scope (`after`): while an old snapshot is
-- open the entries of all turns that were claimed before stand at the head of the index.
-- While the circuit is open there is nothing to claim, nor while the scope or the extractor is paused. With a turn comes the number of the streak in which others have
-- failed: its success ends that. Null, as it nearly always is: nobody has, and a success says nothing new.
-- The commit need not reach the disk: a claim lost in a crash of the server is one that never was.
WITH circuit AS MATERIALIZED (
    SELECT c.opened_at, CASE WHEN c.failing > 0 THEN c.streak END AS streak
      FROM {schema}.formation_circuit AS c
     WHERE c.extractor = %(extractor)s AND c.extractor_version = %(version)s AND c.identity = %(identity)s
), due AS (
    SELECT o.observation_id, o.log_offset, o.next_attempt_at, o.formation_attempts,
           CASE WHEN o.claim_token IS NULL AND o.formation_error_class::text = ANY(%(at_once)s::text[]) THEN 1
                ELSE %(max_attempts)s END AS cap
      FROM {schema}.observation AS o
     WHERE o.scope = %(scope)s
       AND o.formed_at IS NULL
       AND o.parked_at IS NULL
       AND o.next_attempt_at <= now()
       AND (o.next_attempt_at, o.log_offset) > (%(after)s::timestamptz, %(after_offset)s)
       AND NOT EXISTS (SELECT FROM circuit WHERE circuit.opened_at IS NOT NULL)
       AND NOT EXISTS (
            SELECT FROM {schema}.scope_setting AS s WHERE s.scope = %(scope)s AND s.paused_at IS NOT NULL
           )
       AND NOT EXISTS (SELECT FROM {schema}.extractor_pause AS p WHERE p.extractor = %(extractor)s)
     ORDER BY o.next_attempt_at, o.log_offset
     LIMIT 1
       FOR NO KEY UPDATE OF o SKIP LOCKED
), claimed AS (
    UPDATE {schema}.observation AS o
       SET formation_attempts = o.formation_attempts + 1,
           formation_error_class = CASE WHEN o.claim_token IS NULL THEN o.formation_error_class
                                        ELSE 'worker_crash' END,
           formation_failed_at = CASE WHEN o.claim_token IS NULL THEN o.formation_failed_at ELSE o.claimed_until END,
           formation_error = CASE WHEN o.claim_token IS NULL THEN o.formation_error END,
           claim_token = %(token)s,
           claimed_until = now() + %(lease)s,
           next_attempt_at = now() + %(lease)s
      FROM due
     WHERE o.observation_id = due.observation_id
       AND due.formation_attempts < due.cap
    RETURNING o.observation_id, o.occurred_at, o.formation_attempts
)
SELECT due.observation_id, due.log_offset, due.next_attempt_at, claimed.occurred_at, claimed.formation_attempts,
       message.roles, message.contents, now() AS claimed_at, (SELECT circuit.streak FROM circuit) AS streak,
       set_config('synchronous_commit', 'off', true)
  FROM due
  LEFT JOIN claimed ON claimed.observation_id = due.observation_id
  LEFT JOIN LATERAL (
        SELECT array_agg(m.role::text ORDER BY m.position) AS roles, array_agg(m.content ORDER BY m.position) AS contents
          FROM {schema}.turn_message AS m
         WHERE m.observation_id = claimed.observation_id
       ) AS message ON true

-- name: hand_back
-- Claims whose work was cut short: their attempts do not count.
UPDATE {schema}.observation
   SET formation_attempts = formation_attempts - 1,
       claim_token = NULL,
       claimed_until = NULL,
       next_attempt_at = now()
 WHERE claim_token = ANY(%(tokens)s)
   AND formation_attempts > 0
   AND formed_at IS NULL
   AND parked_at IS NULL
