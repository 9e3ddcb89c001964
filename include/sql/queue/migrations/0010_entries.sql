-- The four families that rotate together: waiting jobs, tombstones, terminal rows, count deltas.
--
-- They are LIST-partitioned by slot and have no DEFAULT partition: a row for a slot that does not exist must fail.
-- No foreign key points into them: TRUNCATE of one child has to be enough to reclaim it.

CREATE TABLE {schema}.ready_entries (
    enqueue_xid      xid8        NOT NULL DEFAULT pg_current_xact_id(),
    lane_seq         bigint      NOT NULL DEFAULT nextval('{schema}.lane_seq'),
    job_id           bigint      NOT NULL DEFAULT nextval('{schema}.job_id_seq'),
    ready_generation bigint      NOT NULL,
    run_at           timestamptz NOT NULL DEFAULT now(),
    created_at       timestamptz NOT NULL DEFAULT now(),
    ready_slot       integer     NOT NULL,
    lane_id          integer     NOT NULL,
    attempt          smallint    NOT NULL DEFAULT 0,
    max_attempts     smallint    NOT NULL,
    kind             text        NOT NULL,
    args             jsonb       NOT NULL,
    unique_key       bytea,
    unique_states    {schema}.job_state[],
    PRIMARY KEY (ready_slot, lane_id, enqueue_xid, lane_seq)
) PARTITION BY LIST (ready_slot);
COMMENT ON TABLE {schema}.ready_entries IS
    'Bodies of jobs, waiting or claimed. Append-only: what became of a job is appended elsewhere, and the body is '
    'reclaimed with its slot.';
COMMENT ON COLUMN {schema}.ready_entries.enqueue_xid IS
    'The transaction that enqueued the job. A claim reads a lane in the order of (enqueue_xid, lane_seq) and remembers '
    'which transactions were still open when it passed them, so that a job whose transaction commits late is found. A '
    'job that a claim itself brings in when its time has come takes the position at which the lane is being claimed.';

CREATE TABLE {schema}.ready_tombstones (
    enqueue_xid xid8    NOT NULL,
    lane_seq    bigint  NOT NULL,
    job_id      bigint  NOT NULL,
    ready_slot  integer NOT NULL,
    lane_id     integer NOT NULL,
    PRIMARY KEY (ready_slot, lane_id, enqueue_xid, lane_seq)
) PARTITION BY LIST (ready_slot);
COMMENT ON TABLE {schema}.ready_tombstones IS
    'Bodies in ready_entries that no claim may hand out any more: their job was cancelled before it was claimed.';

CREATE TABLE {schema}.done_entries (
    lane_seq         bigint      NOT NULL,
    job_id           bigint      NOT NULL,
    ready_generation bigint      NOT NULL,
    enqueue_xid      xid8,
    run_lease        bigint,
    attempted_at     timestamptz,
    finalized_at     timestamptz NOT NULL,
    run_at           timestamptz,
    created_at       timestamptz,
    ready_slot       integer     NOT NULL,
    lane_id          integer     NOT NULL,
    state            {schema}.job_state NOT NULL,
    attempt          smallint    NOT NULL,
    max_attempts     smallint,
    kind             text        NOT NULL,
    error            text,
    args             jsonb,
    unique_key       bytea,
    unique_states    {schema}.job_state[],
    PRIMARY KEY (ready_slot, lane_id, lane_seq)
) PARTITION BY LIST (ready_slot);
CREATE INDEX done_entries_failed_idx ON {schema}.done_entries (lane_id, finalized_at) WHERE state = 'failed';
COMMENT ON TABLE {schema}.done_entries IS
    'Terminal rows. A narrow row has enqueue_xid and takes args, max_attempts, run_at, created_at, unique_key and '
    'unique_states from the body with the same key in the same slot; a wide row has no enqueue_xid and carries them '
    'itself. Read the view terminal_jobs for both.';
COMMENT ON COLUMN {schema}.done_entries.error IS
    'Why the last attempt failed, cut to 2000 characters. It may hold a customer''s words, so it stands here and '
    'nowhere else, and leaves with the row.';

CREATE TABLE {schema}.queue_terminal_count_deltas (
    ready_generation bigint   NOT NULL,
    delta            bigint   NOT NULL,
    ready_slot       integer  NOT NULL,
    lane_id          integer  NOT NULL,
    state            {schema}.job_state NOT NULL,
    bucket           smallint NOT NULL
) PARTITION BY LIST (ready_slot);
COMMENT ON TABLE {schema}.queue_terminal_count_deltas IS
    'The ledger of counts: each change of a job''s state appends its signed difference in the same transaction, for '
    'waiting and running states as for terminal ones. queue_terminal_live_counts + deltas = rows, always.';

CREATE TABLE {schema}.queue_terminal_live_counts (
    ready_slot integer  NOT NULL,
    lane_id    integer  NOT NULL,
    state      {schema}.job_state NOT NULL,
    bucket     smallint NOT NULL,
    count      bigint   NOT NULL,
    PRIMARY KEY (ready_slot, lane_id, state, bucket)
);
COMMENT ON TABLE {schema}.queue_terminal_live_counts IS
    'Deltas that were folded, or counted anew from the rows.';

-- Autovacuum stays away: TRUNCATE leaves nothing to vacuum, no plan depends on statistics, and a vacuum of a large sealed
-- child holds a lock that would keep prune blocked for as long as it lasts. (A TOAST table does as its table does.)
CREATE FUNCTION {schema}.make_queue_slot(p_slot integer) RETURNS void
LANGUAGE plpgsql AS $function$
DECLARE
    v_family text;
BEGIN
    FOREACH v_family IN ARRAY ARRAY['ready_entries', 'ready_tombstones', 'done_entries', 'queue_terminal_count_deltas'] LOOP
        EXECUTE format('CREATE TABLE {schema}.%1$s_%2$s PARTITION OF {schema}.%1$s FOR VALUES IN (%2$s)
                          WITH (autovacuum_enabled = off)', v_family, p_slot);
    END LOOP;
    EXECUTE format('CREATE INDEX ON {schema}.ready_entries_%1$s USING brin (job_id) WITH (pages_per_range = 16, autosummarize = on)', p_slot);
END
$function$;
COMMENT ON FUNCTION {schema}.make_queue_slot(integer) IS 'Make the children of one slot of the queue ring.';

SELECT {schema}.make_queue_slot(slot) FROM {schema}.queue_ring_slots ORDER BY slot;
