-- What a namespace and its queues decide once.

-- name: namespace_settings
SELECT name, value FROM {schema}.settings WHERE name IN ('failed_retention', 'carry_to')

-- name: set_queue
INSERT INTO {schema}.queue_settings AS setting (queue, failed_retention_seconds)
VALUES (%(queue)s, %(failed_retention_seconds)s)
ON CONFLICT (queue) DO UPDATE
   SET failed_retention_seconds = coalesce(excluded.failed_retention_seconds, setting.failed_retention_seconds)
RETURNING queue, failed_retention_seconds
