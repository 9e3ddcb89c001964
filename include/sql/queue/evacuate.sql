-- Evacuation: a look that writes nothing, then a chunk at a time.

-- name: slots
-- In the order in which they were opened.
SELECT slot.slot, slot.slot = ring.current_slot AS current, {schema}.queue_slot_has_rows(slot.slot) AS holds_rows
  FROM {schema}.queue_ring_slots AS slot, {schema}.queue_ring_state AS ring
 ORDER BY slot.generation NULLS FIRST, slot.slot

-- name: pins
SELECT (SELECT coalesce(sum(waiting), 0)::bigint
          FROM {schema}.queue_waiting_rows({slot}, %(limit)s)) AS waiting,
       {schema}.queue_open_claims({slot}) AS running

-- name: holds
-- Whether there are so many bodies in the slot; it reads no more than that.
SELECT count(*) >= %(bodies)s AS holds FROM (SELECT FROM {schema}.ready_entries_{slot} LIMIT %(bodies)s) AS body

-- name: waiting
SELECT {schema}.evacuate_waiting({slot}, %(limit)s::integer) AS moved

-- name: running
SELECT {schema}.evacuate_running({slot}, %(limit)s::integer) AS moved
