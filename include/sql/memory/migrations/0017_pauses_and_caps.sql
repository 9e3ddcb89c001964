-- What people decide about a scope or an extractor: that formation leaves it alone for a while, and how far its backlog may
-- grow. Appending goes on while a scope is paused; a cap is what stops it, and only where one was set.
--
-- In tables of their own, apart from the rows that appends and formation lock: a decision waits for nobody's transaction.

CREATE TABLE {schema}.scope_setting (
    scope       text NOT NULL,
    paused_at   timestamptz,
    backlog_cap bigint,
    CONSTRAINT scope_setting_pkey PRIMARY KEY (scope),
    CONSTRAINT scope_setting_backlog_cap_chk CHECK (backlog_cap > 0)
);
COMMENT ON TABLE {schema}.scope_setting IS 'One row per scope for which something was ever decided.';
COMMENT ON COLUMN {schema}.scope_setting.paused_at IS
    'Since when no turn of the scope is claimed; null when turns are.';
COMMENT ON COLUMN {schema}.scope_setting.backlog_cap IS
    'An append that would make the backlog larger than this is refused; null: no cap. That of the namespace is in '
    'settings under memory_backlog_cap.';

CREATE TABLE {schema}.extractor_pause (
    extractor text        NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT extractor_pause_pkey PRIMARY KEY (extractor)
);
COMMENT ON TABLE {schema}.extractor_pause IS
    'Extractors, by name and whatever their version, for which no turn is claimed.';
