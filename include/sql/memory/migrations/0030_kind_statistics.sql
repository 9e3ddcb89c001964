-- What kind of memory a text is, is said by the extractor, and that may be a model which was given a turn: "what Ann fears" is
-- a kind too. A sample of the column would outlive an erasure in pg_statistic, as those of the text would.
--
-- Setting the target to 0 keeps new samples from being made and leaves an old one where it is. One that was made before
-- goes with the column's type, which stays what it was: no row is rewritten.

ALTER TABLE {schema}.memory
    -- squawk-ignore changing-column-type
    ALTER COLUMN kind TYPE text,
    ALTER COLUMN kind SET STATISTICS 0;
