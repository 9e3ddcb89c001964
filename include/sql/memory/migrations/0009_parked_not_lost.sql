-- A turn that will not form
--
-- Some extractions fail however often they are tried: the model declines the message, the provider rejects the request
-- as such, the turn is longer than any budget. Up to here such a turn stayed at the head of its scope's backlog with
-- the formed watermark below it. That is honest, and useless: for the sake of one turn the scope remembers nothing more.
--
-- From here on formation gives such a turn up after a number of attempts: it is parked. The watermark goes past it,
-- which makes "formed up to here" mean "but for the parked ones", so the number of parked turns is shown wherever the
-- watermark is. An exception that is counted can be acted upon; one that is not counted is a lie.
--
-- Parking touches neither the turn nor its messages: they can be formed later, and taking a turn out of its parking is
-- one UPDATE.
--
-- The text of the last failure stays on the row. A provider may quote in its error what it was sent, that is somebody's
-- words; on the row an erasure takes them along, in a log file nobody would ever find them again. Its length has a
-- bound because the other side decides what it writes, and must not decide how much of it we keep.

ALTER TABLE {schema}.observation
    ADD COLUMN IF NOT EXISTS formation_attempts  integer     NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS formation_failed_at timestamptz,
    ADD COLUMN IF NOT EXISTS formation_error     text,
    ADD COLUMN IF NOT EXISTS parked_at           timestamptz;

-- NOT VALID: every new row is held to these from now on, and no scan of the table happens under this lock; the next
-- migration checks the rows that were there before.
ALTER TABLE {schema}.observation
    ADD CONSTRAINT observation_attempts_chk CHECK (formation_attempts >= 0) NOT VALID,
    -- Nothing is given up that was never tried.
    ADD CONSTRAINT observation_parked_chk CHECK (parked_at IS NULL OR formation_attempts > 0) NOT VALID,
    -- In memory, or given up: a row that claims both would be counted twice.
    ADD CONSTRAINT observation_parked_not_formed_chk CHECK (parked_at IS NULL OR formed_at IS NULL) NOT VALID,
    ADD CONSTRAINT observation_error_length_chk
        CHECK (formation_error IS NULL OR length(formation_error) <= 2000) NOT VALID;

-- Indexes are made and dropped within the transaction, not concurrently: a failure must leave nothing behind, and the
-- table is empty, since every release has this migration.

-- What is left to do: neither formed nor given up. Built before the index that it replaces is dropped, so that no moment
-- is without one.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX observation_backlog_idx ON {schema}.observation (scope, log_offset)
    WHERE formed_at IS NULL AND parked_at IS NULL;

-- How many are parked is asked whenever freshness is read; there should be few.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX observation_parked_idx ON {schema}.observation (scope)
    WHERE parked_at IS NOT NULL;

-- It counts parked turns as work to do: whoever drives by it comes back to the abandoned turn for ever.
-- squawk-ignore require-concurrent-index-deletion
DROP INDEX IF EXISTS {schema}.observation_unformed_idx;

ALTER TABLE {schema}.observation ALTER COLUMN formation_error SET STATISTICS 0;

COMMENT ON COLUMN {schema}.observation.formation_attempts IS
    'How often forming this turn was begun since it was stored or last unparked. Counted when the turn is claimed, so '
    'that an attempt that takes its worker down counts too.';
COMMENT ON COLUMN {schema}.observation.formation_failed_at IS 'When the last attempt failed.';
COMMENT ON COLUMN {schema}.observation.formation_error IS
    'What the last failed attempt said: secrets removed, cut to 2000 characters. It may quote the turn, so it is kept '
    'here, where an erasure of the turn takes it along, and in no log, where nothing would.';
COMMENT ON COLUMN {schema}.observation.parked_at IS
    'When formation gave this turn up; null otherwise. The turn and its messages are untouched and can still be formed. '
    'A parked turn does not hold the formed watermark back; the number of parked turns is shown beside that watermark.';
