-- Floor segments: where failed jobs are kept for as long as they are promised to stay retryable.
--
-- A failed row that is carried into the live segment is carried again a lap later, and so on until its time is over: with a
-- fast ring thousands of times. Here it is moved once. Floor segments are further children of done_entries and of the count
-- deltas, with numbers below zero. They take part in no rotation: a segment is filled by prunes, and truncated whole when
-- all that is in it is past the floor.
--
-- Rows that leave at about the same time have to stand together, or one that stays long would hold many that need not. So
-- the segments are a wheel in four levels of six, by what is left of a row's life when it moves: up to 1 h, 8 h, 80 h, or
-- longer. One segment of a level takes what passes the floor within 15 min, 2 h, 20 h or 180 h; six of them reach further
-- than the level does, so that a segment is free again before its number comes round.

CREATE FUNCTION {schema}.floor_segment(p_expires_at timestamptz, p_now timestamptz) RETURNS integer
LANGUAGE sql STABLE
RETURN CASE
    WHEN p_expires_at <= p_now + interval '1 hour'
    THEN -1 - mod(div(extract(epoch FROM p_expires_at), 900), 6)::integer
    WHEN p_expires_at <= p_now + interval '8 hours'
    THEN -7 - mod(div(extract(epoch FROM p_expires_at), 7200), 6)::integer
    WHEN p_expires_at <= p_now + interval '80 hours'
    THEN -13 - mod(div(extract(epoch FROM p_expires_at), 72000), 6)::integer
    ELSE -19 - mod(div(extract(epoch FROM p_expires_at), 648000), 6)::integer
END;
COMMENT ON FUNCTION {schema}.floor_segment(timestamptz, timestamptz) IS
    'Which floor segment takes, now, a failed row that passes the floor at a time: -1 to -24.';

DO $make$
BEGIN
    -- Autovacuum stays away as it does from the slots: a TRUNCATE leaves nothing to vacuum.
    FOR v_number IN 1 .. 24 LOOP
        EXECUTE format('CREATE TABLE {schema}.done_entries_floor_%1$s PARTITION OF {schema}.done_entries
                          FOR VALUES IN (-%1$s) WITH (autovacuum_enabled = off)', v_number);
        EXECUTE format('CREATE TABLE {schema}.queue_terminal_count_deltas_floor_%1$s
                          PARTITION OF {schema}.queue_terminal_count_deltas
                          FOR VALUES IN (-%1$s) WITH (autovacuum_enabled = off)', v_number);
    END LOOP;
END
$make$;

CREATE TABLE {schema}.floor_segment_contents (
    segment             integer     NOT NULL CHECK (segment BETWEEN -24 AND -1),
    queue               text        NOT NULL,
    carried_rows        bigint      NOT NULL CHECK (carried_rows > 0),
    newest_finalized_at timestamptz NOT NULL,
    expected_until      timestamptz NOT NULL,
    PRIMARY KEY (segment, queue)
);
COMMENT ON TABLE {schema}.floor_segment_contents IS
    'What was carried into each floor segment since it was last truncated, by queue: so that the question whether all of it '
    'is past the floor needs no scan. Rows that were retried since are still counted here; what a prune drops, it counts '
    'from the rows.';
COMMENT ON COLUMN {schema}.floor_segment_contents.expected_until IS
    'When the last row would pass the floor by the retention that the queue had when it was carried.';

-- Nothing could be chosen before, so this is nobody's choice that is undone.
UPDATE {schema}.settings SET value = 'floor', updated_at = clock_timestamp() WHERE name = 'carry_to' AND value = 'live';

CREATE FUNCTION {schema}.terminal_slots() RETURNS SETOF integer
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT -number FROM generate_series(1, 24) AS number
    UNION ALL
    SELECT slot FROM {schema}.queue_ring_slots;
END;
COMMENT ON FUNCTION {schema}.terminal_slots() IS
    'Every slot that terminal rows can stand in: floor segments and the slots of the ring.';
