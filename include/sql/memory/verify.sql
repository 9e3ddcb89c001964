-- The invariants of the memory, as questions for what breaks them: a row is a violation, and none is as it should be. The
-- numbers that are kept of a scope are compared by "miscounts" of reading.sql.

-- name: parked_or_formed
SELECT 'parked_or_formed' AS invariant, format('turn %%s of scope %%s', log_offset, scope) AS example
  FROM {schema}.observation
 WHERE parked_at IS NOT NULL AND (formed_at IS NOT NULL OR formation_attempts = 0)

-- name: offset_is_assigned
SELECT 'offset_is_assigned' AS invariant, format('turn %%s of scope %%s', turn.log_offset, turn.scope) AS example
  FROM {schema}.observation AS turn
  LEFT JOIN {schema}.watermark AS log USING (scope)
 WHERE turn.log_offset < 0 OR turn.log_offset > coalesce(log.log_offset, -1)

-- name: derived_row_has_a_source
-- What an erasure of the turn would not find.
SELECT 'derived_row_has_a_source' AS invariant, format('%%s %%s', part.derived_kind, part.derived_id) AS example
  FROM {schema}.projection_dependency AS part
  LEFT JOIN {schema}.observation AS turn ON turn.observation_id = part.source_id
 WHERE turn.observation_id IS NULL
UNION ALL
SELECT 'derived_row_has_a_source', format('memory %%s', found.memory_id)
  FROM {schema}.memory AS found
  LEFT JOIN {schema}.projection_dependency AS part ON part.derived_id = found.memory_id
 WHERE part.derived_id IS NULL
UNION ALL
SELECT 'derived_row_has_a_source', format('message %%s of turn %%s, which is gone', said.position, said.observation_id)
  FROM {schema}.turn_message AS said
  LEFT JOIN {schema}.observation AS turn USING (observation_id)
 WHERE turn.observation_id IS NULL

-- name: turn_has_messages
SELECT 'turn_has_messages' AS invariant, format('turn %%s of scope %%s', turn.log_offset, turn.scope) AS example
  FROM {schema}.observation AS turn
 WHERE NOT EXISTS (SELECT FROM {schema}.turn_message AS said WHERE said.observation_id = turn.observation_id)

-- name: claim_has_an_owner
-- A claim without an end never comes due again, and one of a turn that is formed or parked is nobody's.
SELECT 'claim_has_an_owner' AS invariant, format('turn %%s of scope %%s', log_offset, scope) AS example
  FROM {schema}.observation
 WHERE (claim_token IS NULL) <> (claimed_until IS NULL)
    OR (claim_token IS NOT NULL AND (formed_at IS NOT NULL OR parked_at IS NOT NULL))
UNION ALL
SELECT 'claim_has_an_owner', format('rebuild %%s', rebuild_id)
  FROM {schema}.rebuild
 WHERE (token IS NULL) <> (leased_until IS NULL) OR (token IS NOT NULL AND ended_at IS NOT NULL)

-- name: key_of_a_turn
-- A repeated append is told of a turn that is there, and a turn that was erased does not come back.
SELECT 'key_of_a_turn' AS invariant,
       format('the key of turn %%s is of one that is %%s', key.log_offset,
              CASE WHEN turn.observation_id IS NULL THEN 'gone' ELSE 'erased, and there' END) AS example
  FROM {schema}.turn_idempotency AS key
  LEFT JOIN {schema}.observation AS turn USING (observation_id)
 WHERE (key.erased_at IS NULL) <> (turn.observation_id IS NOT NULL)
