-- What people decide: pauses and caps. Each statement is a transaction of its own and locks one row at most.

-- name: pause_scope
INSERT INTO {schema}.scope_setting AS s (scope, paused_at)
VALUES (%(name)s, clock_timestamp())
    ON CONFLICT (scope) DO UPDATE SET paused_at = excluded.paused_at WHERE s.paused_at IS NULL

-- name: resume_scope
UPDATE {schema}.scope_setting SET paused_at = NULL WHERE scope = %(name)s AND paused_at IS NOT NULL

-- name: pause_extractor
INSERT INTO {schema}.extractor_pause (extractor) VALUES (%(name)s) ON CONFLICT (extractor) DO NOTHING

-- name: resume_extractor
DELETE FROM {schema}.extractor_pause WHERE extractor = %(name)s

-- name: paused
SELECT EXISTS (SELECT FROM {schema}.scope_setting WHERE scope = %(scope)s AND paused_at IS NOT NULL) AS scope,
       EXISTS (SELECT FROM {schema}.extractor_pause WHERE extractor = %(extractor)s) AS extractor

-- name: cap_scope
INSERT INTO {schema}.scope_setting (scope, backlog_cap)
VALUES (%(scope)s, %(backlog_cap)s)
    ON CONFLICT (scope) DO UPDATE SET backlog_cap = excluded.backlog_cap

-- name: cap_namespace
INSERT INTO {schema}.settings (name, value)
VALUES ('memory_backlog_cap', %(backlog_cap)s::bigint::text)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: uncap_namespace
DELETE FROM {schema}.settings WHERE name = 'memory_backlog_cap'

-- name: namespace_cap
SELECT value::bigint AS backlog_cap FROM {schema}.settings WHERE name = 'memory_backlog_cap'

-- name: scopes
SELECT scope, paused_at, backlog_cap
  FROM {schema}.scope_setting
 WHERE paused_at IS NOT NULL OR backlog_cap IS NOT NULL
 ORDER BY scope

-- name: extractors
SELECT extractor, paused_at FROM {schema}.extractor_pause ORDER BY extractor
