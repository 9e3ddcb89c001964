-- Expiry by age, and scopes that are dropped: erasures both, with a receipt, but of more turns than one transaction should
-- delete. They go on in steps, and each step adds what it has deleted to the receipt in the transaction that deletes, so
-- that one which is cut short has a receipt too: it is not clean, and its residual is empty, since nobody has counted it.

CREATE TYPE {schema}.erasure_action AS ENUM ('erase', 'expire', 'drop');

-- Constant defaults: no row is rewritten.
ALTER TABLE {schema}.erasure_request
    ADD COLUMN action          {schema}.erasure_action NOT NULL DEFAULT 'erase',
    ADD COLUMN ingested_before timestamptz;
COMMENT ON COLUMN {schema}.erasure_request.ingested_before IS
    'Of an expiry: turns that were stored before this went. When they were stored, not when they were said: what is kept '
    'too long is counted from when it came, and a source cannot shorten or lengthen that by what it tells.';

-- The oldest turns of all scopes. Made within the transaction, not concurrently: a failure must leave nothing behind, and
-- the table is empty, since every release has this migration.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX observation_ingested_idx ON {schema}.observation (ingested_at, observation_id);
