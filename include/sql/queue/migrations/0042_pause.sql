-- A queue can be paused: its jobs stay where they are, and no claim takes one.

ALTER TABLE {schema}.queue_settings ADD COLUMN paused_at timestamptz;
COMMENT ON COLUMN {schema}.queue_settings.paused_at IS 'Since when no job of the queue is claimed; NULL when jobs are.';
