-- Looking whether what is promised of a namespace's rows is true: one snapshot, nothing written.

-- name: one_snapshot
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: configure
-- Children of a ring have no statistics: what is read is read in the order of a key. Compiling such a plan takes longer than
-- running it.
SELECT set_config('enable_seqscan', 'off', true) AS seqscan, set_config('jit', 'off', true) AS jit

-- name: object_outside
-- What belongs to the namespace stands in it, and a comparison with a fresh install has left nothing behind.
SELECT 'object_outside' AS invariant, format('schema %%I', space.nspname) AS example
  FROM pg_namespace AS space
 WHERE space.nspname ~ '^parkkeeper_verify_[0-9]+$'
UNION ALL
SELECT 'object_outside', format('%%s is a partition of %%s', link.inhrelid::regclass, link.inhparent::regclass)
  FROM pg_inherits AS link
  JOIN pg_class AS child ON child.oid = link.inhrelid
  JOIN pg_class AS parent ON parent.oid = link.inhparent
 WHERE (child.relnamespace = %(schema)s::regnamespace) <> (parent.relnamespace = %(schema)s::regnamespace)
UNION ALL
SELECT 'object_outside', format('constraint %%I of %%s refers to %%s', link.conname, link.conrelid::regclass, link.confrelid::regclass)
  FROM pg_constraint AS link
  JOIN pg_class AS referring ON referring.oid = link.conrelid
  JOIN pg_class AS referred ON referred.oid = link.confrelid
 WHERE link.contype = 'f'
   AND (referring.relnamespace = %(schema)s::regnamespace) <> (referred.relnamespace = %(schema)s::regnamespace)
