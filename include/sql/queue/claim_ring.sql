-- The claim ring: batches of claims and what became of them. First what rotate asks, then what one prune does to a slot.

-- name: lock_state
SELECT current_slot, generation, slot_count FROM {schema}.claim_ring_state FOR UPDATE

-- name: look
-- Nothing is gained by sealing a slot in which nothing was claimed.
SELECT ring.current_slot, ring.generation, {schema}.claim_slot_has_claims(ring.current_slot) AS holds_rows,
       EXISTS (SELECT FROM {schema}.claim_ring_slots AS slot
                WHERE slot.slot <> ring.current_slot AND NOT {schema}.claim_slot_has_claims(slot.slot)) AS has_empty
  FROM {schema}.claim_ring_state AS ring

-- name: empty_slots
-- One that holds cursors in force and nothing else is as good as empty.
SELECT slot.slot
  FROM {schema}.claim_ring_slots AS slot, {schema}.claim_ring_state AS ring
 WHERE slot.slot <> ring.current_slot AND NOT {schema}.claim_slot_has_claims(slot.slot)

-- name: seal
UPDATE {schema}.claim_ring_slots
   SET sealed_at = clock_timestamp(),
       reclaimed_at = CASE WHEN NOT {schema}.claim_slot_has_claims(slot) THEN clock_timestamp() END
 WHERE slot = %(slot)s

-- name: open
UPDATE {schema}.claim_ring_slots
   SET generation = %(generation)s, opened_at = clock_timestamp(), sealed_at = NULL, reclaimed_at = NULL
 WHERE slot = %(slot)s

-- name: advance
UPDATE {schema}.claim_ring_state SET current_slot = %(slot)s, generation = %(generation)s

-- name: candidates
SELECT slot.slot, slot.generation
  FROM {schema}.claim_ring_slots AS slot, {schema}.claim_ring_state AS ring
 WHERE slot.slot <> ring.current_slot AND {schema}.claim_slot_has_claims(slot.slot)
 ORDER BY slot.generation NULLS FIRST, slot.slot

-- name: lock_slot
SELECT generation, {schema}.claim_slot_has_claims({slot}) AS holds_rows
  FROM {schema}.claim_ring_slots
 WHERE slot = {slot}
   FOR UPDATE

-- name: proofs
-- Sums, not rows: a batch and all its closures stand in one claim slot, and no claim is closed twice.
SELECT (SELECT coalesce(sum(job_count), 0)::bigint FROM {schema}.lease_claim_batches_{slot})
       - (SELECT coalesce(sum(job_count), 0)::bigint FROM {schema}.lease_claim_closures_{slot}) AS open_claims

-- name: probe
LOCK TABLE {schema}.lease_claim_batches_{slot}, {schema}.lease_claim_closures_{slot} IN ACCESS EXCLUSIVE MODE NOWAIT

-- name: hold_writers
-- A claim that was told of this slot before it was sealed may still come to append to it, and waits from here on.
LOCK TABLE {schema}.lease_claim_batches_{slot}, {schema}.lease_claim_closures_{slot} IN SHARE ROW EXCLUSIVE MODE

-- name: carry
SELECT {schema}.carry_cursors({slot}, %(current_slot)s) AS cursors

-- name: hold_all
LOCK TABLE {schema}.lease_claim_batches_{slot}, {schema}.lease_claim_closures_{slot} IN ACCESS EXCLUSIVE MODE

-- name: filled
SELECT pg_relation_size('{schema}.lease_claim_batches_{slot}') > 0 AS truncate_batches,
       pg_relation_size('{schema}.lease_claim_closures_{slot}') > 0 AS truncate_closures

-- name: truncate_batches
TRUNCATE {schema}.lease_claim_batches_{slot}

-- name: truncate_closures
TRUNCATE {schema}.lease_claim_closures_{slot}

-- name: drop_leases
-- No rescue could ever lock their batch again. Under the exclusive lock, since who puts a batch under watch reads it first.
DELETE FROM {schema}.leases WHERE claim_slot = {slot}

-- name: reclaimed
UPDATE {schema}.claim_ring_slots SET reclaimed_at = clock_timestamp() WHERE slot = {slot}

-- name: hold_prunes
-- For a look, before its snapshot: a TRUNCATE between the two would look as if rows were gone.
LOCK TABLE {schema}.lease_claim_batches, {schema}.lease_claim_closures IN ACCESS SHARE MODE

-- name: state
SELECT current_slot, generation, slot_count FROM {schema}.claim_ring_state

-- name: slots
SELECT slot.slot, slot.generation,
       CASE WHEN slot.slot = ring.current_slot THEN 'current'
            WHEN {schema}.claim_slot_has_claims(slot.slot) THEN 'sealed'
            ELSE 'empty' END AS state,
       slot.opened_at, slot.sealed_at
  FROM {schema}.claim_ring_slots AS slot, {schema}.claim_ring_state AS ring
 ORDER BY slot.slot

-- name: in_use
-- Cursors, which are carried as batches of no jobs, are no claims.
SELECT (SELECT coalesce(sum(job_count), 0)::bigint FROM {schema}.lease_claim_batches_{slot}) AS held,
       (SELECT coalesce(sum(job_count), 0)::bigint FROM {schema}.lease_claim_batches_{slot})
           - (SELECT coalesce(sum(job_count), 0)::bigint FROM {schema}.lease_claim_closures_{slot}) AS needed,
       pg_total_relation_size('{schema}.lease_claim_batches_{slot}')
           + pg_total_relation_size('{schema}.lease_claim_closures_{slot}') AS bytes
