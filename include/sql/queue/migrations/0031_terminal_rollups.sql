-- What is left of terminal rows whose slot was pruned: their number.

CREATE TABLE {schema}.queue_terminal_rollups (
    queue                  text   PRIMARY KEY,
    pruned_completed_count bigint NOT NULL DEFAULT 0 CHECK (pruned_completed_count >= 0)
);
COMMENT ON COLUMN {schema}.queue_terminal_rollups.pruned_completed_count IS
    'Terminal rows of this queue that have left the ring. Never decreases.';
