-- Unique keys that no job holds any more are swept.
--
-- A job may keep its key beyond its end, for as long as its terminal row is in the ring. Prune drops rows a million at a
-- time under exclusive locks and leaves their keys: the next enqueue takes such a key over. One that nobody asks for
-- again would stay for ever. Roll-up sweeps them: it passes the keys of ended jobs in the order of their end, so many a
-- call, and goes on where it stopped. A pass begins only when rows have been dropped since the last one began.

ALTER TABLE {schema}.queue_counter_state
    ADD COLUMN swept_dropped bigint NOT NULL DEFAULT 0,
    ADD COLUMN swept_seq bigint;
COMMENT ON COLUMN {schema}.queue_counter_state.swept_dropped IS
    'How many terminal rows had ever been dropped when the last pass over the unique keys of ended jobs began.';
COMMENT ON COLUMN {schema}.queue_counter_state.swept_seq IS
    'How far that pass has come, by done_lane_seq; NULL when it is over.';

-- Built while producers of unique keys wait, since only keys that outlive their job are in it: few, as a rule.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX job_unique_claims_done_idx ON {schema}.job_unique_claims (done_lane_seq) WHERE done_lane_seq IS NOT NULL;
COMMENT ON INDEX {schema}.job_unique_claims_done_idx IS 'Keys that are held beyond the end of their job.';
