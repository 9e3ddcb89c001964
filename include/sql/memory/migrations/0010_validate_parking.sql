-- The rows that were there before 0009, under a lock that lets reads and writes go on.

ALTER TABLE {schema}.observation VALIDATE CONSTRAINT observation_attempts_chk;
ALTER TABLE {schema}.observation VALIDATE CONSTRAINT observation_parked_chk;
ALTER TABLE {schema}.observation VALIDATE CONSTRAINT observation_parked_not_formed_chk;
ALTER TABLE {schema}.observation VALIDATE CONSTRAINT observation_error_length_chk;
