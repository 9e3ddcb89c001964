-- What each of three roles may do in a namespace. `parkkeeper grants` prints it; the roles exist already.

-- name: migrator
-- Owns what it makes, so it may change it: migrate, verify, baseline, grow.
GRANT USAGE, CREATE ON SCHEMA {schema} TO %(migrator)s;

-- name: maintainer
-- A function runs with the rights of its caller, so leave to run one gives nothing beyond those on the tables.
-- Works on rows, and empties partitions by TRUNCATE: rotate, prune, rescue, roll-up, retries, settings, sweeps, expiry.
-- It cannot change a table, nor write the ledger of migrations.
GRANT USAGE ON SCHEMA {schema} TO %(maintainer)s;
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA {schema} TO %(maintainer)s;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO %(maintainer)s;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO %(maintainer)s;
REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON {schema}.schema_migration FROM %(maintainer)s;
ALTER DEFAULT PRIVILEGES FOR ROLE %(migrator)s IN SCHEMA {schema}
    GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON TABLES TO %(maintainer)s;
ALTER DEFAULT PRIVILEGES FOR ROLE %(migrator)s IN SCHEMA {schema} GRANT USAGE, SELECT ON SEQUENCES TO %(maintainer)s;
ALTER DEFAULT PRIVILEGES FOR ROLE %(migrator)s IN SCHEMA {schema} GRANT EXECUTE ON FUNCTIONS TO %(maintainer)s;

-- name: application
-- Enqueues, works, appends, forms, reads, erases. It reads everything, decides nothing that belongs to the namespace (settings,
-- the state of the rings, the folded counts), and changes no history: what it adds to the entries it cannot alter.
-- A table that a later migration makes is writable for it until this script is run again, which is why it is run after each.
GRANT USAGE ON SCHEMA {schema} TO %(application)s;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO %(application)s;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO %(application)s;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO %(application)s;
ALTER DEFAULT PRIVILEGES FOR ROLE %(migrator)s IN SCHEMA {schema}
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO %(application)s;
ALTER DEFAULT PRIVILEGES FOR ROLE %(migrator)s IN SCHEMA {schema} GRANT USAGE, SELECT ON SEQUENCES TO %(application)s;
ALTER DEFAULT PRIVILEGES FOR ROLE %(migrator)s IN SCHEMA {schema} GRANT EXECUTE ON FUNCTIONS TO %(application)s;
DO $revoke$
DECLARE
    v_table text;
BEGIN
    FOR v_table IN
        SELECT to_regclass('{schema}.' || name)::text
          FROM unnest(ARRAY['schema_migration', 'settings', 'queue_ring_slots', 'claim_ring_state', 'claim_ring_slots',
                            'lease_ring_state', 'lease_ring_slots', 'queue_terminal_rollups', 'queue_terminal_live_counts',
                            'floor_segment_contents']) AS name
         WHERE to_regclass('{schema}.' || name) IS NOT NULL
    LOOP
        EXECUTE 'REVOKE INSERT, UPDATE, DELETE ON ' || v_table || ' FROM ' || %(application_literal)s;
    END LOOP;
    FOR v_table IN
        SELECT relid::text
          FROM unnest(ARRAY['ready_entries', 'ready_tombstones', 'done_entries', 'queue_terminal_count_deltas']) AS name,
               pg_partition_tree(to_regclass('{schema}.' || name))
    LOOP
        EXECUTE 'REVOKE UPDATE, DELETE ON ' || v_table || ' FROM ' || %(application_literal)s;
    END LOOP;
END
$revoke$;
