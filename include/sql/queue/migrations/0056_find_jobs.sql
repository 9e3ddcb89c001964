-- A job is found by its id wherever it stands, for people who ask what became of it.
--
-- A job that is waiting or running, or that ended after a claim, is found by its body. One that has a row of its own, since
-- it was cancelled before it was claimed or has been carried, has no body any more: those rows are few, and indexed here.

-- Built while those who end jobs wait: only rows that stand alone are in it.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX done_entries_wide_idx ON {schema}.done_entries (job_id) WHERE enqueue_xid IS NULL;
COMMENT ON INDEX {schema}.done_entries_wide_idx IS 'Terminal rows without a body, by job.';
