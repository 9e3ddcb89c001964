-- Figures of a namespace for people: what operators report beside their own, and what the page shows.
--
-- Each statement is one snapshot and a transaction of its own, so that no lock on a slot's children outlasts it: a prune
-- wants them for itself.

-- name: pruned_failed_total
-- Failed jobs dropped past their retention, ever. Never decreases.
SELECT coalesce(sum(pruned_failed_count), 0)::bigint AS pruned_failed_total FROM {schema}.queue_terminal_rollups

-- name: failed_totals
-- Failed jobs that can be put back now, and those that never can: dropped past their retention, ever.
SELECT (SELECT coalesce(sum(jobs), 0)::bigint FROM {schema}.queue_believed_counts WHERE state = 'failed')  AS failed_total,
       (SELECT coalesce(sum(pruned_failed_count), 0)::bigint FROM {schema}.queue_terminal_rollups)   AS pruned_failed_total

-- name: memory_totals
-- One snapshot over all scopes. A scope that nobody has formed anything of has no row on the formed side.
SELECT count(*)                                                           AS scopes,
       coalesce(sum(log_offset + 1), 0)::bigint                           AS stored,
       coalesce(sum(formed), 0)::bigint                                   AS formed,
       coalesce(sum(parked), 0)::bigint                                   AS parked,
       coalesce(sum(erased), 0)::bigint                                   AS erased,
       (coalesce(sum(log_offset + 1), 0)
           - coalesce(sum(formed + parked + erased), 0))::bigint          AS backlog,
       count(*) FILTER (WHERE coalesce(formed_offset, -1) < log_offset)   AS scopes_behind
  FROM {schema}.watermark
  LEFT JOIN {schema}.watermark_formed USING (scope)

-- name: namespaces
-- Schemas with a ledger of migrations that this login may read. Another product's table of that name has no family.
SELECT n.nspname
  FROM pg_catalog.pg_class AS c
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relname = 'schema_migration'
   AND c.relkind = 'r'
   AND EXISTS (SELECT FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.oid AND a.attname = 'family')
   AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
   AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
 ORDER BY n.nspname

-- name: families
SELECT DISTINCT family FROM {schema}.schema_migration ORDER BY family

-- name: read_committed
-- Whatever the login's default is: a statement that kept its snapshot while it waited for a prune would find a slot empty.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- name: queues
-- Failed jobs that were dropped, and dead letters that were purged, are in the rollup.
WITH live AS (
    SELECT lane.queue,
           sum(jobs) FILTER (WHERE state = 'available')                          AS available,
           sum(jobs) FILTER (WHERE state = 'running')                            AS running,
           sum(jobs) FILTER (WHERE state IN ('scheduled', 'retryable'))          AS deferred,
           sum(jobs) FILTER (WHERE state = 'failed')                             AS failed,
           sum(jobs) FILTER (WHERE state IN ('completed', 'failed', 'cancelled')) AS terminal,
           sum(jobs) FILTER (WHERE state = 'dead_lettered')                      AS dead_lettered
      FROM {schema}.queue_believed_counts JOIN {schema}.queue_lanes AS lane USING (lane_id)
     GROUP BY lane.queue
), known AS (
    SELECT queue FROM {schema}.queue_lanes
    UNION
    SELECT queue FROM {schema}.queue_settings
    UNION
    SELECT queue FROM {schema}.queue_terminal_rollups
)
SELECT queue,
       coalesce(live.available, 0)::bigint                                       AS available,
       coalesce(live.running, 0)::bigint                                         AS running,
       coalesce(live.deferred, 0)::bigint                                       AS deferred,
       coalesce(live.failed, 0)::bigint                                          AS failed,
       (coalesce(live.terminal, 0) + coalesce(rollup.pruned_completed_count, 0)
           + coalesce(rollup.pruned_failed_count, 0))::bigint                    AS terminal,
       coalesce(rollup.pruned_failed_count, 0)::bigint                           AS pruned_failed,
       coalesce(live.dead_lettered, 0)::bigint                                   AS dead_lettered,
       coalesce(rollup.purged_dead_letters, 0)::bigint                           AS purged_dead_letters
  FROM known
  LEFT JOIN live USING (queue)
  LEFT JOIN {schema}.queue_terminal_rollups AS rollup USING (queue)
 ORDER BY queue

-- name: slots
-- A slot is empty when none of its children has a page: TRUNCATE leaves none. Of jobs that have not ended the ledger
-- knows the slot only in sum, since some of them stand outside of the ring: they are counted as a prune counts them.
WITH ended AS (
    SELECT ready_slot AS slot, sum(jobs)::bigint AS jobs
      FROM {schema}.queue_believed_counts
     WHERE state IN ('completed', 'failed', 'cancelled')
     GROUP BY ready_slot
), pages AS (
    SELECT slot,
           sum(pg_catalog.pg_relation_size(
               pg_catalog.to_regclass(pg_catalog.format('%%I.%%I', %(namespace)s::text, parent || '_' || slot))
           ))::bigint AS bytes
      FROM {schema}.queue_ring_slots,
           unnest(ARRAY['ready_entries', 'ready_tombstones', 'done_entries', 'queue_terminal_count_deltas']) AS parent
     GROUP BY slot
)
SELECT slot.slot,
       slot.generation,
       CASE WHEN slot.slot = ring.current_slot THEN 'open'
            WHEN pages.bytes > 0 THEN 'sealed'
            ELSE 'empty' END        AS state,
       (coalesce(ended.jobs, 0) + {schema}.queue_open_claims(slot.slot)
           + (SELECT coalesce(sum(waiting), 0) FROM {schema}.queue_waiting_rows(slot.slot)))::bigint AS jobs,
       coalesce(pages.bytes, 0)     AS bytes
  FROM {schema}.queue_ring_slots AS slot
 CROSS JOIN {schema}.queue_ring_state AS ring
  LEFT JOIN ended USING (slot)
  LEFT JOIN pages USING (slot)
 ORDER BY slot.slot

-- name: scopes
-- The scopes that most want a look, first.
SELECT scope,
       log_offset + 1                                                      AS stored,
       nullif(formed_offset, -1)                                           AS formed,
       nullif(formed_strict_offset, -1)                                    AS formed_strict,
       coalesce(parked, 0)                                                 AS parked,
       log_offset + 1 - coalesce(formed, 0) - coalesce(parked, 0) - coalesce(erased, 0) AS backlog
  FROM {schema}.watermark
  LEFT JOIN {schema}.watermark_formed USING (scope)
 ORDER BY backlog DESC, parked DESC, scope
 LIMIT %(limit)s
