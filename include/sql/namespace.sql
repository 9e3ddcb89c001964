-- What every namespace owns whatever families live in it: the schema, the ledger of migrations, the settings.

-- name: schema_exists
SELECT to_regnamespace(%(schema)s) IS NOT NULL

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS {schema}

-- name: ledger_exists
SELECT to_regclass(%(ledger)s) IS NOT NULL

-- name: look
-- Whether there is a ledger; a few names of what the schema holds, and those of the tables that a family's first migration
-- makes. One statement, before the ledger is read: whoever sees the tables of a first run that has just committed sees its
-- ledger too, and the line in it.
SELECT to_regclass(%(ledger)s) IS NOT NULL,
       (SELECT array_agg(relname::text ORDER BY relname)
          FROM (SELECT relname FROM pg_class
                 WHERE relnamespace = to_regnamespace(%(schema)s) AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
                 ORDER BY relname LIMIT 3) AS held),
       (SELECT array_agg(relname::text ORDER BY relname) FROM pg_class
         WHERE relnamespace = to_regnamespace(%(schema)s) AND relname = ANY (%(first_tables)s))

-- name: candidates
-- Schemas with a ledger whose name is like a pattern. By the catalog alone: to_regclass fails in a schema that the role may
-- not use, and pg_toast is one.
SELECT nspname
  FROM pg_namespace
 WHERE nspname LIKE %(like)s
   AND EXISTS (SELECT FROM pg_class WHERE relnamespace = pg_namespace.oid AND relname = 'schema_migration')
 ORDER BY nspname

-- name: create_ledger
CREATE TABLE IF NOT EXISTS {schema}.schema_migration (
    family      text        NOT NULL,
    version     integer     NOT NULL CHECK (version > 0),
    name        text        NOT NULL,
    sha256      text        NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_by  text        NOT NULL DEFAULT session_user,
    duration_ms bigint      NOT NULL CHECK (duration_ms >= 0),
    PRIMARY KEY (family, version)
);
COMMENT ON TABLE {schema}.schema_migration IS
    'One row per migration that was applied here. sha256 is of the file as shipped, before the schema name was put in '
    'and with line ends normalised, so that one release has one hash in every namespace.';
CREATE TABLE IF NOT EXISTS {schema}.settings (
    name       text        PRIMARY KEY,
    value      text        NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE {schema}.settings IS
    'What this namespace decides once. An argument that is left out in a call means the value that stands here.';

-- name: ledger
-- What stands in the ledger for one family, oldest first.
SELECT version, name, sha256, applied_at, duration_ms
  FROM {schema}.schema_migration
 WHERE family = %(family)s
 ORDER BY version

-- name: try_lock
-- Transaction-level, so that a pooler between us and the server cannot keep it alive. Tried, not waited for: a statement
-- that waits holds a snapshot, and a concurrent index waits for every older snapshot to go, ours with it.
SELECT pg_try_advisory_xact_lock(%(key)s)

-- name: lock
-- In a script, which cannot try again.
SELECT pg_advisory_xact_lock(%(key)s)

-- name: try_session_lock
-- For a migration without a transaction: the session's own, so it ends with the session at the latest.
SELECT pg_try_advisory_lock(%(key)s)

-- name: session_lock
SELECT pg_advisory_lock(%(key)s)

-- name: session_unlock
SELECT pg_advisory_unlock(%(key)s)

-- name: holder
-- Who has the namespace's lock.
SELECT lock.pid, coalesce(activity.application_name, '')
  FROM pg_locks AS lock LEFT JOIN pg_stat_activity AS activity ON activity.pid = lock.pid
 WHERE lock.locktype = 'advisory' AND lock.granted AND lock.objsubid = 1
   AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND (lock.classid::bigint << 32) | lock.objid::bigint = %(key)s
 LIMIT 1

-- name: backend
-- Whose session this is: behind a pooler it is another than the driver was told.
SELECT pg_backend_pid()

-- name: read_committed
-- Under a database's stricter default the ledger would be read as it was before the lock was had.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- name: configure
-- search_path: an unqualified name in a migration must fail rather than make an object outside the namespace.
SELECT set_config('lock_timeout', %(lock_timeout)s, %(local)s),
       set_config('statement_timeout', coalesce(%(statement_timeout)s, current_setting('statement_timeout')), %(local)s),
       set_config('search_path', '', %(local)s),
       set_config('parkkeeper.queue_slots', %(queue_slots)s, %(local)s)

-- name: configured
-- What a session has before a migration without a transaction, to be put back after it.
SELECT current_setting('lock_timeout'), current_setting('statement_timeout'), current_setting('search_path')

-- name: restore
SELECT set_config('lock_timeout', %(lock_timeout)s, false),
       set_config('statement_timeout', %(statement_timeout)s, false),
       set_config('search_path', %(search_path)s, false)

-- name: index_is_valid
-- Null when there is no such index.
SELECT (SELECT indisvalid AND indisready FROM pg_index WHERE indexrelid = to_regclass(%(index)s))

-- name: record
INSERT INTO {schema}.schema_migration (family, version, name, sha256, duration_ms)
VALUES (%(family)s, %(version)s, %(name)s, %(sha256)s, %(duration_ms)s)
RETURNING applied_at

-- name: refuse_applied
-- In a script: a part that was applied before must fail before it changes anything.
SELECT 1 / (1 - count(*))
  FROM {schema}.schema_migration
 WHERE family = %(family)s AND version = %(version)s

-- name: refuse_invalid
-- In a script: an index that cannot be used is not recorded.
SELECT 1 / count(*) FROM pg_index WHERE indexrelid = to_regclass(%(index)s) AND indisvalid AND indisready

-- name: settings
SELECT name FROM {schema}.settings

-- name: forget_family
DELETE FROM {schema}.schema_migration WHERE family = %(family)s

-- name: families
SELECT count(DISTINCT family) FROM {schema}.schema_migration

-- name: drop_ledger
DROP TABLE {schema}.schema_migration, {schema}.settings

-- name: held
-- What is in the schema: a few names, each with its kind.
SELECT array_agg(pg_describe_object(classid, objid, 0) ORDER BY 1)
  FROM (SELECT classid, objid FROM pg_depend
         WHERE refclassid = 'pg_namespace'::regclass AND refobjid = to_regnamespace(%(schema)s) AND deptype = 'n'
         LIMIT 5) AS held

-- name: drop_schema
DROP SCHEMA {schema}
