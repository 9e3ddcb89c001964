-- What rotate and prune of every ring share, and what rotate asks of the queue ring.

-- name: read_committed
-- A proof under locks must see what was committed while it waited for them, whatever the session's default is.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- name: configure
-- jit: estimates of a child that was just filled are wild, and compiling a plan takes longer than running it.
SELECT set_config('lock_timeout', %(lock_timeout)s, true) AS lock_timeout, set_config('jit', 'off', true) AS jit

-- name: read_only
-- A rehearsal could not write if it tried.
SET TRANSACTION READ ONLY

-- name: look_anew
-- Within a transaction the server shows other sessions as they were when it was first asked.
SELECT pg_stat_clear_snapshot()

-- name: open_snapshots
-- Other sessions of this database that hold a snapshot. The type and the times of another role's are hidden from us, unless we
-- may read all statistics; that there is a snapshot is not.
SELECT pid, backend_xmin::text AS xmin, xact_start
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL
   AND coalesce(backend_type, 'client backend') = 'client backend'

-- name: prepared_transactions
SELECT count(*) AS count FROM pg_prepared_xacts WHERE database = current_database()

-- name: try_action
-- One maintainer an action: a second one is told so at once instead of waiting for the first.
SELECT pg_try_advisory_xact_lock(%(key)s) AS granted

-- name: lock_state
-- Before any other lock. Who holds it knows that the current slot cannot move.
SELECT current_slot, generation, slot_count FROM {schema}.queue_ring_state FOR UPDATE

-- name: look
-- Without a lock or a transaction id: an idle ring must write nothing.
SELECT ring.current_slot, ring.generation, bool_or(child.holds_rows) AS holds_rows,
       bool_or(slot.slot <> ring.current_slot AND NOT child.holds_rows) AS has_empty
  FROM {schema}.queue_ring_state AS ring, {schema}.queue_ring_slots AS slot,
       LATERAL (SELECT {schema}.queue_slot_has_rows(slot.slot) AS holds_rows OFFSET 0) AS child
 GROUP BY ring.current_slot, ring.generation

-- name: empty_slots
SELECT slot.slot
  FROM {schema}.queue_ring_slots AS slot, {schema}.queue_ring_state AS ring
 WHERE slot.slot <> ring.current_slot AND NOT {schema}.queue_slot_has_rows(slot.slot)

-- name: seal
-- A slot that is sealed without a row in it needs no prune.
UPDATE {schema}.queue_ring_slots
   SET sealed_at = clock_timestamp(),
       reclaimed_at = CASE WHEN NOT {schema}.queue_slot_has_rows(slot) THEN clock_timestamp() END
 WHERE slot = %(slot)s

-- name: open
UPDATE {schema}.queue_ring_slots
   SET generation = %(generation)s, opened_at = clock_timestamp(), sealed_at = NULL, reclaimed_at = NULL
 WHERE slot = %(slot)s

-- name: advance
UPDATE {schema}.queue_ring_state SET current_slot = %(slot)s, generation = %(generation)s

-- name: slot_count
SELECT slot_count FROM {schema}.queue_ring_state

-- name: add_slot
-- The new partitions need their parents to themselves for a moment: whoever inserts into one of these waits, and nobody who
-- reads or writes the child of one slot.
SELECT {schema}.make_queue_slot({slot}), {schema}.make_ready_reader({slot})

-- name: register_slot
INSERT INTO {schema}.queue_ring_slots (slot) VALUES ({slot})

-- name: count_slot
UPDATE {schema}.queue_ring_state SET slot_count = slot_count + 1
