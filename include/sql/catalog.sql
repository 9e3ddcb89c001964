-- What a namespace is made of, as Postgres prints it: to compare a live one with a fresh install.

-- name: as_usual
-- A session may have every name printed in quotes; until the transaction ends only those are that need them.
SELECT set_config('quote_all_identifiers', 'off', true)

-- name: objects
-- One row an object: what it is, its name, and all that a migration decides of it. Owners, rights and tablespaces are the
-- site's; NOT NULL is told by the columns, because Postgres 18 also lists it among the constraints. With an empty search_path
-- every name is printed with its schema.
WITH held AS (
    SELECT c.oid, c.relname, c.relkind, c.relpersistence, c.reloptions, c.relispartition, c.relpartbound, c.relrowsecurity,
           c.relforcerowsecurity
      FROM pg_class AS c WHERE c.relnamespace = to_regnamespace(%(schema)s)
), objects AS (
    SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table' ELSE 'table' END AS kind,
           relname::text AS name,
           concat_ws(E'\n', CASE relpersistence WHEN 'u' THEN 'UNLOGGED' END,
                     CASE WHEN relkind = 'p' THEN 'PARTITION BY ' || pg_get_partkeydef(oid) END,
                     (SELECT 'PARTITION OF ' || inhparent::regclass FROM pg_inherits WHERE inhrelid = oid),
                     pg_get_expr(relpartbound, oid),
                     CASE WHEN reloptions IS NOT NULL
                          THEN 'WITH ' || (SELECT string_agg(option, ', ' ORDER BY option) FROM unnest(reloptions) AS option) END,
                     CASE WHEN relrowsecurity THEN 'ROW LEVEL SECURITY' END,
                     CASE WHEN relforcerowsecurity THEN 'FORCE ROW LEVEL SECURITY' END,
                     CASE WHEN relkind IN ('v', 'm') THEN pg_get_viewdef(oid) END,
                     'COMMENT ' || obj_description(oid, 'pg_class')) AS definition
      FROM held WHERE relkind IN ('r', 'p', 'v', 'm', 'f')
    UNION ALL
    SELECT 'column', held.relname || '.' || a.attname,
           concat_ws(E'\n', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
                     CASE WHEN a.attcollation <> t.typcollation THEN 'COLLATE ' || a.attcollation::regcollation END,
                     CASE WHEN a.attgenerated = '' THEN 'DEFAULT ' ELSE 'GENERATED ' END || pg_get_expr(d.adbin, d.adrelid),
                     CASE a.attidentity WHEN 'a' THEN 'IDENTITY ALWAYS' WHEN 'd' THEN 'IDENTITY BY DEFAULT' END,
                     CASE WHEN a.attstattarget >= 0 THEN 'STATISTICS ' || a.attstattarget END,
                     CASE WHEN a.attstorage <> t.typstorage THEN 'STORAGE ' || a.attstorage::text END,
                     'COMMENT ' || col_description(held.oid, a.attnum))
      FROM held JOIN pg_attribute AS a ON a.attrelid = held.oid JOIN pg_type AS t ON t.oid = a.atttypid
      LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE held.relkind IN ('r', 'p', 'v', 'm', 'f', 'c') AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT 'constraint', held.relname || '.' || k.conname,
           concat_ws(E'\n', pg_get_constraintdef(k.oid), 'COMMENT ' || obj_description(k.oid, 'pg_constraint'))
      FROM held JOIN pg_constraint AS k ON k.conrelid = held.oid
     WHERE k.contype NOT IN ('n', 't')
    UNION ALL
    SELECT 'index', (SELECT relname FROM pg_class WHERE oid = i.indrelid) || '.' || held.relname,
           concat_ws(E'\n', pg_get_indexdef(held.oid), CASE WHEN NOT i.indisvalid OR NOT i.indisready THEN 'INVALID' END,
                     CASE WHEN i.indisclustered THEN 'CLUSTER' END, CASE WHEN i.indisreplident THEN 'REPLICA IDENTITY' END,
                     'COMMENT ' || obj_description(held.oid, 'pg_class'))
      FROM held JOIN pg_index AS i ON i.indexrelid = held.oid
    UNION ALL
    SELECT 'sequence', held.relname,
           concat_ws(' ', format_type(s.seqtypid, NULL), 'START', s.seqstart, 'INCREMENT', s.seqincrement, 'MINVALUE', s.seqmin,
                     'MAXVALUE', s.seqmax, 'CACHE', s.seqcache, CASE WHEN s.seqcycle THEN 'CYCLE' END)
      FROM held JOIN pg_sequence AS s ON s.seqrelid = held.oid
    UNION ALL
    SELECT 'trigger', held.relname || '.' || t.tgname,
           concat_ws(E'\n', pg_get_triggerdef(t.oid), CASE t.tgenabled WHEN 'O' THEN NULL ELSE 'ENABLED ' || t.tgenabled::text END)
      FROM held JOIN pg_trigger AS t ON t.tgrelid = held.oid
     WHERE NOT t.tgisinternal
    UNION ALL
    SELECT 'policy', held.relname || '.' || p.polname,
           concat_ws(E'\n', p.polcmd::text, CASE WHEN NOT p.polpermissive THEN 'RESTRICTIVE' END, pg_get_expr(p.polqual, p.polrelid),
                     pg_get_expr(p.polwithcheck, p.polrelid))
      FROM held JOIN pg_policy AS p ON p.polrelid = held.oid
    UNION ALL
    SELECT 'statistics', stxname::text, pg_get_statisticsobjdef(oid)
      FROM pg_statistic_ext WHERE stxnamespace = to_regnamespace(%(schema)s)
    UNION ALL
    SELECT CASE WHEN p.prokind = 'p' THEN 'procedure' ELSE 'function' END,
           p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
           concat_ws(E'\n', CASE WHEN p.prokind IN ('f', 'p', 'w') THEN pg_get_functiondef(p.oid) ELSE 'AGGREGATE' END,
                     'COMMENT ' || obj_description(p.oid, 'pg_proc'))
      FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace(%(schema)s)
    UNION ALL
    SELECT CASE t.typtype WHEN 'e' THEN 'enum' WHEN 'd' THEN 'domain' WHEN 'r' THEN 'range' ELSE 'type' END, t.typname::text,
           concat_ws(E'\n', CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod) END,
                     CASE WHEN t.typnotnull THEN 'NOT NULL' END, t.typdefault,
                     (SELECT string_agg(e.enumlabel, ', ' ORDER BY e.enumsortorder) FROM pg_enum AS e WHERE e.enumtypid = t.oid),
                     (SELECT string_agg(k.conname || ' ' || pg_get_constraintdef(k.oid), E'\n' ORDER BY k.conname)
                        FROM pg_constraint AS k WHERE k.contypid = t.oid AND k.contype <> 'n'),
                     'COMMENT ' || obj_description(t.oid, 'pg_type'))
      FROM pg_type AS t
     WHERE t.typnamespace = to_regnamespace(%(schema)s) AND t.typelem = 0
       AND (t.typtype <> 'c' OR EXISTS (SELECT FROM held WHERE held.oid = t.typrelid AND held.relkind = 'c'))
)
SELECT kind, name, definition FROM objects ORDER BY kind, name

-- name: quoted
-- The schema's name as Postgres prints it.
SELECT quote_ident(%(schema)s)

-- name: has_ring
SELECT to_regclass(%(ring)s) IS NOT NULL

-- name: slot_count
-- A fresh install for comparison gets as many slots.
SELECT slot_count FROM {schema}.queue_ring_state

-- name: knows_letters
-- Whether the database's own rules for letters reach beyond ASCII: search compares words without case.
SELECT lower(chr(1046)) = chr(1078)

-- name: logged_values
-- Settings by which this server writes values into its log, and so contents, subjects and keys, where no erasure reaches.
-- They are those of this session: a role or a database may have others.
SELECT name, setting
  FROM pg_settings
 WHERE (name = 'log_parameter_max_length_on_error' AND setting <> '0')
    OR (name = 'log_parameter_max_length' AND setting <> '0'
        AND (current_setting('log_statement') IN ('mod', 'all')
             OR current_setting('log_min_duration_statement') <> '-1'
             OR current_setting('log_min_duration_sample') <> '-1'
             OR current_setting('log_transaction_sample_rate')::float8 > 0))
 ORDER BY name
