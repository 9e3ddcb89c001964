-- What maintenance did, and when: a row for each run that did something or could not, so that the page can draw whether it
-- is getting better or worse, and whoever comes after a bad night can read what happened.
--
-- A namespace that has both families has one such table: whichever migration comes first makes it.

CREATE TABLE IF NOT EXISTS {schema}.maintenance_run (
    maintenance_run_id bigint      GENERATED ALWAYS AS IDENTITY,
    action             text        NOT NULL,
    outcome            text        NOT NULL,
    started_at         timestamptz NOT NULL,
    ended_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    figures            jsonb       NOT NULL DEFAULT '{}',
    dag_id             text,
    dag_run_id         text,
    task_id            text,
    CONSTRAINT maintenance_run_pkey PRIMARY KEY (maintenance_run_id),
    CONSTRAINT maintenance_run_times_chk CHECK (started_at <= ended_at),
    CONSTRAINT maintenance_run_figures_chk CHECK (jsonb_typeof(figures) = 'object')
);
-- The table was made a moment ago, here or by the other family: nobody waits for these.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX IF NOT EXISTS maintenance_run_ended_idx ON {schema}.maintenance_run (ended_at);
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX IF NOT EXISTS maintenance_run_action_idx ON {schema}.maintenance_run (action, ended_at);
COMMENT ON TABLE {schema}.maintenance_run IS
    'One row per run of maintenance that did something, was held up, or failed; none for one that found nothing to do. Rows '
    'are deleted after 90 days, by the runs that come then. Nothing is computed from them but what the page shows.';
COMMENT ON COLUMN {schema}.maintenance_run.action IS
    'What ran, by the name of its operator: prune_with_carry, formation_batch; deadline for a run that was late.';
COMMENT ON COLUMN {schema}.maintenance_run.figures IS
    'What it reported, in numbers and names: never content, nor the text of an error.';
