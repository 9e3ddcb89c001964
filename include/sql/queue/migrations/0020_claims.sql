-- Claims: one appended row a batch, and what became of its jobs appended beside it.
--
-- A claim updates nothing. The batch holds the keys of its jobs and the newest cursor of its lane in that slot; closures
-- say which of them ended, and how. Both live in a ring of their own, so that they too leave by TRUNCATE.

CREATE TABLE {schema}.claim_ring_state (
    singleton    boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    current_slot integer NOT NULL,
    generation   bigint  NOT NULL,
    slot_count   integer NOT NULL CHECK (slot_count >= 4)
);
CREATE TABLE {schema}.claim_ring_slots (
    slot         integer PRIMARY KEY CHECK (slot >= 0),
    generation   bigint,
    opened_at    timestamptz,
    sealed_at    timestamptz,
    reclaimed_at timestamptz
);
COMMENT ON TABLE {schema}.claim_ring_slots IS 'Slots of the claim ring; generation is NULL until one is first opened.';

CREATE SEQUENCE {schema}.run_lease_seq;

CREATE TABLE {schema}.lease_claim_batches (
    run_lease        bigint      NOT NULL,
    ready_generation bigint      NOT NULL,
    claimed_at       timestamptz NOT NULL,
    lease_until      timestamptz NOT NULL,
    cursor_xid       xid8        NOT NULL,
    cursor_seq       bigint      NOT NULL,
    highest_seq      bigint      NOT NULL,
    claim_slot       integer     NOT NULL,
    ready_slot       integer     NOT NULL,
    lane_id          integer     NOT NULL,
    job_count        integer     NOT NULL CHECK (job_count >= 0),
    late_xids        xid8[]      NOT NULL,
    late_seqs        bigint[]    NOT NULL,
    job_ids          bigint[]    NOT NULL,
    enqueue_xids     xid8[]      NOT NULL,
    lane_seqs        bigint[]    NOT NULL,
    attempts         smallint[]  NOT NULL,
    max_attempts     smallint[]  NOT NULL,
    kinds            text[]      NOT NULL,
    has_unique_keys  boolean     NOT NULL,
    PRIMARY KEY (claim_slot, run_lease)
) PARTITION BY LIST (claim_slot);
-- Not compressed: packing the arrays of a thousand jobs takes longer (10 ms) than all else that a claim does.
ALTER TABLE {schema}.lease_claim_batches
    ALTER COLUMN job_ids SET STORAGE EXTERNAL,
    ALTER COLUMN enqueue_xids SET STORAGE EXTERNAL,
    ALTER COLUMN lane_seqs SET STORAGE EXTERNAL,
    ALTER COLUMN attempts SET STORAGE EXTERNAL,
    ALTER COLUMN max_attempts SET STORAGE EXTERNAL,
    ALTER COLUMN kinds SET STORAGE EXTERNAL;
CREATE INDEX lease_claim_batches_cursor_idx ON {schema}.lease_claim_batches (ready_slot, lane_id, run_lease);
COMMENT ON COLUMN {schema}.lease_claim_batches.cursor_xid IS
    'How far the lane has been claimed in this slot, as (transaction, sequence) of the last row. The newest batch of '
    '(ready_slot, lane_id) holds the cursor in force.';
COMMENT ON COLUMN {schema}.lease_claim_batches.late_xids IS
    'Transactions below the cursor that were still open when it passed them, each with the last sequence taken from it '
    'in late_seqs. Their rows are claimed when they commit.';
COMMENT ON COLUMN {schema}.lease_claim_batches.highest_seq IS
    'The highest lane_seq that was taken of the lane in this slot, up to and with this batch.';
COMMENT ON COLUMN {schema}.lease_claim_batches.enqueue_xids IS
    'One element when the whole batch has the same value; so are attempts, max_attempts and kinds.';
COMMENT ON COLUMN {schema}.lease_claim_batches.has_unique_keys IS
    'Whether a job of the batch has a unique key: without one, closing it need not look for keys to release.';

