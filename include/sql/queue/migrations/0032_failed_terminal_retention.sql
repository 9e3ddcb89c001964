-- Failed rows that were dropped get a number of their own.
--
-- A failed job is promised to stay retryable for failed_retention after it was finalised. Prune carries such rows
-- forward; those that are past it are dropped, and must not vanish in the number of completed ones.
--
-- The change is additive. What an older release has folded, or goes on folding while both run, stays in
-- pruned_completed_count: the sum of the two columns is always the true number of rows that left, the split is exact
-- from the moment every maintainer writes both.

ALTER TABLE {schema}.queue_terminal_rollups
    ADD COLUMN pruned_failed_count bigint NOT NULL DEFAULT 0
        CONSTRAINT queue_terminal_rollups_pruned_failed_chk CHECK (pruned_failed_count >= 0);

COMMENT ON COLUMN {schema}.queue_terminal_rollups.pruned_failed_count IS
    'Failed rows of this queue that were past their retention when their slot was pruned: no longer retryable, and '
    'counted here so that the loss is visible. Never decreases.';
COMMENT ON COLUMN {schema}.queue_terminal_rollups.pruned_completed_count IS
    'Terminal rows of this queue that left the ring and were not failed (and failed ones folded by a release that did '
    'not tell them apart). The name is older than its meaning. Never decreases.';
