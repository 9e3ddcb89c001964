-- The log: what people said, in the order in which it was stored, one numbered row a turn and one row a message.
--
-- Offsets have no gaps within a scope. That is what lets one number ("formed up to here") speak for all turns below it,
-- so they come from a row that append locks, not from a sequence, which would keep the number of a rolled-back turn.

CREATE TABLE {schema}.watermark (
    scope      text   NOT NULL,
    log_offset bigint NOT NULL,
    CONSTRAINT watermark_pkey PRIMARY KEY (scope),
    CONSTRAINT watermark_log_offset_chk CHECK (log_offset >= -1)
) WITH (fillfactor = 50);
COMMENT ON TABLE {schema}.watermark IS
    'One row per scope: the last offset that was assigned, -1 before the first. Append locks it until its transaction '
    'ends; nothing else ever does, so that an open transaction with an append in it holds up appends to its scope only.';

CREATE TABLE {schema}.observation (
    observation_id  bigint      GENERATED ALWAYS AS IDENTITY,
    scope           text        NOT NULL,
    log_offset      bigint      NOT NULL,
    kind            text        NOT NULL DEFAULT 'turn',
    occurred_at     timestamptz NOT NULL,
    ingested_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    data_subject_id text,
    formed_at       timestamptz,
    CONSTRAINT observation_pkey PRIMARY KEY (observation_id),
    CONSTRAINT observation_scope_log_offset_key UNIQUE (scope, log_offset)
);
COMMENT ON TABLE {schema}.observation IS
    'One row per turn. It carries what is known about the turn; its words are in turn_message.';
COMMENT ON COLUMN {schema}.observation.occurred_at IS 'When the turn was said, as its source tells it.';
COMMENT ON COLUMN {schema}.observation.ingested_at IS 'When the turn was stored, by the clock of the database.';
COMMENT ON COLUMN {schema}.observation.data_subject_id IS
    'Whose words these are, where the source knows it. An erasure by subject finds the turn by this.';
COMMENT ON COLUMN {schema}.observation.formed_at IS 'When the memory of this turn was stored; null until then.';

-- What has yet to be formed, in the order in which it is.
CREATE INDEX observation_unformed_idx ON {schema}.observation (scope, log_offset)
    WHERE formed_at IS NULL;
CREATE INDEX observation_subject_idx ON {schema}.observation (data_subject_id)
    WHERE data_subject_id IS NOT NULL;

-- A sample of a column is kept in pg_statistic where no erasure reaches it.
ALTER TABLE {schema}.observation ALTER COLUMN data_subject_id SET STATISTICS 0;

-- An enum, not a CHECK: a value that is refused must not print the row that holds the words.
CREATE TYPE {schema}.message_role AS ENUM ('system', 'user', 'assistant', 'tool');

CREATE TABLE {schema}.turn_message (
    observation_id bigint                NOT NULL,
    position       integer               NOT NULL,
    role           {schema}.message_role NOT NULL,
    content        text                  NOT NULL,
    CONSTRAINT turn_message_pkey PRIMARY KEY (observation_id, position),
    CONSTRAINT turn_message_observation_fkey FOREIGN KEY (observation_id) REFERENCES {schema}.observation (observation_id)
);
COMMENT ON TABLE {schema}.turn_message IS
    'The words of a turn, one row a message. Content exists here and, once formed, in memory; nowhere else.';
ALTER TABLE {schema}.turn_message ALTER COLUMN content SET STATISTICS 0;
