-- The formed side of the watermark, in a row of its own: append locks the other one until its caller commits, which may
-- take a while, and formation must not have to wait for that.

CREATE TABLE {schema}.watermark_formed (
    scope                text   NOT NULL,
    formed_offset        bigint NOT NULL DEFAULT -1,
    formed_strict_offset bigint NOT NULL DEFAULT -1,
    formed               bigint NOT NULL DEFAULT 0,
    parked               bigint NOT NULL DEFAULT 0,
    erased               bigint NOT NULL DEFAULT 0,
    epoch                bigint NOT NULL DEFAULT 0,
    CONSTRAINT watermark_formed_pkey PRIMARY KEY (scope),
    CONSTRAINT watermark_formed_offsets_chk
        CHECK (formed_strict_offset >= -1 AND formed_strict_offset <= formed_offset),
    CONSTRAINT watermark_formed_counts_chk CHECK (formed >= 0 AND parked >= 0 AND erased >= 0)
) WITH (fillfactor = 50);
COMMENT ON TABLE {schema}.watermark_formed IS
    'One row per scope, locked by whatever forms, parks, unparks or erases a turn of it, before it locks the turn.';
COMMENT ON COLUMN {schema}.watermark_formed.formed_offset IS
    'Up to here every turn is formed, parked or erased; -1 before the first. Always found anew, never counted up.';
COMMENT ON COLUMN {schema}.watermark_formed.formed_strict_offset IS 'The same with parked turns as not formed.';
COMMENT ON COLUMN {schema}.watermark_formed.formed IS
    'How many turns are formed. This, parked and erased are kept so that reading how far a scope is costs the same at '
    'any size; what was assigned and is none of the three is the backlog.';
COMMENT ON COLUMN {schema}.watermark_formed.epoch IS
    'Grows when formed_offset may have gone down, so that a reader can tell that what it remembers no longer holds.';

CREATE TABLE {schema}.parked_class (
    scope       text                           NOT NULL,
    error_class {schema}.formation_error_class NOT NULL,
    parked      bigint                         NOT NULL,
    CONSTRAINT parked_class_pkey PRIMARY KEY (scope, error_class),
    CONSTRAINT parked_class_parked_chk CHECK (parked >= 0)
);
COMMENT ON TABLE {schema}.parked_class IS
    'How many turns of a scope are parked for which class of error; written under the lock on watermark_formed.';

-- Turns that were parked before there were classes.
UPDATE {schema}.observation SET formation_error_class = 'other', park_count = 1
 WHERE parked_at IS NOT NULL AND formation_error_class IS NULL;

INSERT INTO {schema}.watermark_formed (scope, formed_offset, formed_strict_offset, formed, parked, erased)
SELECT w.scope,
       coalesce(t.first_pending - 1, w.log_offset),
       coalesce(t.first_unformed - 1, w.log_offset),
       coalesce(t.formed, 0),
       coalesce(t.parked, 0),
       w.log_offset + 1 - coalesce(t.turns, 0)
  FROM {schema}.watermark AS w
  LEFT JOIN (
        SELECT scope,
               count(*) AS turns,
               count(formed_at) AS formed,
               count(parked_at) AS parked,
               min(log_offset) FILTER (WHERE formed_at IS NULL AND parked_at IS NULL) AS first_pending,
               min(log_offset) FILTER (WHERE formed_at IS NULL) AS first_unformed
          FROM {schema}.observation
         GROUP BY scope
       ) AS t ON t.scope = w.scope;

INSERT INTO {schema}.parked_class (scope, error_class, parked)
SELECT scope, formation_error_class, count(*)
  FROM {schema}.observation
 WHERE parked_at IS NOT NULL
 GROUP BY scope, formation_error_class;
