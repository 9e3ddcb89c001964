-- What formation makes of a turn. Each derived row hangs on a row of projection_dependency, and that on its source: an
-- erasure deletes the dependencies of a turn and every table of derived data follows by its foreign key, so that no
-- list of tables has to be kept anywhere, and none can be forgotten.

CREATE TABLE {schema}.projection_dependency (
    derived_id   bigint GENERATED ALWAYS AS IDENTITY,
    source_id    bigint NOT NULL,
    derived_kind text   NOT NULL,
    CONSTRAINT projection_dependency_pkey PRIMARY KEY (derived_id),
    CONSTRAINT projection_dependency_source_fkey FOREIGN KEY (source_id) REFERENCES {schema}.observation (observation_id)
);
CREATE INDEX projection_dependency_source_idx ON {schema}.projection_dependency (source_id);
COMMENT ON TABLE {schema}.projection_dependency IS
    'Which turn (source_id) each derived row (derived_id) was made from. A derived row has one source, so that an '
    'erasure never has to rewrite text that others share.';

CREATE TABLE {schema}.memory (
    memory_id         bigint      NOT NULL,
    scope             text        NOT NULL,
    kind              text        NOT NULL,
    text              text        NOT NULL,
    search_text       text,
    extractor         text        NOT NULL,
    extractor_version text        NOT NULL,
    stored_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    search            tsvector    NOT NULL GENERATED ALWAYS AS (
        to_tsvector('pg_catalog.simple'::regconfig, coalesce(search_text, text))
        || array_to_tsvector(ARRAY[chr(1) || scope])
    ) STORED,
    CONSTRAINT memory_pkey PRIMARY KEY (memory_id),
    CONSTRAINT memory_dependency_fkey FOREIGN KEY (memory_id)
        REFERENCES {schema}.projection_dependency (derived_id) ON DELETE CASCADE
);
-- What was added last waits in a list that every search reads whole; at its default of 4 MB that would be most of the cost.
CREATE INDEX memory_search_idx ON {schema}.memory USING gin (search) WITH (gin_pending_list_limit = 256);
COMMENT ON TABLE {schema}.memory IS 'What recall searches: texts that an extractor made of one turn.';
COMMENT ON COLUMN {schema}.memory.search_text IS
    'The text with scripts that put no spaces between words cut into pairs of characters; null where there are none.';
COMMENT ON COLUMN {schema}.memory.search IS
    'The words of the text, and the scope as one more word (behind a character that no parser yields), so that the '
    'index looks through one scope and not through all that use a common word.';

-- Samples of these would outlive an erasure in pg_statistic.
ALTER TABLE {schema}.memory
    ALTER COLUMN text SET STATISTICS 0,
    ALTER COLUMN search_text SET STATISTICS 0,
    ALTER COLUMN search SET STATISTICS 0;
