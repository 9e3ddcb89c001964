-- What a namespace and its queues decide once.

-- name: namespace_settings
SELECT name, value FROM {schema}.settings WHERE name IN ('failed_retention', 'carry_to')

-- name: retentions
-- What queues have decided for themselves. A prune reads it once: a setting that is changed between its census and its carry
-- would make the one count what the other does not do.
SELECT queue, failed_retention_seconds FROM {schema}.queue_settings WHERE failed_retention_seconds IS NOT NULL

-- name: set_namespace
INSERT INTO {schema}.settings AS setting (name, value)
SELECT given.name, given.value
  FROM (VALUES ('failed_retention', %(failed_retention)s::text), ('carry_to', %(carry_to)s::text)) AS given (name, value)
 WHERE given.value IS NOT NULL
ON CONFLICT (name) DO UPDATE SET value = excluded.value, updated_at = clock_timestamp()

-- name: set_queue
INSERT INTO {schema}.queue_settings AS setting
       (queue, failed_retention_seconds, dead_letter, dead_letter_retention_seconds, enqueue_shards)
VALUES (%(queue)s, %(failed_retention_seconds)s, coalesce(%(dead_letter)s, false), %(dead_letter_retention_seconds)s,
        coalesce(%(enqueue_shards)s, 1))
ON CONFLICT (queue) DO UPDATE
   SET failed_retention_seconds = CASE WHEN NOT %(failed_retention_unset)s
                                       THEN coalesce(%(failed_retention_seconds)s, setting.failed_retention_seconds) END,
       dead_letter = coalesce(%(dead_letter)s, setting.dead_letter),
       dead_letter_retention_seconds = CASE WHEN NOT %(dead_letter_retention_unset)s
                                            THEN coalesce(%(dead_letter_retention_seconds)s,
                                                          setting.dead_letter_retention_seconds) END,
       enqueue_shards = coalesce(%(enqueue_shards)s, setting.enqueue_shards)
RETURNING queue, failed_retention_seconds, dead_letter, dead_letter_retention_seconds, enqueue_shards, paused_at

-- name: pause
-- A queue that is known by its jobs alone gets settings; one that is not known at all gets none.
INSERT INTO {schema}.queue_settings AS setting (queue, paused_at)
SELECT %(queue)s, clock_timestamp()
 WHERE EXISTS (SELECT FROM {schema}.queue_lanes WHERE queue = %(queue)s)
    OR EXISTS (SELECT FROM {schema}.queue_settings WHERE queue = %(queue)s)
    OR EXISTS (SELECT FROM {schema}.queue_terminal_rollups WHERE queue = %(queue)s)
ON CONFLICT (queue) DO UPDATE SET paused_at = coalesce(setting.paused_at, excluded.paused_at)
RETURNING queue, failed_retention_seconds, dead_letter, dead_letter_retention_seconds, enqueue_shards, paused_at

-- name: resume
INSERT INTO {schema}.queue_settings AS setting (queue)
SELECT %(queue)s
 WHERE EXISTS (SELECT FROM {schema}.queue_lanes WHERE queue = %(queue)s)
    OR EXISTS (SELECT FROM {schema}.queue_settings WHERE queue = %(queue)s)
    OR EXISTS (SELECT FROM {schema}.queue_terminal_rollups WHERE queue = %(queue)s)
ON CONFLICT (queue) DO UPDATE SET paused_at = NULL
RETURNING queue, failed_retention_seconds, dead_letter, dead_letter_retention_seconds, enqueue_shards, paused_at
