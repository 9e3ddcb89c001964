-- The ring's state, the lanes, and what each queue decides.
--
-- A namespace has one ring of slots. Every slot owns one partition ("child") of each table that holds jobs or their
-- history; the current slot takes new jobs, sealed slots wait to be pruned by TRUNCATE, empty ones wait to be opened.

CREATE TYPE {schema}.job_state AS ENUM
    ('scheduled', 'available', 'running', 'retryable', 'completed', 'failed', 'cancelled');

CREATE TABLE {schema}.queue_ring_state (
    singleton    boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    current_slot integer NOT NULL,
    generation   bigint  NOT NULL,
    slot_count   integer NOT NULL CHECK (slot_count >= 4)
);
COMMENT ON TABLE {schema}.queue_ring_state IS
    'One row. Rotate and prune lock it FOR UPDATE before anything else, so that the current slot cannot move under a '
    'prune; producers read it without a lock.';

CREATE TABLE {schema}.queue_ring_slots (
    slot             integer PRIMARY KEY CHECK (slot >= 0),
    generation       bigint,
    opened_at        timestamptz,
    sealed_at        timestamptz,
    reclaimed_at     timestamptz,
    settled_batch_id bigint NOT NULL DEFAULT 0
);
COMMENT ON COLUMN {schema}.queue_ring_slots.generation IS
    'Which opening of the ring this slot last belonged to; NULL until it is first opened. For people: nothing computes '
    'with it.';
COMMENT ON COLUMN {schema}.queue_ring_slots.settled_batch_id IS
    'Every claim batch of this slot up to this id is closed. It moves when the slot is pruned, so that the proof that '
    'nothing runs there sums one lap of claims and not all of them.';

CREATE SEQUENCE {schema}.job_id_seq;
CREATE SEQUENCE {schema}.lane_seq;
COMMENT ON SEQUENCE {schema}.lane_seq IS
    'Never reset: it is what keeps the key of a terminal row unique wherever the row is carried.';

CREATE TABLE {schema}.queue_lanes (
    lane_id       integer  PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    queue         text     NOT NULL,
    priority      smallint NOT NULL,
    enqueue_shard smallint NOT NULL DEFAULT 0
);
-- Not unique on purpose. A unique index would make the second producer of a new lane wait for the first one's
-- transaction; two rows for one lane cost a claim one more probe and nothing else.
CREATE INDEX queue_lanes_queue_idx ON {schema}.queue_lanes (queue, priority, enqueue_shard, lane_id);
COMMENT ON TABLE {schema}.queue_lanes IS
    'A lane is (queue, priority, shard). Hot tables store its small id instead of the name.';

CREATE TABLE {schema}.queue_settings (
    queue                    text PRIMARY KEY,
    failed_retention_seconds bigint CHECK (failed_retention_seconds >= 0),
    created_at               timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON COLUMN {schema}.queue_settings.failed_retention_seconds IS
    'How long a failed job of this queue stays retryable; NULL means what the namespace says. Seconds and not an '
    'interval: a day in an interval is 23 or 25 hours twice a year.';

INSERT INTO {schema}.settings (name, value)
VALUES ('failed_retention', '259200'), ('carry_to', 'live')
ON CONFLICT (name) DO NOTHING;

INSERT INTO {schema}.queue_ring_state (current_slot, generation, slot_count)
VALUES (0, 0, current_setting('parkkeeper.queue_slots')::integer);
INSERT INTO {schema}.queue_ring_slots (slot, generation, opened_at)
SELECT slot,
       CASE WHEN slot = 0 THEN 0 END,
       CASE WHEN slot = 0 THEN clock_timestamp() END
  FROM generate_series(0, current_setting('parkkeeper.queue_slots')::integer - 1) AS slot;
