-- The lease ring: what rescue has to look at. First what rotate asks, then what one prune does to a slot.

-- name: lock_state
SELECT current_slot, generation, slot_count FROM {schema}.lease_ring_state FOR UPDATE

-- name: look
-- Nothing is gained by sealing a slot of which all rows are needed: they would be moved on and on.
SELECT ring.current_slot, ring.generation, {schema}.lease_slot_has_ended_ones(ring.current_slot) AS holds_rows,
       EXISTS (SELECT FROM {schema}.lease_ring_slots AS slot
                WHERE slot.slot <> ring.current_slot AND NOT {schema}.lease_slot_has_rows(slot.slot)) AS has_empty
  FROM {schema}.lease_ring_state AS ring

-- name: empty_slots
SELECT slot.slot
  FROM {schema}.lease_ring_slots AS slot, {schema}.lease_ring_state AS ring
 WHERE slot.slot <> ring.current_slot AND NOT {schema}.lease_slot_has_rows(slot.slot)

-- name: seal
UPDATE {schema}.lease_ring_slots
   SET sealed_at = clock_timestamp(),
       reclaimed_at = CASE WHEN NOT {schema}.lease_slot_has_rows(slot) THEN clock_timestamp() END
 WHERE slot = %(slot)s

-- name: open
UPDATE {schema}.lease_ring_slots
   SET generation = %(generation)s, opened_at = clock_timestamp(), sealed_at = NULL, reclaimed_at = NULL
 WHERE slot = %(slot)s

-- name: advance
UPDATE {schema}.lease_ring_state SET current_slot = %(slot)s, generation = %(generation)s

-- name: candidates
SELECT slot.slot, slot.generation
  FROM {schema}.lease_ring_slots AS slot, {schema}.lease_ring_state AS ring
 WHERE slot.slot <> ring.current_slot AND {schema}.lease_slot_has_rows(slot.slot)
 ORDER BY slot.generation NULLS FIRST, slot.slot

-- name: lock_slot
SELECT generation, {schema}.lease_slot_has_rows({slot}) AS holds_rows
  FROM {schema}.lease_ring_slots
 WHERE slot = {slot}
   FOR UPDATE

-- name: hold_claims
-- Which batches are open is read of all claim slots. Their locks come before those of leases.
LOCK TABLE {schema}.lease_claim_batches, {schema}.lease_claim_closures IN ACCESS SHARE MODE

-- name: hold_all
LOCK TABLE {schema}.leases_{slot} IN ACCESS EXCLUSIVE MODE

-- name: carry
INSERT INTO {schema}.leases (lease_slot, claim_slot, run_lease, lease_until, ordinals)
SELECT %(current_slot)s, claim_slot, run_lease, lease_until, ordinals
  FROM {schema}.leases_{slot}
 WHERE {schema}.batch_is_open(claim_slot, run_lease)

-- name: filled
SELECT pg_relation_size('{schema}.leases_{slot}') > 0 AS truncate_leases

-- name: truncate_leases
TRUNCATE {schema}.leases_{slot}

-- name: reclaimed
UPDATE {schema}.lease_ring_slots SET reclaimed_at = clock_timestamp() WHERE slot = {slot}

-- name: hold_prunes
-- For a look, before its snapshot: a TRUNCATE between the two would look as if rows were gone.
LOCK TABLE {schema}.lease_claim_batches, {schema}.lease_claim_closures, {schema}.leases IN ACCESS SHARE MODE

-- name: state
SELECT current_slot, generation, slot_count FROM {schema}.lease_ring_state

-- name: slots
SELECT slot.slot, slot.generation,
       CASE WHEN slot.slot = ring.current_slot THEN 'current'
            WHEN {schema}.lease_slot_has_rows(slot.slot) THEN 'sealed'
            ELSE 'empty' END AS state,
       slot.opened_at, slot.sealed_at
  FROM {schema}.lease_ring_slots AS slot, {schema}.lease_ring_state AS ring
 ORDER BY slot.slot

-- name: in_use
SELECT count(*) AS held, count(*) FILTER (WHERE {schema}.batch_is_open(claim_slot, run_lease)) AS needed,
       pg_total_relation_size('{schema}.leases_{slot}') AS bytes
  FROM {schema}.leases_{slot}
