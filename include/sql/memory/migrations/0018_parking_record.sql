-- Who wants to know a month later why so much was parked, and when it came back, finds it here: a row for each change, with
-- numbers and classes and nothing of any turn. It is written with the counts, in the same transaction and under the same
-- lock, so that it adds up to them.

CREATE TYPE {schema}.parking_change AS ENUM ('park', 'unpark', 'rebuild', 'erase');

CREATE TABLE {schema}.parking_record (
    record_id   bigint                         GENERATED ALWAYS AS IDENTITY,
    recorded_at timestamptz                    NOT NULL DEFAULT clock_timestamp(),
    change      {schema}.parking_change        NOT NULL,
    scope       text                           NOT NULL,
    error_class {schema}.formation_error_class NOT NULL,
    turns       bigint                         NOT NULL,
    CONSTRAINT parking_record_pkey PRIMARY KEY (record_id),
    CONSTRAINT parking_record_turns_chk CHECK (turns > 0)
);
CREATE INDEX parking_record_scope_idx ON {schema}.parking_record (scope, record_id);
COMMENT ON TABLE {schema}.parking_record IS
    'Append only: how many turns of a scope were parked for a class of error, or are parked no longer because they were '
    'unparked, rebuilt or erased. Old rows may be deleted; nothing is computed from them.';

-- Since when the longest parked turn waits, kept for the reason that the offsets are: an index on that starts with the
-- entries of all turns that were parked before, and while an old snapshot is open none of these can be passed over.
ALTER TABLE {schema}.watermark_formed ADD COLUMN oldest_parked_at timestamptz;
COMMENT ON COLUMN {schema}.watermark_formed.oldest_parked_at IS
    'Since when the longest parked turn waits; null when none is parked. Found anew when a turn is parked or is no longer.';
UPDATE {schema}.watermark_formed AS f
   SET oldest_parked_at = (
        SELECT min(o.parked_at) FROM {schema}.observation AS o WHERE o.scope = f.scope AND o.parked_at IS NOT NULL
       )
 WHERE f.parked > 0;