CREATE TABLE {schema}.lease_claim_closures (
    run_lease  bigint      NOT NULL,
    closed_at  timestamptz NOT NULL,
    claim_slot integer     NOT NULL,
    ready_slot integer     NOT NULL,
    job_count  integer     NOT NULL CHECK (job_count > 0),
    outcome    {schema}.job_state NOT NULL,
    ordinals   integer[]
) PARTITION BY LIST (claim_slot);
ALTER TABLE {schema}.lease_claim_closures ALTER COLUMN ordinals SET STORAGE EXTERNAL;
CREATE INDEX lease_claim_closures_batch_idx ON {schema}.lease_claim_closures (ready_slot, run_lease);
COMMENT ON COLUMN {schema}.lease_claim_closures.ordinals IS
    'Which jobs of the batch ended, counted from 1; NULL means all of them.';

CREATE FUNCTION {schema}.make_claim_slot(p_slot integer) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    EXECUTE format('CREATE TABLE {schema}.lease_claim_batches_%1$s PARTITION OF {schema}.lease_claim_batches FOR VALUES IN (%1$s)', p_slot);
    EXECUTE format('CREATE TABLE {schema}.lease_claim_closures_%1$s PARTITION OF {schema}.lease_claim_closures FOR VALUES IN (%1$s)', p_slot);
END
$function$;
COMMENT ON FUNCTION {schema}.make_claim_slot(integer) IS 'Make the children of one slot of the claim ring.';

INSERT INTO {schema}.claim_ring_state (current_slot, generation, slot_count) VALUES (0, 0, 8);
INSERT INTO {schema}.claim_ring_slots (slot, generation, opened_at)
SELECT slot, CASE WHEN slot = 0 THEN 0 END, CASE WHEN slot = 0 THEN clock_timestamp() END
  FROM generate_series(0, 7) AS slot;
SELECT {schema}.make_claim_slot(slot) FROM {schema}.claim_ring_slots ORDER BY slot;

CREATE TABLE {schema}.deferred_jobs (
    job_id        bigint      PRIMARY KEY,
    run_at        timestamptz NOT NULL,
    created_at    timestamptz NOT NULL,
    attempted_at  timestamptz,
    lane_id       integer     NOT NULL,
    state         {schema}.job_state NOT NULL CHECK (state IN ('scheduled', 'available', 'retryable')),
    attempt       smallint    NOT NULL,
    max_attempts  smallint    NOT NULL,
    kind          text        NOT NULL,
    error         text,
    args          jsonb       NOT NULL,
    unique_key    bytea,
    unique_states {schema}.job_state[]
);
CREATE INDEX deferred_jobs_due_idx ON {schema}.deferred_jobs (lane_id, run_at, job_id);
COMMENT ON TABLE {schema}.deferred_jobs IS
    'Jobs whose time has not come: scheduled, or retryable after a failure. They enter the ring when they are due.';

CREATE TABLE {schema}.job_unique_claims (
    unique_key    bytea  PRIMARY KEY,
    job_id        bigint NOT NULL,
    unique_states {schema}.job_state[],
    done_lane_id  integer,
    done_lane_seq bigint,
    CONSTRAINT job_unique_claims_done_chk CHECK ((done_lane_id IS NULL) = (done_lane_seq IS NULL))
);
CREATE INDEX job_unique_claims_job_idx ON {schema}.job_unique_claims (job_id);
COMMENT ON TABLE {schema}.job_unique_claims IS
    'Which job holds a unique key now. A job lets go of its key for good when it first enters a state that is not among '
    'its unique_states; NULL there means scheduled, available, running and retryable.';
COMMENT ON COLUMN {schema}.job_unique_claims.done_lane_seq IS
    'Set when the job ended in a state that keeps the key: with done_lane_id the key of its terminal row, wherever that '
    'is carried. When the row has been pruned, the next enqueue takes the key over.';
