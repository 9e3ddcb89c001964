-- Who is forming which turn, when a turn may be tried next, and why the last attempt failed.

CREATE TYPE {schema}.formation_error_class AS ENUM (
    'rate_limited', 'quota', 'auth', 'unavailable', 'timeout', 'refusal',
    'too_long', 'output_truncated', 'malformed', 'store', 'worker_crash', 'other'
);

-- now() is evaluated once, so that no row is rewritten; new rows get the moment at which they are stored.
ALTER TABLE {schema}.observation
    ADD COLUMN formation_error_class {schema}.formation_error_class,
    ADD COLUMN next_attempt_at       timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN claim_token           uuid,
    ADD COLUMN claimed_until         timestamptz,
    ADD COLUMN park_count            integer     NOT NULL DEFAULT 0,
    ADD COLUMN deferrals             integer     NOT NULL DEFAULT 0;
ALTER TABLE {schema}.observation ALTER COLUMN next_attempt_at SET DEFAULT clock_timestamp();

COMMENT ON COLUMN {schema}.observation.formation_error_class IS
    'Of which kind the last failed attempt was. Unlike its text, this says nothing about anybody and may be shown.';
COMMENT ON COLUMN {schema}.observation.next_attempt_at IS
    'From when on the turn may be claimed. While a claim runs this is the end of the claim, so that one that was never '
    'answered comes due by itself.';
COMMENT ON COLUMN {schema}.observation.claim_token IS
    'Whose result is awaited; a result that comes with another token is discarded.';
COMMENT ON COLUMN {schema}.observation.park_count IS 'How often this turn was parked; unparking does not lower it.';
COMMENT ON COLUMN {schema}.observation.deferrals IS
    'How often the provider asked to wait and no attempt was counted; bounded, and 0 again after unparking.';

-- Indexes are made and dropped within the transaction, not concurrently: a failure must leave nothing behind, and the
-- table is empty, since every release has this migration.

-- Claiming: scope first, so that each scope's oldest due turn is one step away and a noisy scope cannot stand in front
-- of the others.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX observation_due_idx ON {schema}.observation (scope, next_attempt_at, log_offset)
    WHERE formed_at IS NULL AND parked_at IS NULL;
-- What the sweep looks at: turns that were begun and have not ended. Few, whatever the size of the backlog.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX observation_tried_idx ON {schema}.observation (scope, log_offset)
    WHERE formed_at IS NULL AND parked_at IS NULL AND formation_attempts > 0;
-- Pages and ranges of parked turns, and which of them waits longest.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX observation_parked_offset_idx ON {schema}.observation (scope, log_offset)
    WHERE parked_at IS NOT NULL;
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX observation_parked_age_idx ON {schema}.observation (scope, parked_at)
    WHERE parked_at IS NOT NULL;
