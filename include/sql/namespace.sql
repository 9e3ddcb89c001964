-- What every namespace owns whatever families live in it: the schema, the ledger of migrations, the settings.

-- name: schema_exists
SELECT to_regnamespace(%(schema)s) IS NOT NULL

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS {schema}

-- name: ledger_exists
SELECT to_regclass(%(ledger)s) IS NOT NULL

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

-- name: lock
-- Transaction-level, so that a pooler between us and the server cannot keep it alive.
SELECT pg_advisory_xact_lock(%(key)s)

-- name: read_committed
-- Under a database's stricter default the ledger would be read as it was before the lock was had.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- name: configure
-- search_path: an unqualified name in a migration must fail rather than make an object outside the namespace.
SELECT set_config('lock_timeout', %(lock_timeout)s, true),
       set_config('search_path', '', true),
       set_config('parkkeeper.queue_slots', %(queue_slots)s, true)

-- name: record
INSERT INTO {schema}.schema_migration (family, version, name, sha256, duration_ms)
VALUES (%(family)s, %(version)s, %(name)s, %(sha256)s, %(duration_ms)s)
RETURNING applied_at
