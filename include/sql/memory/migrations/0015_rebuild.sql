-- Rebuilding: turns that are formed already, or parked, are formed again by another extractor or another version of one.
--
-- It goes through a range of offsets in order and keeps its place here, so that whoever calls next goes on where the last
-- one stopped, and progress can be read while it runs. The place moves in the transaction that replaces a turn's memory:
-- no turn is counted that was not replaced, and none is replaced twice. What was passed over (a turn that is still to be
-- formed, one that was erased) is not counted but follows from the other figures, so that together they always cover
-- every offset up to the place.

CREATE TABLE {schema}.rebuild (
    rebuild_id        bigint      GENERATED ALWAYS AS IDENTITY,
    scope             text        NOT NULL,
    extractor         text        NOT NULL,
    extractor_version text        NOT NULL,
    identity          text        NOT NULL DEFAULT '',
    from_offset       bigint      NOT NULL,
    to_offset         bigint      NOT NULL,
    asked_to          bigint,
    through_offset    bigint      NOT NULL,
    rebuilt           bigint      NOT NULL DEFAULT 0,
    failed            bigint      NOT NULL DEFAULT 0,
    started_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at          timestamptz,
    cancelled         boolean     NOT NULL DEFAULT false,
    token             uuid,
    leased_until      timestamptz,
    CONSTRAINT rebuild_pkey PRIMARY KEY (rebuild_id),
    CONSTRAINT rebuild_range_chk CHECK (
        from_offset >= 0 AND from_offset <= to_offset
        AND through_offset BETWEEN from_offset - 1 AND to_offset
    ),
    CONSTRAINT rebuild_counts_chk CHECK (
        rebuilt >= 0 AND failed >= 0 AND rebuilt + failed <= through_offset - from_offset + 1
    ),
    CONSTRAINT rebuild_token_chk CHECK ((token IS NULL) = (leased_until IS NULL))
) WITH (fillfactor = 50);
-- One that has not ended a scope. The row is the last one that a transaction locks.
CREATE UNIQUE INDEX rebuild_active_idx ON {schema}.rebuild (scope) WHERE ended_at IS NULL;
COMMENT ON TABLE {schema}.rebuild IS
    'One row per rebuild of a scope: what was asked for and how far it is. Rows stay when it has ended.';
COMMENT ON COLUMN {schema}.rebuild.asked_to IS
    'The end that was asked for; null: the last turn, which to_offset has as it was when the rebuild began.';
COMMENT ON COLUMN {schema}.rebuild.through_offset IS
    'All turns from from_offset to here are done with: rebuilt, failed (the memory they had stays), or passed over.';
COMMENT ON COLUMN {schema}.rebuild.token IS
    'Who works on it until leased_until. What comes with another token is discarded.';

CREATE TABLE {schema}.rebuild_failure (
    rebuild_id  bigint                         NOT NULL,
    log_offset  bigint                         NOT NULL,
    error_class {schema}.formation_error_class NOT NULL,
    CONSTRAINT rebuild_failure_pkey PRIMARY KEY (rebuild_id, log_offset),
    CONSTRAINT rebuild_failure_rebuild_fkey FOREIGN KEY (rebuild_id)
        REFERENCES {schema}.rebuild (rebuild_id) ON DELETE CASCADE
);
COMMENT ON TABLE {schema}.rebuild_failure IS
    'Which turns a rebuild could not form, and why, as a class: no text. They keep the memory that they had.';

COMMENT ON COLUMN {schema}.watermark_formed.epoch IS
    'Grows when formed_offset may have gone down or memory of a formed turn was replaced, so that a reader can tell that '
    'what it remembers no longer holds.';
